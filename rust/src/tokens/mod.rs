//! From token ids to block identities.

mod key;

pub use key::{EngineKey, Key, SequenceHash};
