//! A small tmpfs for a test, mounted where nobody else sees it.
//!
//! The test runs itself once more, in a mount namespace of its own: as root, or as a user who may be
//! root there. The mount ends with the namespace, so that a test that is killed leaves nothing.
//!
//! Where neither is possible the test is skipped and says so, unless `DYNAMO_TEST_REQUIRE`, a list
//! with commas, names `tmpfs` or is `all`: then it fails.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

const INSIDE: &str = "DYNAMO_TEST_TMPFS";

/// `None` for the run outside, when all is done. Inside, the folder of an empty tmpfs of `size`, as
/// `mount` understands it. `test` is the full name of the test that calls this.
pub(crate) fn inside(test: &str, size: &str) -> Option<PathBuf> {
    if let Some(folder) = env::var_os(INSIDE) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let in_namespace = |user: bool| {
        let mut command = Command::new("unshare");
        command.args(user.then_some("--map-root-user")).arg("--mount").arg("--").args([
            "sh",
            "-c",
            r#"mount -t tmpfs -o size="$1" tmpfs "$0" && shift && exec "$@""#,
        ]);
        command.arg(folder.path()).arg(size);
        command
    };
    let can = |user: &bool| {
        let mut command = in_namespace(*user);
        let tried = command.arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let Some(user) = [false, true].into_iter().find(can) else {
        let required = env::var("DYNAMO_TEST_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|name| ["tmpfs", "all"].contains(&name.trim()));
        assert!(!required, "{test}: nobody here may mount a tmpfs, in no namespace either");
        println!("skipped: {test}: nobody here may mount a tmpfs, in no namespace either");
        return None;
    };
    let status = in_namespace(user)
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, folder.path())
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed inside");
    None
}
