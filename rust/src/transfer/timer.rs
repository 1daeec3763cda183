//! Deadlines for those who await.
//!
//! A blocked thread watches the clock itself; a future has to be woken. One thread per manager
//! sleeps until the next deadline of a transfer that is still running. It starts with the first
//! deadline and ends with the timer and the last watch, so a transfer that outlives its manager
//! keeps its deadline; nothing waits for the thread.

use std::{collections::BTreeMap, thread, time::Instant};

use super::shield::shielded;
use crate::sync::{Arc, Condvar, Mutex, Weak};

/// Something with a deadline.
pub(super) trait Expire: Send + Sync {
    /// The deadline has passed.
    fn expire(&self);
}

/// Calls [`Expire::expire`] when deadlines pass.
#[derive(Clone)]
pub(crate) struct DeadlineTimer {
    owner: Arc<Owner>,
}

/// Ends the thread when the last timer handle and the last watch are gone.
struct Owner {
    queue: Arc<Queue>,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// By deadline, then by order of arrival.
    watched: BTreeMap<(Instant, u64), Weak<dyn Expire>>,
    arrivals: u64,
    running: bool,
    closed: bool,
}

/// One watched deadline; dropping it ends the watch.
pub(super) struct Watch {
    owner: Arc<Owner>,
    key: (Instant, u64),
}

impl DeadlineTimer {
    pub(crate) fn new() -> Self {
        let state = State { watched: BTreeMap::new(), arrivals: 0, running: false, closed: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
        Self { owner: Arc::new(Owner { queue }) }
    }

    /// Watches `deadline` for `target`. `None` when the system gives no thread: whoever blocks
    /// still keeps the deadline, and an engine still stops at it.
    pub(super) fn watch(&self, deadline: Instant, target: Weak<dyn Expire>) -> Option<Watch> {
        let queue = &self.owner.queue;
        let mut state = queue.state.lock();
        if !state.running {
            let for_thread = queue.clone();
            let spawned = thread::Builder::new()
                .name("dynamo-deadline".to_owned())
                .spawn(move || for_thread.run());
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread for deadlines: awaits may outlast theirs");
                return None;
            }
            state.running = true;
        }
        state.arrivals += 1;
        let key = (deadline, state.arrivals);
        let is_next = state.watched.keys().next().is_none_or(|next| key < *next);
        state.watched.insert(key, target);
        drop(state);
        if is_next {
            queue.changed.notify_one();
        }
        Some(Watch { owner: self.owner.clone(), key })
    }
}

impl Queue {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            let Some(&key) = state.watched.keys().next() else {
                state = self.changed.wait(state);
                continue;
            };
            let now = Instant::now();
            if key.0 > now {
                state = self.changed.wait_timeout(state, key.0 - now);
                continue;
            }
            let target = state.watched.remove(&key);
            drop(state);
            if let Some(target) = target.and_then(|target| target.upgrade()) {
                shielded("what a deadline ends", || target.expire());
            }
            state = self.state.lock();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.owner.queue.state.lock().watched.remove(&self.key);
    }
}
