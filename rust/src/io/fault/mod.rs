//! Volumes that misbehave on purpose, for tests and drills.
//!
//! * [`FaultVolume`] wears any volume: errors, short transfers, torn writes, delays and hangs, all by
//!   seed; it can stall as a whole until told to go on, and has bad sectors where told to.
//! * [`MemoryVolume`] lies in memory and knows, sector by sector, what was made durable and what was
//!   not: it can be stopped at any operation, and gives the volume that would be found after the
//!   process was killed, or after the power failed.

mod memory;
mod mood;
mod volume;

pub use memory::{Crash, MemoryVolume, SECTOR};
pub use mood::Faults;
pub use volume::FaultVolume;

/// A bijective mixer (the finaliser of `SplitMix64`).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
