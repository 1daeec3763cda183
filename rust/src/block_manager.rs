//! The public face: every public name in one place.

pub use crate::config::Tier;
pub use crate::eviction::{EvictionPolicy, SlotId};
pub use crate::tokens::{EngineKey, Key, SequenceHash};
