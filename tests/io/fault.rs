//! Volumes that misbehave do so as they say.

use std::sync::Arc;

use dynamo_llm::block_manager::io::fault::{Crash, FaultVolume, Faults, MemoryVolume, SECTOR};
use dynamo_llm::block_manager::io::{
    AlignedBuffer, IoBuffer, IoError, OpenFile, Volume, read_full, write_full,
};
use proptest::prelude::*;

use crate::rig::*;

proptest! {
    /// Short transfers, at any rate, change nothing but the number of calls.
    #[test]
    fn partial_transfers_are_carried_on(
        seed: u64,
        lens in prop::collection::vec(1_usize..40, 1..6),
        offset in 0_u64..10,
        direct: bool,
    ) {
        let memory = Arc::new(MemoryVolume::new());
        let faults = Faults { shorts: 0.5, ..Faults::none(seed) };
        let volume = FaultVolume::new(memory, faults);
        let file = volume.open("file", create(direct)).unwrap();
        let buffers: Vec<_> = lens.iter().map(|&n| aligned(&pattern(n * SECTOR, n as u8))).collect();
        let slices: Vec<&[u8]> = buffers.iter().map(IoBuffer::bytes).collect();
        let offset = offset * SECTOR as u64;
        // A transfer of one unit cannot be halved: then it stops, and says where.
        match write_full(&*file, &slices, offset) {
            Ok(()) => {}
            Err(IoError::Short { .. }) => return Ok(()),
            Err(error) => panic!("{error}"),
        }
        volume.set_faults(Faults::none(seed));
        let mut back: Vec<_> = lens.iter().map(|&n| AlignedBuffer::new(n * SECTOR)).collect();
        let mut targets: Vec<&mut [u8]> = back.iter_mut().map(|buffer| &mut **buffer).collect();
        read_full(&*file, &mut targets, offset).unwrap();
        for (back, sent) in back.iter().zip(&slices) {
            prop_assert_eq!(&**back, *sent);
        }
    }

    /// After a power failure a sector holds its synced bytes or a later version; synced is synced.
    #[test]
    fn the_memory_volume_loses_only_what_was_not_synced(
        writes in prop::collection::vec((0_u64..8, any::<u8>(), any::<bool>()), 1..40),
        seed: u64,
    ) {
        let volume = MemoryVolume::new();
        let file = volume.open("file", RW).unwrap();
        volume.sync().unwrap();
        let mut possible = vec![vec![0_u8]; 8];
        file.set_len(8 * SECTOR as u64).unwrap();
        file.sync_data().unwrap();
        for &(sector, byte, sync) in &writes {
            write_full(&*file, &[&[byte; SECTOR]], sector * SECTOR as u64).unwrap();
            possible[sector as usize].push(byte);
            if sync {
                file.sync_data().unwrap();
                for versions in &mut possible {
                    versions.drain(..versions.len() - 1);
                }
            }
        }
        let read = |crash| {
            let file = volume.after(crash).open("file", OpenFile::default()).unwrap();
            let mut bytes = vec![0; 8 * SECTOR];
            read_full(&*file, &mut [&mut bytes], 0).unwrap();
            bytes
        };
        for (sector, bytes) in read(Crash::Power { seed }).chunks(SECTOR).enumerate() {
            prop_assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            prop_assert!(possible[sector].contains(&bytes[0]));
        }
        for (sector, bytes) in read(Crash::Kill).chunks(SECTOR).enumerate() {
            prop_assert_eq!(Some(&bytes[0]), possible[sector].last());
        }
    }
}

#[test]
fn a_bad_sector_fails_every_read_until_it_is_written_if_it_heals_at_all() {
    let volume = FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1));
    let file = volume.open("file", RW).unwrap();
    write_full(&*file, &[&[7; 8192]], 0).unwrap();
    volume.damage("file", 4096..4608, true).unwrap();
    volume.damage("file", 600..700, false).unwrap();
    assert!(matches!(volume.damage("nowhere", 0..1, true), Err(IoError::Gone { .. })));
    let read = |offset, len: usize| read_full(&*file, &mut [&mut vec![0; len]], offset);
    for _ in 0..2 {
        read(0, 600).unwrap();
        assert!(matches!(read(0, 601), Err(IoError::Device { .. })));
        read(4608, 512).unwrap();
        assert!(matches!(read(4607, 1), Err(IoError::Device { .. })));
    }
    // Half of it is not enough.
    write_full(&*file, &[&[1; 100]], 4096).unwrap();
    assert!(read(4096, 1).is_err());
    write_full(&*file, &[&[1; 8192]], 0).unwrap();
    read(700, 7492).unwrap();
    assert!(read(650, 1).is_err());
    assert!(volume.injected() >= 4);
}

#[test]
fn what_a_volume_cannot_do_it_says() {
    let volume = FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1));
    let file = volume.open("file", RW).unwrap();
    file.allocate(0..4096).unwrap();
    file.punch(0..4096).unwrap();
    volume.set_abilities(false, false);
    for refused in [file.allocate(0..4096), file.punch(0..4096)] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
