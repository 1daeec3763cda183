//! Work that takes long, as a future.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::error::Failure;

/// The result of work on another thread. Dropping it leaves the work to end for itself.
struct Done<T> {
    slot: Arc<Slot<T>>,
}

/// The thread's end.
struct Doing<T> {
    slot: Arc<Slot<T>>,
}

struct Slot<T>(Mutex<State<T>>);

enum State<T> {
    Waiting(Option<Waker>),
    Ended(Result<T, Failure>),
    Taken,
}

/// Runs `work` on a thread of its own.
pub(super) fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<impl Future<Output = Result<T, Failure>> + Send + 'static, Failure> {
    let slot = Arc::new(Slot(Mutex::new(State::Waiting(None))));
    let doing = Doing { slot: slot.clone() };
    let spawned = std::thread::Builder::new().name("dynamo-call".to_owned()).spawn(move || {
        let result = work();
        doing.end(result);
    });
    spawned.map_err(|error| Failure::manager(format!("no thread for this call: {error}")))?;
    Ok(Done { slot })
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Doing<T> {
    fn end(&self, result: Result<T, Failure>) {
        let mut state = self.slot.lock();
        let State::Waiting(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = State::Ended(result);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Doing<T> {
    fn drop(&mut self) {
        // Does nothing, unless the work has panicked.
        self.end(Err(Failure::manager("the call ended without a result")));
    }
}

impl<T> Future for Done<T> {
    type Output = Result<T, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if let State::Waiting(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ended(result) => Poll::Ready(result),
            _ => Poll::Ready(Err(Failure::manager("the result was taken before"))),
        }
    }
}
