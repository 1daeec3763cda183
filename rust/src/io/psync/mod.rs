//! An engine of threads that read and write at offsets.
//!
//! Each lane has threads of its own, as many as requests of it are to be at the drive at once. For
//! blocks of a MiB this reaches what the drive gives. One more thread watches the time: it answers
//! what was cancelled or has outlived its deadline in the queue, notices operations that are stuck,
//! and answers what is left when the engine goes.
//!
//! The drive is shared even where nothing else is, and a load that somebody waits for would queue
//! there behind stores that nobody waits for. While loads are about, stores therefore hold back, all
//! but one or as many as [`PsyncOptions::stores_beside_loads`] says.
//!
//! All threads start with the first request and end by themselves after the engine was dropped, at
//! the latest when the kernel lets go of what they are doing; nobody waits for them.

mod state;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use self::state::{Entry, State};
use super::engine::Cancel;
use super::{
    Clock, FileOp, Health, HealthOptions, IoDone, IoEngine, IoError, IoRequest, IoTicket, IoWork,
    Lane, SystemClock, read_full, write_full,
};
use crate::sync::{Arc, Condvar, Mutex};

/// How a [`PsyncEngine`] is built.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PsyncOptions {
    /// Name in logs and of the threads.
    pub name: String,
    /// Loads at the drive at once: its queue depth for reading.
    pub load_threads: usize,
    /// Stores at the drive at once: its queue depth for writing.
    pub store_threads: usize,
    /// Loads that may wait.
    pub load_queue: usize,
    /// Stores that may wait.
    pub store_queue: usize,
    /// Stores at the drive at once while loads are about; at least 1, so that they go on.
    pub stores_beside_loads: usize,
    /// How long after the last load the others hold back: loads come in bursts.
    pub hold_back: Duration,
    /// When a lane is sick.
    pub health: HealthOptions,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for PsyncOptions {
    fn default() -> Self {
        Self {
            name: "disk".to_owned(),
            load_threads: 8,
            // Stores are in nobody's way and in no hurry.
            store_threads: 4,
            load_queue: 4096,
            store_queue: 1024,
            stores_beside_loads: 1,
            hold_back: Duration::from_millis(5),
            health: HealthOptions::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// The engine; see the module documentation.
#[derive(Debug)]
pub struct PsyncEngine {
    shared: Arc<Shared>,
}

struct Shared {
    options: PsyncOptions,
    state: Mutex<State>,
    /// Work for a lane's threads.
    loads: Condvar,
    stores: Condvar,
    /// Something for the thread that watches the time.
    watch: Condvar,
}

impl PsyncEngine {
    /// An engine; its threads start with the first request.
    ///
    /// # Errors
    ///
    /// [`IoError::InvalidConfig`] for a lane with no threads or no queue.
    pub fn new(options: PsyncOptions) -> Result<Self, IoError> {
        for (field, value) in [
            ("load_threads", options.load_threads),
            ("store_threads", options.store_threads),
            ("load_queue", options.load_queue),
            ("store_queue", options.store_queue),
            ("stores_beside_loads", options.stores_beside_loads),
        ] {
            if value == 0 {
                let remedy = "give at least 1";
                return Err(IoError::InvalidConfig { field, value: "0".to_owned(), remedy });
            }
        }
        let state = Mutex::new(State::new(&options));
        let [loads, stores, watch] = [Condvar::new(), Condvar::new(), Condvar::new()];
        Ok(Self { shared: Arc::new(Shared { options, state, loads, stores, watch }) })
    }

    /// Looks at the clock. Needed only where the clock is not the system's.
    pub fn tick(&self) {
        self.shared.watch.notify_one();
    }

    /// Requests of a lane that wait, and that are under way.
    pub fn depth(&self, lane: Lane) -> (usize, usize) {
        let state = self.shared.state.lock();
        let lane = state.lane(lane);
        (lane.queue.len(), lane.running.len())
    }
}

impl IoEngine for PsyncEngine {
    fn name(&self) -> &str {
        &self.shared.options.name
    }

    fn submit(&self, request: IoRequest) -> Result<IoTicket, (IoError, Box<IoRequest>)> {
        let shared = &self.shared;
        let now = shared.options.clock.now();
        let (lane, deadline) = (request.lane, request.deadline);
        let mut state = shared.state.lock();
        if !state.started
            && let Err(error) = shared.start()
        {
            drop(state);
            return Err((error, Box::new(request)));
        }
        state.started = true;
        let is_next = deadline.is_some_and(|at| state.wakes_at.is_none_or(|wakes| at < wakes));
        let id = match state.admit(request, now) {
            Ok(id) => id,
            Err((error, request)) => {
                drop(state);
                return Err((error, request));
            }
        };
        drop(state);
        shared.work(lane).notify_one();
        if is_next {
            shared.watch.notify_one();
        }
        let engine: Arc<dyn Cancel> = shared.clone();
        Ok(IoTicket::new(Arc::downgrade(&engine), lane, id))
    }

    fn health(&self, lane: Lane) -> Health {
        self.shared.state.lock().lane(lane).monitor.health()
    }
}

impl Cancel for Shared {
    fn cancel(&self, lane: Lane, id: u64) {
        if self.state.lock().cancel(lane, id) {
            self.watch.notify_one();
        }
    }
}

impl Shared {
    fn work(&self, lane: Lane) -> &Condvar {
        match lane {
            Lane::Load => &self.loads,
            Lane::Store => &self.stores,
        }
    }

    /// Starts the threads. Those of a failed start find the engine stopped or serve the next one.
    fn start(self: &Arc<Self>) -> Result<(), IoError> {
        let options = &self.options;
        self.spawn("watch", Self::watch)?;
        for (lane, threads) in
            [(Lane::Load, options.load_threads), (Lane::Store, options.store_threads)]
        {
            for number in 0..threads {
                let spawned =
                    self.spawn(&format!("{lane}-{number}"), move |shared| shared.serve(lane));
                match spawned {
                    // One thread is enough to serve a lane.
                    Err(error) if number > 0 => {
                        tracing::warn!(engine = options.name, %error, %lane, number, "fewer threads");
                        break;
                    }
                    spawned => spawned?,
                }
            }
        }
        Ok(())
    }

    fn spawn(
        self: &Arc<Self>,
        role: &str,
        run: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<(), IoError> {
        let shared = self.clone();
        thread::Builder::new()
            .name(format!("{}-{role}", self.options.name))
            .spawn(move || run(&shared))
            .map(drop)
            .map_err(|error| IoError::Thread { reason: error.to_string() })
    }

    /// Carries out the requests of a lane until the engine stops.
    fn serve(&self, lane: Lane) {
        let mut state = self.state.lock();
        while !state.stopped {
            let now = self.options.clock.now();
            let Some(entry) = state.begin(lane, now) else {
                // Nobody tells when the loads have gone quiet.
                state = if state.holds_back(lane, now) {
                    self.work(lane).wait_timeout(state, self.options.hold_back)
                } else {
                    self.work(lane).wait(state)
                };
                continue;
            };
            // Whoever watches must look in time to find the operation stuck.
            let stuck_at = now + self.options.health.stuck_after;
            if state.wakes_at.is_none_or(|wakes| stuck_at < wakes) {
                self.watch.notify_one();
            }
            drop(state);
            let Entry { id, trial, request, .. } = entry;
            let expired = request.deadline.is_some_and(|at| self.options.clock.now() >= at);
            let (result, buffers) = if expired {
                (Err(IoError::Expired { lane }), request.work.into_buffers())
            } else {
                perform(lane, request.work)
            };
            let sick = self.state.lock().end(lane, id, &result, trial, self.options.clock.now());
            if sick {
                self.watch.notify_one();
            }
            answer(lane, request.done, IoDone { result, buffers });
            state = self.state.lock();
        }
    }

    /// Answers what never began, and notices what is stuck.
    fn watch(&self) {
        let mut state = self.state.lock();
        loop {
            let now = self.options.clock.now();
            let given_up = state.give_up(now);
            if !given_up.is_empty() {
                drop(state);
                for (entry, error) in given_up {
                    let IoRequest { lane, work, done, .. } = *entry.request;
                    answer(lane, done, IoDone { result: Err(error), buffers: work.into_buffers() });
                }
                state = self.state.lock();
                continue;
            }
            if state.stopped {
                return;
            }
            state.wakes_at = state.next_event();
            state = match state.wakes_at {
                // Rounded up, so that it does not wake just before the moment.
                Some(at) => self.watch.wait_timeout(
                    state,
                    at.saturating_duration_since(now) + Duration::from_micros(50),
                ),
                None => self.watch.wait(state),
            };
        }
    }
}

/// Does the work; the buffers come back in any case.
fn perform(lane: Lane, work: IoWork) -> (Result<(), IoError>, Vec<super::IoBuffer>) {
    match work {
        IoWork::Read { file, offset, mut buffers } => {
            let mut slices = Vec::with_capacity(buffers.len());
            for (index, buffer) in buffers.iter_mut().enumerate() {
                let Some(bytes) = buffer.bytes_mut() else {
                    let place = file.place(FileOp::Read, offset, 0);
                    return (Err(IoError::NotWritable { place, index }), buffers);
                };
                slices.push(bytes);
            }
            let result = read_full(&*file, &mut slices, offset);
            (result, buffers)
        }
        IoWork::Write { file, offset, buffers } => {
            let slices: Vec<&[u8]> = buffers.iter().map(super::IoBuffer::bytes).collect();
            let result = write_full(&*file, &slices, offset);
            (result, buffers)
        }
        IoWork::Sync { file } => {
            let result = file.sync_data().map_err(file.failed(FileOp::Sync, 0..0));
            (result, Vec::new())
        }
        IoWork::Call(call) => {
            let result =
                catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(IoError::Panicked { lane }));
            (result, Vec::new())
        }
    }
}

/// Tells the requester. A panic in its callback must not cost the lane a thread.
fn answer(lane: Lane, done: Box<dyn FnOnce(IoDone) + Send>, outcome: IoDone) {
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!(%lane, "the callback of an I/O request panicked");
    }
}

impl Drop for PsyncEngine {
    fn drop(&mut self) {
        self.shared.state.lock().stopped = true;
        self.shared.loads.notify_all();
        self.shared.stores.notify_all();
        self.shared.watch.notify_all();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}
