//! What goes down, what comes up, and what is there.
//!
//! A [`TierBlocks`] is one tier in full: slots, bytes and, below the first tier, seals. An edge
//! joins two of them: [`StoreEdge`] copies blocks down, [`LoadEdge`] brings them up.
//!
//! * A store seals: the sums of the copy's own pass become the seal of the lower block, which is
//!   registered only then. A load verifies: the sums of its pass must be those of the seal before
//!   the upper block is registered. In between, nobody can find either. A block that goes on to a
//!   drive takes the seal along that it has in memory, so that a bit that changed there shows.
//! * Stores and loads have engines of their own and never wait for each other.
//! * Write-through keeps weak handles in a bounded, deduplicating queue: a block that is evicted
//!   before its turn is simply no longer there. What the lower tier has no room for stays queued.
//! * A key that is on its way is not copied twice: who asks for it again shares the result.
//! * All tiers have one fingerprint. When it is switched every pool is reset, and a tier on drives is
//!   then found the blocks that they have under the new one.
//! * A block's drive follows from its name. Where a drive may be written only so much, what is offered
//!   for the first time is declined once that is used up.
//! * A slot of a drive that failed is tested and comes back or is retired; one that found no room
//!   comes back when there is some.
//! * [`Match`] is the longest prefix over all tiers, pinned where it was found.
//!
//! No lock of an edge is held while a pool is asked or an engine is given work.

mod admission;
mod arrivals;
mod counters;
mod drives;
mod epoch;
mod fingerprint;
mod flights;
mod lane;
mod load;
mod lookup;
mod mend;
mod pump;
mod queue;
mod reread;
mod seals;
mod store;
mod tier;

pub(crate) use admission::Admission;
pub use arrivals::{Onboard, OnboardOptions, Onboarded};
pub(crate) use epoch::ResetEpoch;
pub(crate) use fingerprint::CurrentFingerprint;
pub(crate) use load::{LoadEdge, Onward, in_place};
pub use lookup::Match;
pub(crate) use lookup::lookup;
pub(crate) use store::{StoreEdge, StoreOptions};
pub use tier::TierBlocks;
