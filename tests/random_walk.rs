//! Long random use: books and bytes stay right.

#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Rig, assert_bytes, hashes, settled};

#[test]
fn books_and_bytes_stay_right_over_ten_thousand_random_steps() {
    let rig = Rig::manual(4, 4);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut held: Vec<Vec<_>> = Vec::new();
    for step in 0..10_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let wanted = hashes((random >> 8) as u32 % 5, 1 + (random >> 16) as usize % 3);
        match random % 6 {
            0 | 1 => {
                let device = rig.manager.device().unwrap();
                if device.available_blocks() >= wanted.len() {
                    held.push(rig.fill(&wanted));
                }
            }
            2 => {
                if let Some(blocks) = held.last() {
                    drop(settled(rig.manager.offload(blocks).unwrap()));
                }
            }
            3 => held.push(rig.get(&wanted).blocks),
            4 => rig.clear_device(),
            _ => {}
        }
        while held.len() > 2 || random % 5 == 4 && !held.is_empty() {
            let at = (random >> 24) as usize % held.len();
            assert_bytes(&held.swap_remove(at));
        }
        rig.check();
        for pool in [rig.manager.device(), rig.manager.host()].into_iter().flatten() {
            assert!((0.0..=1.0).contains(&pool.usage_rate()), "step {step}");
        }
    }
}
