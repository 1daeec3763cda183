//! What a forked child may do with its parent's objects: nothing, and that safely.
//!
//! A child has its parent's memory but not its threads, so a lock that a thread held at the fork is
//! held for ever. In a child every verb therefore raises before it touches a lock, and every drop
//! forgets instead of releasing: the parent still owns what the object stood for. Reading through
//! an export that was made before the fork goes on working, the memory is a private copy.

use crate::error::{Failure, Kind};

/// Something of ours that belongs to the process in which it was made.
pub(crate) struct Guarded<T> {
    /// `None` only while it is being dropped.
    value: Option<T>,
    process: u32,
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    fn is_at_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        match &self.value {
            Some(value) if self.is_at_home() => Ok(value),
            _ => Err(Failure::new(
                Kind::Manager,
                format!(
                    "made in process {}, used in its forked child {}: start workers with spawn, \
                     or make the block manager after the fork",
                    self.process,
                    std::process::id()
                ),
            )),
        }
    }
}

impl<T: Clone> Guarded<T> {
    /// Another handle of the same value.
    pub(crate) fn share(&self) -> Result<Self, Failure> {
        self.get().cloned().map(Self::new)
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if !self.is_at_home() {
            std::mem::forget(value);
        }
    }
}
