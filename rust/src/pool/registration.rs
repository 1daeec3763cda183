//! Under which name a block enters a pool.

use crate::tokens::{EngineKey, Key, SequenceHash};

/// The name of a block and its place in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// What the block will be found under.
    pub key: Key,
    /// Hash of the block that this one continues, in the same group; `None` for the first block
    /// of a sequence and where the parent is not known.
    pub parent: Option<SequenceHash>,
    /// The engine's own name, compared whole on every hit.
    pub engine_key: Option<EngineKey>,
}

impl Registration {
    /// A block with no known parent.
    pub const fn new(key: Key) -> Self {
        Self { key, parent: None, engine_key: None }
    }

    /// The blocks of one sequence, first to last, in `group`. `parent` is the hash before the
    /// first of them, if there is one.
    pub fn chain(hashes: &[SequenceHash], group: u32, parent: Option<SequenceHash>) -> Vec<Self> {
        let mut parent = parent;
        hashes
            .iter()
            .map(|&hash| {
                let registration = Self { key: Key { hash, group }, parent, engine_key: None };
                parent = Some(hash);
                registration
            })
            .collect()
    }
}

impl From<Key> for Registration {
    fn from(key: Key) -> Self {
        Self::new(key)
    }
}
