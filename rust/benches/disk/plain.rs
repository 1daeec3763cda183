//! Plain loops of direct reads and writes, a thread for each request at the drive.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use dynamo_llm::block_manager::io::IoMemory;

use crate::memory::Part;
use crate::{DEPTH, FILE, Way};

/// Opens a file for direct I/O, else through the page cache; whether it is direct.
pub(crate) fn open(path: &Path) -> (File, bool) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    match options.clone().custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => (file, true),
        Err(_) => (options.open(path).unwrap(), false),
    }
}

/// A file for each way.
pub(crate) struct Plain {
    files: [File; 2],
    buffers: [Vec<Part>; 2],
}

impl Plain {
    pub(crate) fn new(paths: [&Path; 2], piece: usize) -> Self {
        let files = paths.map(|path| open(path).0);
        let mut plain = Self { files, buffers: [(); 2].map(|()| Part::many(DEPTH, piece)) };
        plain.files.iter().zip(&mut plain.buffers).for_each(|(file, buffers)| {
            rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, FILE as u64)
                .unwrap();
            run(file, buffers, Way::Write);
        });
        plain
    }

    /// Bytes per second of one call.
    pub(crate) fn rate(&mut self, way: Way) -> f64 {
        let [written, read] = &self.files;
        let [first, second] = &mut self.buffers;
        way.rate(|| {
            let start = Instant::now();
            match way {
                Way::Write => run(written, first, Way::Write),
                Way::Read => run(read, second, Way::Read),
                Way::Mixed => thread::scope(|scope| {
                    scope.spawn(|| run(written, first, Way::Write));
                    run(read, second, Way::Read);
                }),
            }
            start.elapsed()
        })
    }
}

/// Moves every piece of a file once.
fn run(file: &File, buffers: &mut [Part], way: Way) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for buffer in buffers {
            let buffer = buffer.bytes_mut().unwrap();
            let next = &next;
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= FILE / buffer.len() {
                        return;
                    }
                    let offset = (at * buffer.len()) as u64;
                    match way {
                        Way::Write => file.write_all_at(buffer, offset).unwrap(),
                        _ => file.read_exact_at(buffer, offset).unwrap(),
                    }
                }
            });
        }
    });
}
