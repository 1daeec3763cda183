//! Killed, and nothing else.

use dynamo_llm::block_manager::config::DiskDurability;

use crate::{Random, book::Book, child::Life, rounds};

fn run(rounds: u32, durability: DiskDurability) {
    let dir = tempfile::tempdir().unwrap();
    let life = Life { durability, ..Life::new(dir.path()) };
    let (mut book, mut random) = (Book::new(), Random(0x9e37_79b9));
    for _ in 0..rounds {
        life.live(&mut book, &mut random);
        // The newest chains fit for certain, those that were not finished counted as well; of two
        // neighbours the order of use may be the other one.
        book.check(&life, life.chains - 3);
    }
    book.close(rounds);
}

#[test]
fn a_killed_process_loses_no_acknowledged_block() {
    run(rounds(1), DiskDurability::Process);
}

#[test]
fn nor_with_durability_against_power_loss() {
    run(rounds(4), DiskDurability::Power);
}
