//! Where an engine reads the time.
//!
//! Health and deadlines are judged against a clock that can be exchanged, so that what depends on
//! time is tested without waiting for it.

use std::fmt;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// A clock that never goes back.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present moment.
    fn now(&self) -> Instant;
}

/// The clock of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that stands still until it is told to go on.
#[derive(Debug)]
pub struct ManualClock(Mutex<Instant>);

impl ManualClock {
    /// A clock that shows the present moment.
    pub fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Moves it forward. An engine notices at its next `tick`.
    pub fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock()
    }
}
