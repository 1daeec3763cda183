//! `_Operation`: something to be done, for one coroutine to await.

use std::{
    convert::Infallible,
    mem,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use pyo3::{Borrowed, IntoPyObjectExt, prelude::*, types::PyNone};

use super::Bell;
use crate::{
    error::{Failure, Kind},
    fork::Guarded,
    logging,
};

/// Makes the result, or raises. It holds no Python objects, so it may be dropped on any thread.
type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// Something to be done. It begins with the first poll; dropping it before its end gives it up, like
/// cancelling it.
#[pyclass(frozen, name = "_Operation", module = "dynamo_llm._core")]
pub(crate) struct Operation {
    state: Guarded<Mutex<State>>,
}

enum State {
    Wanted(Wanted),
    Ended(Outcome),
    /// The result was taken, or nobody wants it any more.
    Over,
}

/// What has not ended yet.
struct Wanted {
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    begun: bool,
    give_up: Option<Box<dyn FnOnce() + Send>>,
    late: Option<Failure>,
}

/// The result of a verb that has none: `None`.
pub(crate) struct Nothing;

impl<'py> IntoPyObject<'py> for Nothing {
    type Target = PyNone;
    type Output = Borrowed<'py, 'py, PyNone>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyNone::get(py))
    }
}

impl Wanted {
    fn new<T>(future: impl Future<Output = Result<T, Failure>> + Send + 'static) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let future = async {
            let result = future.await;
            Box::new(|py: Python<'_>| result?.into_py_any(py)) as Outcome
        };
        Self { future: Box::pin(future), begun: false, give_up: None, late: None }
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if let Some(give_up) = self.give_up.take().filter(|_| self.begun) {
            give_up();
        }
    }
}

impl Operation {
    /// What `future` does; dropping that gives it up.
    pub(crate) fn new<T>(future: impl Future<Output = Result<T, Failure>> + Send + 'static) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        Self::wanted(Wanted::new(future))
    }

    /// What `future` does, or what it watches: `give_up` is called to give it up. Where the caller's
    /// time is up first, it goes on, and `late` is raised.
    pub(crate) fn watching<T>(
        future: impl Future<Output = Result<T, Failure>> + Send + 'static,
        give_up: impl FnOnce() + Send + 'static,
        late: Option<Failure>,
    ) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let mut wanted = Wanted::new(future);
        wanted.give_up = Some(Box::new(give_up));
        wanted.late = late;
        Self::wanted(wanted)
    }

    fn wanted(wanted: Wanted) -> Self {
        Self { state: Guarded::new(Mutex::new(State::Wanted(wanted))) }
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Failure> {
        Ok(self.state.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the state out, so that it is used and dropped outside the lock.
    fn take(&self) -> Result<State, Failure> {
        Ok(mem::replace(&mut *self.lock()?, State::Over))
    }
}

#[pymethods]
impl Operation {
    /// Go on with it. Whether it is over; where it is not, `bell` rings with `token` then.
    fn poll(&self, bell: &Bell, token: u64) -> Result<bool, Failure> {
        let waker = bell.waker(token)?;
        let mut state = self.lock()?;
        let State::Wanted(wanted) = &mut *state else { return Ok(true) };
        wanted.begun = true;
        match wanted.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Ok(false),
            Poll::Ready(outcome) => {
                wanted.give_up = None;
                let before = mem::replace(&mut *state, State::Ended(outcome));
                drop(state);
                drop(before);
                Ok(true)
            }
        }
    }

    /// What came out. Where it is not over, the caller's time is, and it goes on without it.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        logging::drain(py)?;
        match self.take()? {
            State::Ended(outcome) => outcome(py),
            State::Wanted(mut wanted) => {
                wanted.give_up = None;
                let late = wanted.late.take();
                let late = late.unwrap_or_else(|| Failure::new(Kind::Timeout, "it is not over"));
                Err(late.into())
            }
            State::Over => Err(Failure::manager("the result was taken before").into()),
        }
    }

    /// Give it up; what it would have brought is let go of.
    fn cancel(&self) -> Result<(), Failure> {
        drop(self.take()?);
        Ok(())
    }
}
