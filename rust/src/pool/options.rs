//! What a pool is made of.

use std::ops::Range;

use super::{PoolError, SlotPool};
use crate::{
    config::Tier,
    events::EventStream,
    eviction::{EvictionPolicy, SlotId},
    sync::Arc,
};

/// A run of slots among which a policy of its own makes room.
///
/// The sections of a pool follow each other: the first has the slots from 0 on, each the ones after
/// those before it. What sets their slots apart is known to whoever allocates in them.
pub struct Section {
    /// Slots, at least 1; those of all sections together at most [`SlotPool::MAX_CAPACITY`].
    pub capacity: usize,
    /// Which block goes when room is needed; sized for `capacity`, and told slots as they are
    /// counted within the section. It runs under the pool's lock, so it must neither block nor use
    /// the pool.
    pub policy: Box<dyn EvictionPolicy>,
}

/// What a pool is made of.
pub struct SlotPoolOptions {
    /// The tier it serves; names it in errors, events and status.
    pub tier: Tier,
    /// Its slots, in order; at least one section.
    pub sections: Vec<Section>,
    /// Where the pool's events go.
    pub events: Option<Arc<EventStream>>,
}

impl SlotPoolOptions {
    /// A pool whose slots are all alike, `capacity` of them under one `policy`, without events.
    pub fn new(tier: Tier, capacity: usize, policy: Box<dyn EvictionPolicy>) -> Self {
        Self { tier, sections: vec![Section { capacity, policy }], events: None }
    }

    /// The slots of each section.
    ///
    /// # Errors
    /// [`PoolError::InvalidCapacity`].
    pub(super) fn ranges(&self) -> Result<Vec<Range<SlotId>>, PoolError> {
        let (tier, max) = (self.tier, SlotPool::MAX_CAPACITY);
        let invalid = |capacity| PoolError::InvalidCapacity { tier, capacity, max };
        let mut ranges = Vec::with_capacity(self.sections.len());
        let mut end = 0;
        for &Section { capacity, .. } in &self.sections {
            let base = end;
            end = capacity.saturating_add(base);
            if capacity == 0 || end > max {
                return Err(invalid(if capacity == 0 { 0 } else { end }));
            }
            ranges.push(base as SlotId..end as SlotId);
        }
        if ranges.is_empty() { Err(invalid(0)) } else { Ok(ranges) }
    }
}
