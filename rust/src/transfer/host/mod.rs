//! The engine between memories that the CPU can reach: a few threads that copy and sum.
//!
//! One queue, served front to back; the blocks of a job spread over the threads, about a mebibyte
//! at a time, so one large block does not hold up a queue of small ones and a lock is taken once
//! per mebibyte, not per block. Threads start with the first job. Dropping the engine stops the
//! threads after the piece each is at and blocks nobody; what was not begun is reported as
//! [`TransferError::EngineStopped`].
//!
//! Loads and stores are two engines, so that neither waits behind the other.
#![allow(unsafe_code)]

mod copy;

use std::{collections::VecDeque, ops::Range, thread};

use super::{Job, TransferEngine, TransferError};
use crate::sync::{Arc, Condvar, Mutex};

/// Bytes a thread takes from the queue at a time: long enough that the queue's lock does not
/// matter (100 ns against 100 us), short enough to stop soon.
const BITE_BYTES: usize = 1 << 20;

/// Copies blocks between memories that the CPU can reach, summing them in the same pass.
pub struct HostEngine {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    threads: usize,
    limit: usize,
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Queued>,
    /// Blocks in `jobs` that no thread has taken.
    blocks: usize,
    started: bool,
    stopped: bool,
}

struct Queued {
    job: Arc<Job>,
    next: usize,
}

impl HostEngine {
    /// An engine of `threads` threads (at least one) that queues at most `limit` blocks. `name`
    /// names it and its threads.
    pub fn new(name: &str, threads: usize, limit: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                threads: threads.max(1),
                limit,
                queue: Mutex::new(Queue::default()),
                work: Condvar::new(),
            }),
        }
    }
}

// SAFETY: a pair is copied by the one thread that took it from the queue and reported by it
// afterwards; what is still in the queue when the engine goes is reported and never copied. Only
// the plan of a job that is held is used.
unsafe impl TransferEngine for HostEngine {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn submit(&self, job: Job) -> Result<(), (TransferError, Job)> {
        let served = job.plan().memories(self.name()).and_then(|(from, to)| {
            from.check_accessible().and_then(|()| to.check_accessible()).map_err(Into::into)
        });
        if let Err(error) = served {
            return Err((error, job));
        }
        let blocks = job.plan().pairs().len();
        if blocks == 0 {
            return Ok(());
        }
        let shared = &self.shared;
        let mut queue = shared.queue.lock();
        // An idle engine takes a job of any size: a limit must not make a request impossible.
        if queue.blocks > 0 && queue.blocks + blocks > shared.limit {
            let error = TransferError::QueueFull {
                engine: shared.name.clone(),
                queued: queue.blocks,
                limit: shared.limit,
            };
            return Err((error, job));
        }
        if !queue.started
            && let Err(error) = shared.start()
        {
            return Err((error, job));
        }
        queue.started = true;
        queue.blocks += blocks;
        queue.jobs.push_back(Queued { job: Arc::new(job), next: 0 });
        drop(queue);
        shared.work.notify_all();
        Ok(())
    }
}

impl Shared {
    fn start(self: &Arc<Self>) -> Result<(), TransferError> {
        for number in 0..self.threads {
            let shared = self.clone();
            let spawned = thread::Builder::new()
                .name(format!("{}-{number}", self.name))
                .spawn(move || shared.run());
            match spawned {
                Ok(_) => {}
                // One thread is enough to serve the queue.
                Err(error) if number > 0 => {
                    tracing::warn!(engine = self.name, %error, threads = number, "fewer threads");
                    break;
                }
                Err(error) => {
                    return Err(TransferError::Thread {
                        engine: self.name.clone(),
                        reason: error.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        while !queue.stopped {
            let Some((job, bite)) = queue.bite() else {
                queue = self.work.wait(queue);
                continue;
            };
            drop(queue);
            copy::execute(&job, bite);
            drop(job);
            queue = self.queue.lock();
        }
    }
}

impl Queue {
    /// Takes some blocks of the first job.
    fn bite(&mut self) -> Option<(Arc<Job>, Range<usize>)> {
        let front = self.jobs.front_mut()?;
        let plan = front.job.plan();
        let count = plan.pairs().len();
        let block_bytes = plan.from().layout().block_bytes().max(1);
        let start = front.next;
        let end = count.min(start + (BITE_BYTES / block_bytes).max(1));
        let job = front.job.clone();
        front.next = end;
        if end == count {
            self.jobs.pop_front();
        }
        self.blocks -= end - start;
        Some((job, start..end))
    }
}

impl Drop for HostEngine {
    fn drop(&mut self) {
        let abandoned = {
            let mut queue = self.shared.queue.lock();
            queue.stopped = true;
            queue.blocks = 0;
            std::mem::take(&mut queue.jobs)
        };
        self.shared.work.notify_all();
        for Queued { job, next } in abandoned {
            for index in next..job.plan().pairs().len() {
                job.report(index, Err(TransferError::EngineStopped));
            }
        }
    }
}
