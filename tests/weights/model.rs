//! Switches, stores, resets and restarts in any order, against what must be there.

use std::{collections::BTreeSet, sync::Arc};

use dynamo_llm::block_manager::{
    config::DiskDurability,
    io::fault::{Crash, MemoryVolume},
    storage::disk::inspect,
};
use proptest::prelude::*;

use crate::{
    rig::{LONG, Setup, hashes},
    versions::{get, get_from_disk, name, quarantined, store, switch, under},
};

const VERSIONS: u32 = 3;
const CHAINS: u32 = 4;
/// Blocks of a chain.
const LEN: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Switch(u32),
    Store(u32),
    Get(u32),
    Forget,
    Reset,
    ResetDisk,
    Restart(u32),
    Hold(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..VERSIONS).prop_map(Step::Switch),
        6 => (0..CHAINS).prop_map(Step::Store),
        4 => (0..CHAINS).prop_map(Step::Get),
        2 => Just(Step::Forget),
        1 => Just(Step::Reset),
        1 => Just(Step::ResetDisk),
        1 => (0..VERSIONS).prop_map(Step::Restart),
        1 => (0..CHAINS).prop_map(Step::Hold),
    ];
    prop::collection::vec(step, 1..40)
}

/// Runs `steps`. With room for everything what was stored is there; with less, what was stored last
/// under the present version.
fn run(steps: &[Step], room: usize) {
    let dir = tempfile::tempdir().unwrap();
    let ample = room >= (VERSIONS * CHAINS) as usize * LEN;
    let setup = Setup::new(0, room).dir(dir.path()).manual();
    let setup = setup.with(|config| config.disk.durability = DiskDurability::Process);
    let mut now = 0;
    let mut rig = under(&setup, now).open();
    let mut held = Vec::new();
    let mut stored = BTreeSet::new();
    for step in steps {
        match *step {
            Step::Switch(version) => {
                let found = switch(&rig, version);
                if version != now && ample {
                    let there = stored.iter().filter(|(of, _)| *of == version).count();
                    assert_eq!(found, there * LEN);
                }
                now = version;
            }
            Step::Store(seed) => {
                let chain = hashes(seed, LEN);
                let all = store(&rig, now, &chain).iter().all(Result::is_ok);
                assert!(all || !ample);
                if all {
                    stored.insert((now, seed));
                    // With little room what was there already may have made room for the others.
                    let there = get_from_disk(&rig, now, &chain);
                    assert!(there == LEN || !ample, "{there} blocks");
                }
            }
            Step::Get(seed) => {
                let there = get(&rig, now, &hashes(seed, LEN));
                let known = stored.contains(&(now, seed));
                assert!(there == 0 || known, "{there} blocks of what is not there");
                assert!(there == LEN || !known || !ample, "{there} blocks");
            }
            Step::Forget => rig.clear_memory(),
            Step::Reset => {
                rig.manager.reset_blocking().unwrap();
                stored.clear();
            }
            Step::ResetDisk => {
                // What is held in memory would still be found there.
                held.clear();
                rig.clear_memory();
                rig.manager.disk().unwrap().reset_blocking().unwrap();
                stored.clear();
            }
            Step::Restart(version) => {
                held.clear();
                rig.manager.flush_blocking(LONG).unwrap();
                rig.close();
                let inspection = inspect(dir.path()).unwrap();
                assert!(!ample || inspection.blocks as usize == stored.len() * LEN);
                now = version;
                rig = under(&setup, now).open();
            }
            Step::Hold(seed) if ample => {
                held.push(rig.manager.lookup(&hashes(seed, LEN)).unwrap());
            }
            Step::Hold(_) => held.clear(),
        }
        rig.check();
        assert_eq!(quarantined(&rig), 0);
    }
    drop(held);
    rig.close();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn with_room_for_all_what_was_stored_is_there(steps in steps()) {
        // And for what is held, which keeps its slots.
        run(&steps, 512);
    }

    #[test]
    fn with_little_room_whatever_is_there_is_right(steps in steps()) {
        run(&steps, 8);
    }
}

#[test]
fn killed_in_the_course_of_any_write_no_version_loses_what_was_acknowledged() {
    for operations in 1..60 {
        let drive = MemoryVolume::new();
        let setup = Setup::new(0, 32).manual();
        let rig = under(&setup.clone().volume(Arc::new(drive.clone())), 0).open();
        let mut acknowledged = vec![];
        drive.stop_after(operations, operations);
        for (seed, version) in [1, 2, 1, 0, 3].into_iter().enumerate() {
            let switched = rig.manager.set_weights_version_blocking(&name(version));
            if switched.is_err() {
                break;
            }
            let chain = hashes(seed as u32, LEN);
            let stored = store(&rig, version, &chain);
            let prefix = stored.iter().take_while(|result| result.is_ok()).count();
            acknowledged.push((version, chain, prefix));
            rig.clear_memory();
        }
        drop(rig);
        let rig = under(&setup.volume(Arc::new(drive.after(Crash::Kill))), 2).open();
        for (version, chain, prefix) in &acknowledged {
            switch(&rig, *version);
            let there = get_from_disk(&rig, *version, chain);
            assert!(there >= *prefix, "{there} of {prefix} after {operations} operations");
        }
        assert_eq!(quarantined(&rig), 0);
    }
}
