//! Files, their modes and errors, and memory that is lent.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use dynamo_llm::block_manager::io::fault::{FaultVolume, Faults, MemoryVolume, SECTOR};
use dynamo_llm::block_manager::io::{
    AlignedBuffer, IoBuffer, IoError, IoMode, IoWork, Lane, OpenFile, OsVolume, PsyncEngine,
    Volume, read_full, write_full,
};

use crate::rig::*;

#[test]
fn what_is_written_is_read_in_both_modes_and_the_buffers_come_back() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for direct in [true, false] {
        let volume = OsVolume::new(folder.path(), direct).unwrap();
        let file = volume.open("file", DIRECT).unwrap();
        match file.mode() {
            IoMode::Direct { alignment } => assert!(direct && *alignment == 4096),
            IoMode::Buffered { reason } => assert!(!reason.is_empty()),
            _ => unreachable!(),
        }
        let engine = PsyncEngine::new(options()).unwrap();
        let [first, second] = [pattern(8192, 1), pattern(4096, 2)];
        let buffers = vec![aligned(&first), aligned(&second)];
        let work = IoWork::Write { file: file.clone(), offset: 4096, buffers };
        let done = run(&engine, request(Lane::Store, work));
        done.result.unwrap();
        assert_eq!(done.buffers[0].bytes(), first, "the same buffers, in order");
        run(&engine, request(Lane::Store, IoWork::Sync { file: file.clone() })).result.unwrap();

        let buffers = vec![AlignedBuffer::new(4096).into(), AlignedBuffer::new(12288).into()];
        let work = IoWork::Read { file: file.clone(), offset: 0, buffers };
        let done = run(&engine, request(Lane::Load, work));
        done.result.unwrap();
        assert!(done.buffers[0].bytes().iter().all(|&byte| byte == 0));
        assert_eq!(done.buffers[1].bytes(), [first, second].concat());
        volume.remove("file").unwrap();
        volume.remove("file").unwrap();
    }
}

#[test]
fn a_file_system_without_direct_io_is_used_through_the_page_cache_and_says_so() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let volume = OsVolume::new(folder.path(), true).unwrap();
    let file = volume.open("file", DIRECT).unwrap();
    // Recent kernels take the flag on tmpfs; whichever it is, the mode is stated and works.
    if let IoMode::Buffered { reason } = file.mode() {
        assert!(reason.contains("file system") || reason.contains("kernel"), "{reason}");
    }
    let bytes = aligned(&pattern(4096, 3));
    write_full(&*file, &[bytes.bytes()], 0).unwrap();
    let mut back = AlignedBuffer::new(4096);
    read_full(&*file, &mut [&mut back], 0).unwrap();
    assert_eq!(&*back, bytes.bytes());
}

#[test]
fn direct_io_refuses_what_is_not_aligned_before_the_system_does() {
    let volume = MemoryVolume::new();
    let file = volume.open("file", DIRECT).unwrap();
    let buffer = AlignedBuffer::new(SECTOR * 2);
    for (bytes, offset) in [(&buffer[..100], 0), (&buffer[..SECTOR], 7), (&buffer[1..=SECTOR], 0)] {
        let error = write_full(&*file, &[bytes], offset).unwrap_err();
        assert!(matches!(error, IoError::Misaligned { alignment: 512, .. }), "{error}");
    }
    assert_eq!(file.len().unwrap(), 0);
}

type Check = fn(&IoError) -> bool;

#[test]
fn errors_name_file_range_and_remedy() {
    let volume = FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1));
    let file = volume.open("blocks", RW).unwrap();
    let cases: [(i32, &str, Check); 6] = [
        (libc::EIO, "health", |error| matches!(error, IoError::Device { .. })),
        (libc::ENOSPC, "free some", |error| matches!(error, IoError::NoSpace { .. })),
        (libc::EDQUOT, "free some", |error| matches!(error, IoError::NoSpace { .. })),
        (libc::EROFS, "mount it", |error| matches!(error, IoError::ReadOnly { .. })),
        (libc::ESTALE, "restore", |error| matches!(error, IoError::Gone { .. })),
        (libc::EMFILE, "code 24", |error| matches!(error, IoError::System { .. })),
    ];
    for (code, remedy, check) in cases {
        volume.set_faults(Faults { errors: 1.0, code, ..Faults::none(1) });
        let error = write_full(&*file, &[&[0; 24]], 48).unwrap_err();
        assert!(check(&error), "{error}");
        let text = error.to_string();
        assert!(text.contains("writing 24 bytes at 48 of memory/blocks"), "{text}");
        assert!(text.contains(remedy), "{text}");
    }
    volume.set_faults(Faults::none(1));
    let error = read_full(&*file, &mut [&mut [0; 8]], 0).unwrap_err();
    assert!(matches!(error, IoError::Short { done: 0, .. }), "{error}");
    assert!(matches!(volume.open("x", OpenFile::default()), Err(IoError::Gone { .. })));
    assert!(matches!(OsVolume::new(Path::new("/nowhere"), true), Err(IoError::Gone { .. })));
}

#[test]
fn memory_that_may_only_be_read_is_not_read_into() {
    #[derive(Debug)]
    struct Shared(Arc<[u8]>);
    impl dynamo_llm::block_manager::io::IoMemory for Shared {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn bytes_mut(&mut self) -> Option<&mut [u8]> {
            None
        }
    }
    let bench = Bench::new(|_| ());
    let file = bench.file.clone();
    let lend = || vec![IoBuffer::Lent(Box::new(Shared(Arc::from(pattern(512, 1)))))];
    let work = IoWork::Write { file: file.clone(), offset: 0, buffers: lend() };
    run(&bench.engine, request(Lane::Store, work)).result.unwrap();
    let work = IoWork::Read { file, offset: 0, buffers: lend() };
    let done = run(&bench.engine, request(Lane::Load, work));
    assert!(matches!(done.result, Err(IoError::NotWritable { index: 0, .. })));
    let IoBuffer::Lent(memory) = done.buffers.into_iter().next().unwrap() else { panic!() };
    let memory: Box<dyn Any> = memory;
    assert_eq!(*memory.downcast::<Shared>().unwrap().0, pattern(512, 1));
}
