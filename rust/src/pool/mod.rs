//! The lifecycle of one tier's slots: who is where, ids and keys, never bytes.
//!
//! A slot is free, mutable (one owner may write it), active (a block with readers), inactive (a
//! block nobody uses, matchable until it is evicted) or quarantined. At every instant
//!
//! ```text
//! free + mutable + active + inactive + quarantined = capacity
//! ```
//!
//! Handles own: [`MutableSlots`] is unique, [`ImmutableSlots`] is shared and `Clone`,
//! [`WeakSlots`] owns nothing. Dropping the last handle returns its slots, the last block of a
//! batch first. A match pins what it returns in the same step that finds it.
//!
//! Duplicates of one key may coexist. Lookups give the *registered* one; when it goes, the oldest
//! live duplicate takes over; events and the index know 0 or 1 copies.
//!
//! The policy proposes a victim, the pool keeps chains whole: as long as an idle block in the same
//! tier continues the victim, the deepest such block goes first, so no prefix is lost before its
//! suffix.
//!
//! The slots of a pool may be in *sections*: runs of slot numbers among which a policy of its own
//! makes room, for a tier that is in several places where a block has to lie in one of them. An
//! allocation may ask for a slot of a section. Everything else is the pool's, whatever the section:
//! one index, one lock, one stream of events, and chains. To make room in one section a block of
//! another goes only where it continues the victim.
//!
//! What it costs: one mutex, held for index arithmetic only, never across a copy, I/O or callback;
//! no thread, no channel. 56 bytes a slot and 16 for its parent, committed when the slot is first
//! used (of several sections the last alone; the others' at once), 11 to 22 in the index, 4 in the
//! free list, and the policy's links: with LRU 98 bytes a block in a pool of 10 million. Engine
//! keys, where there are any, are 42 more.
//!
//! What it is not: it knows no storage (`manager` joins slots and bytes) and no other tier.

mod chain;
mod check;
mod error;
mod evict;
mod handles;
mod lookup;
mod options;
mod registration;
mod registry;
mod release;
mod ring;
mod section;
mod set_apart;
mod shared;
mod slot;
mod state;
#[cfg(doctest)]
mod typestate;
mod weak;

pub use error::PoolError;
pub use handles::{ImmutableSlots, MutableSlots};
pub use options::{Section, SlotPoolOptions};
pub use registration::Registration;
pub use section::SectionMetrics;
pub use shared::{EvictionMode, SlotPool};
pub use weak::WeakSlots;
