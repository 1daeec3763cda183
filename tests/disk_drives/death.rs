//! What a drive that dies costs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    SequenceHash,
    config::{Finding, Severity},
    io::{
        FileOp, OsVolume,
        fault::{FaultVolume, Faults},
    },
};
use proptest::prelude::*;

use crate::{
    rig::{LONG, Rig, hashes},
    several::{Drives, arriving, blocks_in, singles, store_all},
};

/// Asks until the lanes of a dead drive are off; the state of its loads and stores.
fn notice(rig: &Rig, hashes: &[SequenceHash], drive: usize) -> (bool, bool) {
    for round in 0..20 {
        arriving(rig, hashes);
        store_all(rig, &singles(900 + round, 4));
        let state = &rig.manager.status().drives[drive];
        if !state.loads && !state.stores {
            break;
        }
    }
    let state = &rig.manager.status().drives[drive];
    (state.loads, state.stores)
}

#[test]
fn a_drive_that_dies_costs_its_own_blocks_and_comes_back_with_them() {
    let drives = Drives::new(&[("a", 600), ("b", 600)]);
    let rig = drives.open();
    let all = singles(1, 60);
    assert_eq!(store_all(&rig, &all), 60);
    let on_b = blocks_in(&drives.dir("b"));
    assert!(on_b > 10);

    drives.kill("b");
    let left = arriving(&rig, &all);
    // The first loads from it fail, and their blocks are given up for lost.
    assert_eq!(notice(&rig, &all, 1), (false, false));
    assert_eq!(arriving(&rig, &all), left);
    assert_eq!(left.len() as u64, 60 - on_b);
    // What is new goes to the other one, all of it.
    let new = singles(2, 40);
    assert_eq!(store_all(&rig, &new), 40);
    assert_eq!(arriving(&rig, &new), new);
    // A chain with a gap ends there, and nothing behind it is promised.
    let chain = hashes(3, 12);
    assert!(rig.store(&chain).iter().all(Result::is_ok));
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 12);
    rig.clear_memory();

    rig.check();
    drop(rig);
    drives.heal("b");
    let rig = drives.open();
    // But for those that were asked for in vain: an error of the drive condemns its block.
    let back = arriving(&rig, &all).len();
    assert!(back >= left.len() && back <= 60, "{back}");
    assert_eq!(arriving(&rig, &new), new);
    rig.close();
}

#[test]
fn a_reset_that_a_dead_drive_did_not_hear_of_holds_there_too() {
    let drives = Drives::new(&[("a", 60), ("b", 60)]);
    let rig = drives.open();
    let all = singles(1, 40);
    assert_eq!(store_all(&rig, &all), 40);
    drives.kill("b");
    rig.manager.reset_blocking().unwrap();
    assert!(arriving(&rig, &all).is_empty());
    drop(rig);
    let on_b = blocks_in(&drives.dir("b"));
    assert!(on_b > 10, "it could not be told");

    drives.heal("b");
    let rig = drives.open();
    assert!(arriving(&rig, &all).is_empty());
    let said: Vec<String> = rig.manager.findings().iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|said| said.contains(&format!("{on_b} dropped (reset)"))), "{said:?}");
    let new = singles(2, 40);
    assert_eq!(store_all(&rig, &new), 40);
    assert_eq!(arriving(&rig, &new), new);
    rig.close();

    let rig = drives.open();
    drives.kill("a");
    drives.kill("b");
    let error = rig.manager.reset_blocking().unwrap_err().to_string();
    assert!(error.contains(drives.dir("a").to_str().unwrap()), "{error}");
}

#[test]
fn a_drive_that_cannot_be_opened_is_left_out_and_named() {
    let drives = Drives::new(&[("a", 60), ("b", 60)]);
    let rig = drives.open();
    let all = singles(1, 40);
    assert_eq!(store_all(&rig, &all), 40);
    rig.close();
    let on_a = blocks_in(&drives.dir("a"));

    drives.kill("b");
    let rig = drives.open();
    let warning = rig
        .manager
        .findings()
        .iter()
        .find(|finding| finding.severity == Severity::Warning && finding.field == "disk.drives")
        .unwrap();
    assert!(warning.to_string().contains(drives.dir("b").to_str().unwrap()), "{warning}");
    assert_eq!(rig.manager.disk().unwrap().total_blocks(), 60);
    assert_eq!(arriving(&rig, &all).len() as u64, on_a);
    rig.close();

    drives.heal("b");
    let rig = drives.open();
    assert_eq!(arriving(&rig, &all), all);
    rig.close();

    drives.kill("a");
    drives.kill("b");
    let error = drives.try_open().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(drives.dir("a").to_str().unwrap()), "{error}");
}

#[test]
fn a_drive_with_another_owner_is_an_error_that_names_it() {
    let mut drives = Drives::new(&[("a", 60), ("b", 60)]);
    drives.volumes.clear();
    let rig = drives.open();
    let error = drives.try_open().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("in use by") && error.contains("process"), "{error}");
    rig.close();
}

#[derive(Clone, Debug)]
enum Step {
    Store(u32),
    Load(u32),
    Kill(usize),
    Heal(usize),
    Reset,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..24_u32).prop_map(Step::Store),
        6 => (0..24_u32).prop_map(Step::Load),
        1 => (0..3_usize).prop_map(Step::Kill),
        2 => (0..3_usize).prop_map(Step::Heal),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
    ]
}

const NAMES: [&str; 3] = ["a", "b", "c"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever dies and comes back: no wrong bytes, nothing from before a reset that was said to
    /// hold, nothing lost while all drives are well.
    #[test]
    fn drives_that_come_and_go_never_serve_what_they_should_not(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut drives = Drives::new(&[("a", 40), ("b", 80), ("c", 40)]);
        if let Some(io) = &mut drives.setup.io {
            io.health.probe_after = Duration::ZERO;
        }
        let mut rig = drives.open();
        let mut dead = [false; 3];
        // Stored while all were well, and since then none died.
        let mut safe = std::collections::BTreeSet::new();
        let mut gone = std::collections::BTreeSet::new();
        let chain = |number: u32| hashes(number + 1, 3);
        for step in steps {
            match step {
                Step::Store(number) => {
                    let stored = rig.store(&chain(number)).iter().all(Result::is_ok);
                    rig.clear_memory();
                    if dead == [false; 3] && stored {
                        safe.insert(number);
                    }
                    gone.remove(&number);
                }
                Step::Load(number) => {
                    // Every byte is looked at there.
                    let arrived = rig.get(&chain(number)).blocks.len();
                    rig.clear_memory();
                    prop_assert!(!gone.contains(&number) || arrived == 0);
                    if safe.contains(&number) {
                        prop_assert_eq!(arrived, 3);
                    }
                }
                Step::Kill(drive) => {
                    drives.kill(NAMES[drive]);
                    dead[drive] = true;
                    safe.clear();
                }
                Step::Heal(drive) => {
                    drives.heal(NAMES[drive]);
                    dead[drive] = false;
                }
                Step::Reset => {
                    if rig.manager.reset_blocking().is_ok() {
                        gone.extend(0..24);
                        safe.clear();
                    }
                }
                Step::Restart => {
                    drop(rig);
                    for name in NAMES {
                        drives.heal(name);
                    }
                    dead = [false; 3];
                    rig = drives.open();
                }
            }
            rig.check();
        }
    }
}

#[test]
fn a_drive_that_hangs_keeps_nobody_from_the_others() {
    let mut drives = Drives::new(&[("a", 200), ("b", 200)]);
    if let Some(io) = &mut drives.setup.io {
        io.health.stuck_after = Duration::from_millis(30);
    }
    let hung = drives.dir("b");
    let volume = OsVolume::new(&hung, true).unwrap();
    let volume = Arc::new(FaultVolume::new(Arc::new(volume), Faults::none(1)));
    drives.volumes.insert("b".to_owned(), volume.clone());
    let rig = drives.open();
    let all = singles(1, 40);
    assert_eq!(store_all(&rig, &all), 40);
    let on_a = 40 - blocks_in(&hung);
    volume.stall();
    let time = Duration::from_millis(100);
    let arrives = |hash: &&SequenceHash| {
        let arrived = rig.get_within(&[**hash], time).blocks.len() == 1;
        rig.clear_memory();
        arrived
    };
    assert_eq!(all.iter().filter(arrives).count() as u64, on_a);
    let state = &rig.manager.status().drives[1];
    assert!(!state.loads, "noticed on the way: {state:?}");
    assert_eq!(arriving(&rig, &all).len() as u64, on_a);
    rig.manager.shutdown_blocking(time);
    drop(rig);
    volume.resume();
}

/// Threads of this process with that name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[test]
fn resets_that_a_hung_drive_has_not_heard_of_wait_in_one_thread_and_are_all_heard() {
    let drives = Drives::new(&[("a", 100), ("b", 100)]);
    let rig = drives.open();
    let all = singles(1, 20);
    assert_eq!(store_all(&rig, &all), 20);
    drives.volumes["b"].stall();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| rig.manager.reset_blocking().unwrap());
        }
    });
    // Those of tests beside this one come and go.
    let start = Instant::now();
    while threads("dynamo-reset") > 1 {
        assert!(start.elapsed() < LONG, "{} threads", threads("dynamo-reset"));
        std::thread::yield_now();
    }
    drives.volumes["b"].resume();
    rig.manager.reset_blocking().unwrap();
    assert_eq!(store_all(&rig, &all), 20);
    assert!(blocks_in(&drives.dir("b")) > 0);
    assert_eq!(arriving(&rig, &all), all);
    rig.close();
    let rig = drives.open();
    assert_eq!(arriving(&rig, &all), all);
    rig.close();
}

#[test]
fn a_drive_that_cannot_take_note_of_a_reset_it_missed_is_left_out() {
    let drives = Drives::new(&[("a", 100), ("b", 100)]);
    let rig = drives.open();
    assert_eq!(store_all(&rig, &singles(1, 20)), 20);
    drives.kill("b");
    rig.manager.reset_blocking().unwrap();
    drop(rig);
    let faults = Faults { only: Some(FileOp::Write), errors: 1.0, ..Faults::none(1) };
    drives.volumes["b"].set_faults(faults);
    let rig = drives.open();
    assert_eq!(rig.manager.status().drives.len(), 1);
    let named = |finding: &&Finding| finding.value.contains("/b") && finding.field == "disk.drives";
    assert!(rig.manager.findings().iter().any(|finding| named(&finding)));
    let new = singles(2, 10);
    assert_eq!(store_all(&rig, &new), 10);
    rig.close();
    drives.heal("b");
    let rig = drives.open();
    assert!(arriving(&rig, &singles(1, 20)).is_empty());
    assert_eq!(arriving(&rig, &new), new);
    rig.close();
}

#[test]
fn a_drive_that_cannot_take_note_of_a_new_model_is_left_out() {
    let mut drives = Drives::new(&[("a", 100), ("b", 100)]);
    let rig = drives.open();
    let all = singles(1, 20);
    assert_eq!(store_all(&rig, &all), 20);
    rig.close();
    drives.setup.settings.model.revision = Some("two".to_owned());
    let faults = Faults { only: Some(FileOp::Write), errors: 1.0, ..Faults::none(1) };
    drives.volumes["b"].set_faults(faults.clone());
    let rig = drives.open();
    assert_eq!(store_all(&rig, &all), 20);
    assert_eq!(rig.manager.status().drives.len(), 1);
    rig.close();
    drives.setup.settings.model.revision = Some("three".to_owned());
    drives.volumes["a"].set_faults(faults);
    let error = drives.try_open().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("/a"), "none is left: {error}");
    drives.heal("a");
    drives.heal("b");
    drives.setup.settings.model.revision = None;
    let rig = drives.open();
    assert_eq!(arriving(&rig, &all), all);
    rig.close();
}

#[test]
fn a_drive_that_was_out_when_the_others_started_empty_starts_empty_too() {
    let mut drives = Drives::new(&[("a", 100), ("b", 100)]);
    let rig = drives.open();
    let old = singles(1, 20);
    assert_eq!(store_all(&rig, &old), 20);
    // So that the drives count from somewhere.
    rig.manager.reset_blocking().unwrap();
    assert_eq!(store_all(&rig, &old), 20);
    rig.close();
    drives.kill("b");
    drives.setup.settings.disk.reuse = false;
    let rig = drives.open();
    assert!(arriving(&rig, &old).is_empty());
    let new = singles(2, 20);
    assert_eq!(store_all(&rig, &new), 20);
    rig.close();
    drives.heal("b");
    drives.setup.settings.disk.reuse = true;
    let rig = drives.open();
    assert_eq!(arriving(&rig, &new), new);
    assert!(arriving(&rig, &old).is_empty());
    rig.close();
}
