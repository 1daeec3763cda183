//! Requests, and who carries them out.

use std::fmt;
use std::time::Instant;

use super::{Health, IoBuffer, IoError, IoFile};
use crate::sync::{Arc, Weak};

/// Which way the bytes go. The lanes share nothing but the drive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lane {
    /// From the drive: somebody waits for it.
    Load,
    /// To the drive, in the background.
    Store,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "load",
            Self::Store => "store",
        })
    }
}

/// What is to be done.
#[non_exhaustive]
pub enum IoWork {
    /// Fills the buffers, in order, from a place in a file.
    Read {
        /// The file.
        file: Arc<dyn IoFile>,
        /// First byte.
        offset: u64,
        /// Where the bytes go.
        buffers: Vec<IoBuffer>,
    },
    /// Writes the buffers, in order, to a place in a file.
    Write {
        /// The file.
        file: Arc<dyn IoFile>,
        /// First byte.
        offset: u64,
        /// Where the bytes come from.
        buffers: Vec<IoBuffer>,
    },
    /// Makes durable what was written to a file.
    Sync {
        /// The file.
        file: Arc<dyn IoFile>,
    },
    /// Anything else that may have to wait for the drive: growing a file, writing records.
    Call(Box<dyn FnOnce() -> Result<(), IoError> + Send>),
}

impl IoWork {
    /// The buffers, when nothing is to be done any more.
    pub fn into_buffers(self) -> Vec<IoBuffer> {
        match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => buffers,
            Self::Sync { .. } | Self::Call(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for IoWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { file, offset, .. } => write!(f, "Read({} at {offset})", file.path()),
            Self::Write { file, offset, .. } => write!(f, "Write({} at {offset})", file.path()),
            Self::Sync { file } => write!(f, "Sync({})", file.path()),
            Self::Call(_) => f.write_str("Call"),
        }
    }
}

/// What became of a request, and its buffers.
#[derive(Debug)]
pub struct IoDone {
    /// All bytes were transferred, or why not.
    pub result: Result<(), IoError>,
    /// The buffers, in order. After a failed read they hold anything.
    pub buffers: Vec<IoBuffer>,
}

/// A request.
pub struct IoRequest {
    /// Who it queues with.
    pub lane: Lane,
    /// What to do.
    pub work: IoWork,
    /// The latest moment at which it may begin.
    pub deadline: Option<Instant>,
    /// Told once, on a thread of the engine, at the end. It should be quick, and may submit.
    pub done: Box<dyn FnOnce(IoDone) + Send>,
}

impl fmt::Debug for IoRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("IoRequest");
        f.field("lane", &self.lane).field("work", &self.work).field("deadline", &self.deadline);
        f.finish_non_exhaustive()
    }
}

/// Carries out requests.
pub trait IoEngine: fmt::Debug + Send + Sync {
    /// What it is, for logs.
    fn name(&self) -> &str;

    /// Queues a request. Never waits.
    ///
    /// # Errors
    ///
    /// The request as it was, not to be answered, and why: [`IoError::QueueFull`],
    /// [`IoError::Sick`], [`IoError::Expired`] at its deadline, [`IoError::Stopped`],
    /// [`IoError::Thread`].
    fn submit(&self, request: IoRequest) -> Result<IoTicket, (IoError, Box<IoRequest>)>;

    /// Whether a lane can be used.
    fn health(&self, lane: Lane) -> Health;
}

/// Takes back requests; what an engine gives to its tickets.
pub(super) trait Cancel: Send + Sync {
    /// Ends the request if it has not begun.
    fn cancel(&self, lane: Lane, id: u64);
}

/// A request that was accepted. Dropping it changes nothing.
#[derive(Clone)]
pub struct IoTicket {
    engine: Weak<dyn Cancel>,
    lane: Lane,
    id: u64,
}

impl IoTicket {
    pub(super) fn new(engine: Weak<dyn Cancel>, lane: Lane, id: u64) -> Self {
        Self { engine, lane, id }
    }

    /// Ends the request if it has not begun: it is answered with [`IoError::Cancelled`], on a thread
    /// of the engine. One that is under way goes on, with its buffers, and is answered as it ends.
    pub fn cancel(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.cancel(self.lane, self.id);
        }
    }
}

impl fmt::Debug for IoTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoTicket({} {})", self.lane, self.id)
    }
}
