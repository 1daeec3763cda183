//! The caller's end of a transfer.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use super::{
    TransferError,
    engine::Ticket,
    shield::shielded,
    timer::{DeadlineTimer, Expire, Watch},
};
use crate::sync::{Arc, Condvar, Mutex};

/// How a block came to be where it was wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It was copied, and verified where there was a seal to verify against.
    Copied,
    /// It was there already.
    Present,
}

/// What became of one block.
pub type BlockResult = Result<Arrival, TransferError>;

/// A running or finished transfer of some blocks.
///
/// `.await` it, [`wait`](Self::wait) for it, or drop it: dropping lets the transfer go on. After
/// [`cancel`](Self::cancel) or the deadline it is over at once for the caller; the copies under
/// way end in the background and their slots stay out of use until then.
#[must_use = "a transfer reports per block what arrived"]
pub struct Transfer {
    shared: Arc<Shared>,
}

/// The other end: where results are put. The first result of a block counts.
#[derive(Clone)]
pub(crate) struct TransferSink {
    shared: Arc<Shared>,
}

struct Shared {
    ticket: Arc<Ticket>,
    state: Mutex<State>,
    over: Condvar,
}

struct State {
    results: Vec<Option<BlockResult>>,
    pending: usize,
    /// Who awaits the end, by seat: each has the waker of its last poll.
    wakers: BTreeMap<u64, Waker>,
    /// Seats given out so far.
    seats: u64,
    watch: Option<Watch>,
}

/// The seat of the handle itself.
const OWN_SEAT: u64 = 0;

/// The results, for one of several who await them.
struct Results {
    shared: Arc<Shared>,
    seat: u64,
}

/// Both ends of a transfer of `blocks` blocks that ends at `deadline` at the latest.
pub(crate) fn transfer(
    blocks: usize,
    deadline: Option<Instant>,
    timer: &DeadlineTimer,
) -> (Transfer, TransferSink) {
    let shared = Arc::new(Shared {
        ticket: Arc::new(Ticket::new(deadline)),
        state: Mutex::new(State {
            results: vec![None; blocks],
            pending: blocks,
            wakers: BTreeMap::new(),
            seats: OWN_SEAT,
            watch: None,
        }),
        over: Condvar::new(),
    });
    if let Some(deadline) = deadline.filter(|_| blocks > 0) {
        let expire: Arc<dyn Expire> = shared.clone();
        let watch = timer.watch(deadline, Arc::downgrade(&expire));
        shared.state.lock().watch = watch;
    }
    (Transfer { shared: shared.clone() }, TransferSink { shared })
}

impl Shared {
    /// Lets `put` place results, which returns how many were missing, and ends the transfer with
    /// the last.
    fn settle(&self, put: impl FnOnce(&mut [Option<BlockResult>]) -> usize) {
        let mut state = self.state.lock();
        let placed = put(&mut state.results);
        state.pending -= placed;
        if placed == 0 || state.pending > 0 {
            return;
        }
        let (wakers, watch) = (std::mem::take(&mut state.wakers), state.watch.take());
        drop(state);
        drop(watch);
        self.over.notify_all();
        for waker in wakers.into_values() {
            shielded("a waker", || waker.wake());
        }
    }

    fn poll(&self, seat: u64, context: &Context<'_>) -> Poll<Vec<BlockResult>> {
        // Wakers are foreign code: made before the lock, dropped after it.
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        if state.pending == 0 {
            return Poll::Ready(state.all());
        }
        let replaced = state.wakers.insert(seat, waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    fn settle_rest(&self, error: &TransferError) {
        self.settle(|results| {
            let missing = results.iter_mut().filter(|result| result.is_none());
            missing.map(|result| *result = Some(Err(error.clone()))).count()
        });
    }
}

impl Expire for Shared {
    fn expire(&self) {
        self.settle_rest(&TransferError::DeadlineExceeded);
    }
}

impl TransferSink {
    pub(crate) fn ticket(&self) -> &Arc<Ticket> {
        &self.shared.ticket
    }

    pub(crate) fn set(&self, index: usize, result: BlockResult) {
        self.shared.settle(|results| match results.get_mut(index) {
            Some(missing @ None) => {
                *missing = Some(result);
                1
            }
            _ => 0,
        });
    }
}

impl Transfer {
    /// A transfer that is over.
    pub(crate) fn finished(results: Vec<BlockResult>) -> Self {
        let state = State {
            results: results.into_iter().map(Some).collect(),
            pending: 0,
            wakers: BTreeMap::new(),
            seats: OWN_SEAT,
            watch: None,
        };
        let shared =
            Shared { ticket: Arc::default(), state: Mutex::new(state), over: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// A transfer of no blocks.
    pub(crate) fn of_nothing() -> Self {
        Self::finished(Vec::new())
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.shared.state.lock().results.len()
    }

    /// Whether it is a transfer of nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every block has a result.
    pub fn is_over(&self) -> bool {
        self.shared.state.lock().pending == 0
    }

    /// Gives up what has not arrived. The call returns at once and the transfer is over.
    pub fn cancel(&self) {
        self.shared.ticket.cancel();
        self.shared.settle_rest(&TransferError::Cancelled);
    }

    /// The results, for one more to await while others do, or wait: dropping this future gives up
    /// that wait alone.
    pub fn results(&self) -> impl Future<Output = Vec<BlockResult>> + Send + Sync + use<> {
        let mut state = self.shared.state.lock();
        state.seats += 1;
        Results { shared: self.shared.clone(), seat: state.seats }
    }

    /// Waits for all results, at most `timeout` and never past the deadline; `None` when they are
    /// not there by then. Blocks the thread, never a runtime: there is none in here.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Vec<BlockResult>> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let deadline = self.shared.ticket.deadline();
        let mut state = self.shared.state.lock();
        while state.pending > 0 {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                drop(state);
                self.shared.expire();
                state = self.shared.state.lock();
                continue;
            }
            if until.is_some_and(|until| now >= until) {
                return None;
            }
            let wake = [until, deadline].into_iter().flatten().min();
            state = match wake {
                Some(wake) => self.shared.over.wait_timeout(state, wake - now),
                None => self.shared.over.wait(state),
            };
        }
        Some(state.all())
    }
}

impl State {
    fn all(&self) -> Vec<BlockResult> {
        self.results.iter().flatten().cloned().collect()
    }
}

impl Future for Transfer {
    type Output = Vec<BlockResult>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.poll(OWN_SEAT, context)
    }
}

impl Future for Results {
    type Output = Vec<BlockResult>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.poll(self.seat, context)
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        let waker = self.shared.state.lock().wakers.remove(&self.seat);
        drop(waker);
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        write!(f, "Transfer({} of {} blocks pending)", state.pending, state.results.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_of_several_waits_is_woken_once_and_given_up_alone() {
        let (transfer, sink) = transfer(1, None, &DeadlineTimer::new());
        let wakers: [std::sync::Arc<Woken>; 3] = Default::default();
        let mut given_up = Box::pin(transfer.results());
        let mut first = pin!(transfer.results());
        let mut own = pin!(transfer);
        for _ in 0..2 {
            let [a, b, c] = wakers.clone().map(Waker::from);
            assert!(given_up.as_mut().poll(&mut Context::from_waker(&a)).is_pending());
            assert!(first.as_mut().poll(&mut Context::from_waker(&b)).is_pending());
            assert!(own.as_mut().poll(&mut Context::from_waker(&c)).is_pending());
        }
        drop(given_up);
        assert_eq!(std::sync::Arc::strong_count(&wakers[0]), 1);
        sink.set(0, Ok(Arrival::Copied));
        assert_eq!(wakers.each_ref().map(|woken| woken.0.load(Ordering::SeqCst)), [0, 1, 1]);
        let mut context = Context::from_waker(Waker::noop());
        let all = Poll::Ready(vec![Ok(Arrival::Copied)]);
        assert_eq!(first.poll(&mut context), all);
        assert_eq!(own.poll(&mut context), all);
    }
}
