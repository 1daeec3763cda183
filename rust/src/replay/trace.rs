//! A request trace in memory: who asked when for which blocks.
//!
//! Block ids are replaced by dense numbers in order of first appearance, so that whoever replays
//! the trace can use arrays where a table would be needed: 4 bytes a visit, 8 a unique block, 16 a
//! request. Requests are in order of their timestamps; those of one timestamp keep the order of
//! the file.

use std::collections::HashMap;

use super::error::TraceProblem;

/// Most blocks of one request: at 16 tokens a block, 67 million tokens.
pub(super) const MAX_REQUEST_BLOCKS: usize = 1 << 22;

/// Most block visits of a trace: 1 GiB of memory.
pub(super) const MAX_VISITS: usize = 1 << 28;

/// A trace, ready for replay.
#[derive(Clone, Debug)]
pub struct Trace {
    name: String,
    requests: Vec<Span>,
    visits: Vec<u32>,
    /// The trace's own id of each dense number.
    ids: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    timestamp_us: i64,
    start: u32,
    len: u32,
}

/// One request of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// When it came, in microseconds on the trace's own clock.
    pub timestamp_us: i64,
    /// Its blocks from the first on, each a number below [`Trace::unique_blocks`].
    pub blocks: &'a [u32],
}

impl Trace {
    /// The name of the trace, which its block keys are derived from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requests, those without a block included.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Blocks of all requests together.
    pub fn blocks(&self) -> u64 {
        self.visits.len() as u64
    }

    /// Different blocks.
    pub fn unique_blocks(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The id that the trace itself gives to a dense block number; `None` for a number that is not
    /// below [`unique_blocks`](Self::unique_blocks).
    pub fn block_id(&self, block: u32) -> Option<u64> {
        self.ids.get(block as usize).copied()
    }

    /// The requests in the order in which they are replayed.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'_>> {
        self.requests.iter().map(|span| Request {
            timestamp_us: span.timestamp_us,
            blocks: &self.visits[span.start as usize..][..span.len as usize],
        })
    }

    /// The same trace cut after its first `requests` requests. Block numbers stay as they are,
    /// those that no longer occur are dropped from the count of unique blocks.
    #[must_use]
    pub fn limited(&self, requests: usize) -> Trace {
        let mut builder = TraceBuilder::default();
        for request in self.requests().take(requests) {
            let ids = request.blocks.iter().map(|&block| self.ids[block as usize]);
            // Cannot exceed the limits: the whole trace did not.
            let _ = builder.push(request.timestamp_us, ids);
        }
        builder.finish(self.name.clone())
    }
}

/// Collects requests in the order of the file.
#[derive(Default)]
pub(super) struct TraceBuilder {
    requests: Vec<Span>,
    visits: Vec<u32>,
    ids: Vec<u64>,
    numbers: HashMap<u64, u32>,
}

impl TraceBuilder {
    /// Adds a request. After an error the builder is good for nothing more.
    pub(super) fn push(
        &mut self,
        timestamp_us: i64,
        blocks: impl Iterator<Item = u64>,
    ) -> Result<(), TraceProblem> {
        let start = self.visits.len();
        for id in blocks {
            if self.visits.len() - start == MAX_REQUEST_BLOCKS {
                return Err(TraceProblem::RequestTooLong { limit: MAX_REQUEST_BLOCKS });
            }
            if self.visits.len() == MAX_VISITS {
                return Err(TraceProblem::TraceTooLong { limit: MAX_VISITS });
            }
            let number = *self.numbers.entry(id).or_insert_with(|| {
                self.ids.push(id);
                self.ids.len() as u32 - 1
            });
            self.visits.push(number);
        }
        let len = (self.visits.len() - start) as u32;
        self.requests.push(Span { timestamp_us, start: start as u32, len });
        Ok(())
    }

    pub(super) fn finish(mut self, name: String) -> Trace {
        self.requests.sort_by_key(|span| span.timestamp_us);
        self.requests.shrink_to_fit();
        self.visits.shrink_to_fit();
        self.ids.shrink_to_fit();
        Trace { name, requests: self.requests, visits: self.visits, ids: self.ids }
    }
}
