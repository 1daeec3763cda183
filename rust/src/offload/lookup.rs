//! The longest prefix over all tiers, and where it is.

use std::fmt;

use super::TierBlocks;
use crate::{config::Tier, pool::ImmutableSlots, tokens::Key};

/// Blocks that are there, pinned: the longest prefix of what was asked for, each block in the
/// fastest tier that has it.
///
/// Blocks of tiers that are read back with verification are candidates until they have arrived.
/// Dropping a match releases it.
#[must_use = "dropping a match releases its blocks"]
#[derive(Clone)]
pub struct Match {
    asked: usize,
    /// In order; neighbours are in different tiers.
    segments: Vec<ImmutableSlots>,
}

impl Match {
    /// Blocks asked for.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Blocks found.
    pub fn len(&self) -> usize {
        self.segments.iter().map(ImmutableSlots::len).sum()
    }

    /// Whether not even the first block was found.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Blocks found in `tier`.
    pub fn count(&self, tier: Tier) -> usize {
        self.in_tier(tier).map(ImmutableSlots::len).sum()
    }

    /// The tier of each block, in order.
    pub fn tiers(&self) -> impl Iterator<Item = Tier> {
        self.segments
            .iter()
            .flat_map(|segment| std::iter::repeat_n(segment.pool().tier(), segment.len()))
    }

    /// The runs of neighbours in one tier, in order.
    pub fn segments(&self) -> &[ImmutableSlots] {
        &self.segments
    }

    /// Gives the handles away, in order.
    pub fn into_segments(self) -> Vec<ImmutableSlots> {
        self.segments
    }

    fn in_tier(&self, tier: Tier) -> impl Iterator<Item = &ImmutableSlots> {
        self.segments.iter().filter(move |segment| segment.pool().tier() == tier)
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Match({} of {}", self.len(), self.asked)?;
        for segment in &self.segments {
            write!(f, ", {} {}", segment.len(), segment.pool().tier())?;
        }
        f.write_str(")")
    }
}

/// Finds and pins the longest prefix of `keys` over `tiers`, fastest first.
///
/// Every tier is asked about each key at most twice, however the prefix is scattered. A block on a
/// drive that would not answer a load now is not there.
pub(crate) fn lookup(tiers: &[&TierBlocks], keys: &[Key]) -> Match {
    let tiers: Vec<_> = tiers.iter().filter(|tier| tier.serves()).collect();
    let mut segments = Vec::new();
    let mut found = 0;
    // The tier that has just said, and counted, that it lacks the next block.
    let mut ended = None;
    'prefix: while found < keys.len() {
        let rest = &keys[found..];
        let mut limit = rest.len();
        for (number, tier) in tiers.iter().enumerate() {
            if ended != Some(number) {
                let mut segment = tier.pool().match_prefix(&rest[..limit]);
                let serving = tier.serving(segment.ids());
                drop(segment.split_off(serving));
                if !segment.is_empty() {
                    found += segment.len();
                    ended = (segment.len() < limit).then_some(number);
                    segments.push(segment);
                    continue 'prefix;
                }
            }
            // A slower tier serves only up to where this one takes over again.
            limit = tier.pool().first_present(&rest[1..limit]).map_or(limit, |next| next + 1);
        }
        break;
    }
    Match { asked: keys.len(), segments }
}
