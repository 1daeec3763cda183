//! Synchronisation primitives, from std or from loom.
//!
//! Every lock, atomic and condition variable of the crate comes from here, so that
//! `--cfg dynamo_loom` swaps all of them for their model-checked twins.
//!
//! Locks do not poison: no code of ours panics while it holds one (critical sections are index
//! arithmetic on plain data), and a user's callback never runs under one.

#[cfg(not(dynamo_loom))]
mod real {
    pub(crate) use std::sync::atomic;
    pub(crate) use std::sync::{Arc, MutexGuard, Weak};
    use std::sync::{Condvar as StdCondvar, Mutex as StdMutex, PoisonError};
    use std::time::Duration;

    /// A mutex whose `lock` always succeeds.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(StdMutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(StdMutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A condition variable over [`Mutex`].
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(StdCondvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(StdCondvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits at most `timeout`; wake-ups may be spurious, callers check their condition.
        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Duration,
        ) -> MutexGuard<'a, T> {
            self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(dynamo_loom)]
mod real {
    use loom::sync::{Condvar as LoomCondvar, Mutex as LoomMutex};
    pub(crate) use loom::sync::{MutexGuard, atomic};
    use std::sync::PoisonError;
    pub(crate) use std::sync::{Arc, Weak};
    use std::time::Duration;

    /// A mutex whose `lock` always succeeds.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(LoomMutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(LoomMutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    /// A condition variable over [`Mutex`]; loom has no time, so a timed wait is a plain one.
    #[derive(Debug)]
    pub(crate) struct Condvar(LoomCondvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(LoomCondvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _timeout: Duration,
        ) -> MutexGuard<'a, T> {
            self.wait(guard)
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl Default for Condvar {
        fn default() -> Self {
            Self::new()
        }
    }
}

pub(crate) use real::{Arc, Condvar, Mutex, MutexGuard, Weak, atomic};
