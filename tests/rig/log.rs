//! A follower of the events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use dynamo_llm::block_manager::{
    SequenceHash, Tier,
    events::{BlockEvent, EventManager, TierCleared},
};

/// What a naive follower of the stream knows.
#[derive(Default)]
pub(crate) struct Log {
    resident: Mutex<BTreeMap<Tier, BTreeSet<SequenceHash>>>,
    counts: Mutex<BTreeMap<&'static str, usize>>,
}

impl Log {
    pub(crate) fn resident(&self, tier: Tier) -> BTreeSet<SequenceHash> {
        self.resident.lock().unwrap().get(&tier).cloned().unwrap_or_default()
    }

    pub(crate) fn count(&self, what: &'static str) -> usize {
        self.counts.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    fn add(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }
}

impl EventManager for Log {
    fn block_registered(&self, event: &BlockEvent) {
        self.add("registered");
        let mut resident = self.resident.lock().unwrap();
        let tier = resident.entry(event.tier).or_default();
        if let Some(parent) = event.parent {
            assert!(tier.contains(&parent), "a parent is told before its child");
        }
        assert!(tier.insert(event.key.unwrap().hash), "one copy is told once");
    }

    fn block_evicted(&self, event: &BlockEvent) {
        let mut resident = self.resident.lock().unwrap();
        assert!(resident.entry(event.tier).or_default().remove(&event.key.unwrap().hash));
    }

    fn tier_cleared(&self, event: &TierCleared) {
        self.add("cleared");
        self.resident.lock().unwrap().remove(&event.tier);
    }
}
