//! A call that may wait for a drive for ever, and somebody who does not.

use std::{thread, time::Instant};

use crate::{
    io::IoError,
    sync::{Arc, Condvar, Mutex},
};

/// What a call on a thread of its own will say.
pub(crate) struct Answer<T>(Arc<(Mutex<Option<T>>, Condvar)>);

impl<T: Send + 'static> Answer<T> {
    /// Starts the call.
    ///
    /// # Errors
    /// [`IoError::Thread`].
    pub(crate) fn of(
        name: &str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, IoError> {
        let answer = Arc::new((Mutex::new(None), Condvar::new()));
        let told = answer.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let said = call();
                *told.0.lock() = Some(said);
                told.1.notify_all();
            })
            .map_err(|error| IoError::Thread { reason: error.to_string() })?;
        Ok(Self(answer))
    }

    /// What it said, by then; otherwise it goes on unheard.
    pub(crate) fn by(self, deadline: Instant) -> Option<T> {
        let (answer, told) = &*self.0;
        let mut answer = answer.lock();
        loop {
            if let Some(said) = answer.take() {
                return Some(said);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            answer = told.wait_timeout(answer, left);
        }
    }
}
