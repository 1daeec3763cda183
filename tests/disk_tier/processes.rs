//! What one process stored, another finds: equal input gives equal names.

use std::{env, path::Path, process::Command};

use dynamo_llm::block_manager::{Identity, MediaItem, SequenceHash};

use crate::rig::{PAGE, Setup, hashes_of};

const CHILD: &str = "DYNAMO_TEST_STORING_CHILD";

fn setup(dir: &Path) -> Setup {
    Setup::new(0, 64).dir(dir)
}

/// Chains that differ in what else than tokens is in them.
fn chains() -> [Vec<SequenceHash>; 4] {
    [
        Identity::new(),
        Identity::new().with_salt("tenant"),
        Identity::new().with_adapter("style"),
        Identity::new().with_media([MediaItem::new(PAGE, vec![7; 32])]),
    ]
    .map(|identity| hashes_of(1, 4, &identity))
}

/// What a process of its own runs; does nothing in a run of the tests.
#[test]
fn the_storing_child() {
    let Some(dir) = env::var_os(CHILD) else { return };
    let rig = setup(Path::new(&dir)).open();
    for chain in chains() {
        rig.put(&chain);
    }
    rig.close();
}

#[test]
fn every_block_of_another_process_is_found_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "disk_tier::processes::the_storing_child", "--nocapture"])
        .env(CHILD, dir.path())
        .status()
        .unwrap();
    assert!(child.success());
    let rig = setup(dir.path()).open();
    let found: Vec<usize> = chains().iter().map(|chain| rig.get(chain).blocks.len()).collect();
    assert_eq!(found, [4; 4]);
    // The media come after the first page, which is shared.
    assert_eq!(rig.manager.disk().unwrap().status().inactive, 15);
    rig.close();
}
