//! `BlockPool`: the blocks of one tier.

use std::sync::Arc;

use dynamo_llm::block_manager::{BlockPool as Core, Tier, pool::MutableSlots};
use pyo3::prelude::*;

use crate::{
    argument::count,
    batch::Batch,
    block_list::{BlockList, Selection},
    error::Failure,
    fork::Guarded,
    gather::Gathered,
    hashes::{Hashes, HashesArgument},
    shared::Shared,
    wait::work,
};

/// The blocks of one tier: who is where. At every instant each slot is in exactly one state.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct BlockPool {
    shared: Guarded<Arc<Shared>>,
    tier: Tier,
}

impl BlockPool {
    pub(crate) fn new(shared: Guarded<Arc<Shared>>, tier: Tier) -> Self {
        Self { shared, tier }
    }

    fn open(&self) -> Result<(&Shared, &Core), Failure> {
        let shared = self.shared.get()?;
        Ok((shared, shared.pool(self.tier)?))
    }
}

/// Takes blocks to write.
pub(crate) fn allocate(
    py: Python<'_>,
    shared: &Shared,
    pool: &Core,
    n: &Bound<'_, PyAny>,
) -> PyResult<BlockList> {
    let count = count("n", n)?;
    let take = || -> Result<MutableSlots, Failure> {
        let slots = pool.allocate_slots(count)?;
        if shared.extras.zero_on_allocate {
            pool.blocks().wipe(&slots)?;
        }
        Ok(slots)
    };
    // Wiping takes time with the bytes, not with the blocks.
    let slots =
        if shared.extras.zero_on_allocate { py.detach(take) } else { work(py, count, take) }?;
    let device_id = shared.device_id(pool.tier());
    Ok(BlockList::new(Batch::writable(pool.blocks().clone(), device_id, slots)))
}

/// Publishes blocks.
fn register(
    pool: &Core,
    selection: Selection,
    hashes: Option<Hashes>,
    aliases: bool,
    device_id: i32,
) -> Result<Batch, Failure> {
    let tier = pool.blocks();
    if selection.len() == 0 {
        let none = pool.match_slots(&[])?;
        return Ok(Batch::registered(tier.clone(), device_id, none, Hashes::new(Vec::new())));
    }
    let writable = Gathered::take(selection, tier, aliases)?;
    let named = match &hashes {
        Some(hashes) => writable.check_names(hashes.as_slice()).map(|()| hashes.registrations()),
        None => writable.own_names(),
    };
    let registrations = match named {
        Ok(registrations) => registrations,
        Err(error) => {
            writable.from.put_back(writable.slots);
            return Err(error);
        }
    };
    match pool.register_slots(writable.slots, &registrations) {
        Ok(slots) => {
            writable.from.registered(&slots);
            let own = || registrations.iter().map(|name| name.key.hash).collect();
            let hashes = hashes.unwrap_or_else(|| Hashes::new(own()));
            Ok(Batch::registered(tier.clone(), device_id, slots, hashes))
        }
        Err((error, slots)) => {
            writable.from.put_back(slots);
            Err(error.into())
        }
    }
}

#[pymethods]
impl BlockPool {
    /// Slots of the tier.
    fn total_blocks(&self) -> Result<usize, Failure> {
        Ok(self.open()?.1.total_blocks())
    }

    /// Slots that an allocation could have now: free, and registered but held by nobody.
    fn available_blocks(&self) -> Result<usize, Failure> {
        Ok(self.open()?.1.available_blocks())
    }

    /// `1 - available / total`.
    fn usage(&self) -> Result<f64, Failure> {
        Ok(self.open()?.1.usage_rate())
    }

    /// Take `n` writable blocks, evicting unheld ones where none is free: all or nothing.
    fn allocate_blocks(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<BlockList> {
        let (shared, pool) = self.open()?;
        allocate(py, shared, pool, n)
    }

    /// Publish filled blocks under their hashes, parent before child; `blocks` becomes invalid.
    #[pyo3(signature = (blocks, hashes=None, *, allow_aliases=false))]
    fn register_blocks(
        &self,
        py: Python<'_>,
        blocks: &Bound<'_, PyAny>,
        hashes: Option<HashesArgument>,
        allow_aliases: bool,
    ) -> PyResult<BlockList> {
        let (shared, pool) = self.open()?;
        let selection = Selection::new("blocks", blocks)?;
        let hashes = hashes.map(|hashes| hashes.0);
        let (blocks, named) = (selection.len(), hashes.as_ref().map(|h| h.as_slice().len()));
        if named.is_some_and(|named| named != blocks) {
            return Err(Failure::argument(format!(
                "hashes: {} for {blocks} blocks; give one for each block",
                named.unwrap_or_default()
            ))
            .into());
        }
        let device_id = shared.device_id(self.tier);
        let registered =
            work(py, blocks, || register(pool, selection, hashes, allow_aliases, device_id));
        Ok(BlockList::new(registered?))
    }

    /// Find and hold the longest prefix of `hashes` that this tier has; perhaps nothing.
    fn match_sequence_hashes(&self, py: Python<'_>, hashes: HashesArgument) -> PyResult<BlockList> {
        let (shared, pool) = self.open()?;
        let hashes = hashes.0;
        let asked = hashes.as_slice().len();
        let found = work(py, asked, || pool.match_slots(&hashes.keys())).map_err(Failure::from)?;
        let hashes = hashes.prefix(found.len());
        let device_id = shared.device_id(self.tier);
        Ok(BlockList::new(Batch::registered(pool.blocks().clone(), device_id, found, hashes)))
    }

    fn __repr__(&self) -> String {
        let Ok(shared) = self.shared.get() else {
            return "<BlockPool of a parent process>".to_owned();
        };
        let Some(pool) = shared.manager.pool(self.tier) else {
            return format!("<BlockPool, {} tier>", self.tier);
        };
        let (available, total) = (pool.available_blocks(), pool.total_blocks());
        let closed = if shared.is_closed() { ", closed" } else { "" };
        format!("<BlockPool, {} tier: {available} of {total} available{closed}>", self.tier)
    }
}
