//! How a Rust thread reaches an event loop: one eventfd per loop, and the tokens of what has ended.

use std::{
    mem,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Wake, Waker},
};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    error::{Failure, Kind},
    fork::Guarded,
};

/// What an event loop listens to. The descriptor is closed when the loop lets go of it, also while
/// there are operations that would still ring.
#[pyclass(frozen, name = "_Bell", module = "dynamo_llm._core")]
pub(crate) struct Bell {
    owner: Guarded<Owner>,
}

/// Closes the descriptor, whoever is ringing.
struct Owner(Arc<Inner>);

struct Inner(Mutex<State>);

struct State {
    /// `None` when the loop has gone.
    descriptor: Option<OwnedFd>,
    /// Tokens rung since the loop looked last.
    rung: Vec<u64>,
}

/// Rings once for one await. It does not keep the bell.
struct Ring {
    bell: Weak<Inner>,
    token: u64,
}

impl Bell {
    /// A waker that rings with `token`.
    pub(super) fn waker(&self, token: u64) -> Result<Waker, Failure> {
        let bell = Arc::downgrade(&self.owner.get()?.0);
        Ok(Arc::new(Ring { bell, token }).into())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, token: u64) {
        let mut state = self.lock();
        let Some(descriptor) = &state.descriptor else { return };
        if state.rung.is_empty() {
            // Fails only when the counter is full, and then the loop is awake already.
            let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
        }
        state.rung.push(token);
    }

    fn drain(&self) -> Vec<u64> {
        let mut state = self.lock();
        if let Some(descriptor) = &state.descriptor {
            // Fails only when nothing has rung.
            let _ = rustix::io::read(descriptor, &mut [0; 8]);
        }
        mem::take(&mut state.rung)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().descriptor = None;
    }
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(bell) = self.bell.upgrade() {
            bell.ring(self.token);
        }
    }
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> Result<Self, Failure> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let descriptor = descriptor.map_err(|error| {
            let message = format!("no eventfd for this event loop: {error}; raise `ulimit -n`");
            Failure::new(Kind::Manager, message)
        })?;
        let state = State { descriptor: Some(descriptor), rung: Vec::new() };
        let owner = Owner(Arc::new(Inner(Mutex::new(state))));
        Ok(Self { owner: Guarded::new(owner) })
    }

    /// The descriptor, readable when something has ended.
    fn fileno(&self) -> Result<i32, Failure> {
        let state = self.owner.get()?.0.lock();
        // Open as long as this object is there.
        Ok(state.descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    /// The tokens of what has ended since the last call.
    fn drain(&self) -> Result<Vec<u64>, Failure> {
        Ok(self.owner.get()?.0.drain())
    }
}
