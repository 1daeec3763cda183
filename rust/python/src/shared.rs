//! What a manager's Python objects share.

use std::sync::atomic::{AtomicBool, Ordering};

use dynamo_llm::block_manager::{BlockPool, KvBlockManager, Tier};

use crate::{error::Failure, settings::Extras};

/// The manager, and what only its Python face knows.
pub(crate) struct Shared {
    pub(crate) manager: KvBlockManager,
    /// Ends the verbs before the manager's own end, which waits for copies.
    closed: AtomicBool,
    pub(crate) extras: Extras,
}

impl Shared {
    pub(crate) fn new(manager: KvBlockManager, extras: Extras) -> Self {
        Self { manager, closed: AtomicBool::new(false), extras }
    }

    /// The manager, while it is open.
    pub(crate) fn open(&self) -> Result<&KvBlockManager, Failure> {
        if self.is_closed() {
            return Err(Failure::manager("the block manager is closed; make a new one"));
        }
        Ok(&self.manager)
    }

    /// The pool of `tier`, while the manager is open.
    pub(crate) fn pool(&self, tier: Tier) -> Result<&BlockPool, Failure> {
        self.open()?.pool(tier).ok_or_else(|| {
            Failure::manager(format!(
                "the {tier} tier is off; give {tier}_blocks a number to switch it on"
            ))
        })
    }

    /// Number of the GPU, for the tier that may lie on one.
    pub(crate) fn device_id(&self, tier: Tier) -> i32 {
        if tier == Tier::Device { self.extras.device_id } else { 0 }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the verbs; whether they were open.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }
}
