//! Which slots hold no block and are not free either.

use super::{
    SlotPool,
    slot::{Life, Standing},
    state::State,
};
use crate::eviction::SlotId;

impl SlotPool {
    /// Slots that are being written, and slots out of use because their bytes proved bad, those
    /// included that somebody still reads. Costs a look at each slot. Tells nobody of events, so that
    /// it may be asked under a lock.
    pub(crate) fn set_apart(&self) -> Vec<SlotId> {
        self.lock().set_apart()
    }
}

impl State {
    fn set_apart(&self) -> Vec<SlotId> {
        let apart = self.slots.iter().enumerate().filter(|(_, slot)| match slot.life {
            Life::Mutable | Life::Quarantined => true,
            Life::Active => slot.standing == Standing::Suspect,
            Life::Free | Life::Inactive => false,
        });
        apart.map(|(id, _)| id as SlotId).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        config::{EvictionKind, Tier},
        events::{BlockEvent, EventManager, EventStream},
        pool::{SlotPoolOptions, state::Ids},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    struct Counting(AtomicUsize);

    impl EventManager for Counting {
        fn block_allocated(&self, _: &BlockEvent) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_asks_under_a_lock_tells_nobody_of_events() {
        let sink = Arc::new(Counting(AtomicUsize::new(0)));
        let pool = SlotPool::new(SlotPoolOptions {
            events: Some(Arc::new(EventStream::new(sink.clone()))),
            ..SlotPoolOptions::new(Tier::Disk, 4, EvictionKind::Lru.build(4))
        })
        .unwrap();
        // Recorded by somebody who has not come to telling it.
        pool.lock().allocate(1, &mut Ids::new());
        assert_eq!(pool.set_apart(), [0]);
        assert!(pool.take_quarantined_slot(0).is_none());
        assert_eq!(sink.0.load(Ordering::Relaxed), 0);
        pool.available();
        assert_eq!(sink.0.load(Ordering::Relaxed), 1);
    }
}
