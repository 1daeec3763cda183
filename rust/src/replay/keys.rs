//! The names of a trace's blocks.
//!
//! A block's sequence hash is the first 16 bytes of BLAKE3 over the trace's name, in UTF-8, and the
//! block's id in the trace as 8 bytes, little-endian. The id has a fixed length, so no two traces
//! and ids are confused. The same trace gives the same names in every process.

use super::{Request, Trace};
use crate::tokens::SequenceHash;

/// The names of the blocks of one trace.
pub(super) struct Keys<'a> {
    trace: &'a Trace,
    /// The name of the trace, then room for an id.
    text: Vec<u8>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        let mut text = trace.name().as_bytes().to_vec();
        text.extend([0; size_of::<u64>()]);
        Self { trace, text }
    }

    /// The names of a request's blocks, in order.
    pub(super) fn of(&mut self, request: Request<'_>) -> Vec<SequenceHash> {
        let ids = request.blocks.iter().filter_map(|&block| self.trace.block_id(block));
        let at = self.text.len() - size_of::<u64>();
        ids.map(|id| {
            self.text[at..].copy_from_slice(&id.to_le_bytes());
            let digest = u128::from_le_bytes(first_half(blake3::hash(&self.text).as_bytes()));
            SequenceHash::from_u128(digest)
        })
        .collect()
    }
}

fn first_half(digest: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|at| digest[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_for_ever() {
        let mut builder = crate::replay::trace::TraceBuilder::default();
        assert!(builder.push(0, [0, u64::MAX].into_iter()).is_ok());
        let trace = builder.finish("chat".to_owned());
        let names: Vec<String> = trace
            .requests()
            .flat_map(|request| Keys::new(&trace).of(request))
            .map(|name| name.to_string())
            .collect();
        // As an independent implementation of BLAKE3 gives them.
        assert_eq!(names, ["0289d79db62cbaffd511344f821be3c2", "2f33a0968f7fd447fd3262bf8104c15f"]);
    }
}
