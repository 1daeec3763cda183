//! One owner at a time, and what a dead one leaves.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use dynamo_llm::block_manager::storage::disk::{DiskDirectory, DiskError, inspect};

use crate::rig::*;

#[test]
fn a_second_owner_is_told_who_has_the_directory() {
    let folder = folder();
    let (directory, slots) = fill(folder.path(), 1);
    let error = DiskDirectory::open(folder.path(), options()).unwrap_err();
    let DiskError::Locked { holder: Some(holder), .. } = &error else { panic!("{error}") };
    assert_eq!(holder.pid as u32, std::process::id());
    assert!(error.to_string().contains(&format!("process {}", holder.pid)), "{error}");
    assert_eq!(inspect(folder.path()).unwrap().blocks, 1, "looking is always allowed");

    // An operation that outlives its owner still has the directory.
    let place = directory.place(slots[0]).unwrap();
    drop(directory);
    let again = DiskDirectory::open(folder.path(), options());
    assert!(matches!(again, Err(DiskError::Locked { .. })));
    drop(place);
    let (_, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.died, None);
}

/// Not a test by itself: what the child of the next one runs.
#[test]
fn child_that_is_killed() {
    let Some(path) = std::env::var_os("DYNAMO_TEST_DISK_CHILD") else { return };
    let (_directory, _) = fill(Path::new(&path), 20);
    println!("\nready");
    std::io::stdin().lines().for_each(drop);
}

#[test]
fn a_killed_owner_leaves_its_blocks_its_name_and_no_lock() {
    let folder = folder();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owners::child_that_is_killed", "--nocapture"])
        .env("DYNAMO_TEST_DISK_CHILD", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "ready"));
    let error = DiskDirectory::open(folder.path(), options()).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", child.id())), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.died.unwrap().pid as u32, child.id());
    assert_eq!(recovered.report.kept, 20);
    assert!(recovered.blocks.iter().all(|b| is_there(&directory, b.slot, b.slot.slot.into())));
}
