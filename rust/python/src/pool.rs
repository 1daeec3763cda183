//! `BlockPool`: the blocks of one tier.

use std::sync::Arc;

use dynamo_llm::block_manager::{BlockPool as Core, Tier};
use pyo3::prelude::*;

use crate::{
    argument::count,
    asyncio::{self, Operation},
    batch::Batch,
    block_list::{BlockList, Selection},
    error::Failure,
    fork::Guarded,
    gather::Gathered,
    hashes::{Hashes, HashesArgument},
    logging,
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

    /// What it belongs to, while that is open.
    fn open(&self) -> Result<&Arc<Shared>, Failure> {
        let shared = self.shared.get()?;
        shared.pool(self.tier)?;
        Ok(shared)
    }

    fn pool(&self) -> Result<&Core, Failure> {
        self.shared.get()?.pool(self.tier)
    }
}

/// Wiping no more than this many bytes takes no longer than to begin a thread for it.
const BRIEF_BYTES: usize = 1 << 20;

/// Takes blocks to write.
fn take(shared: &Shared, tier: Tier, count: usize) -> Result<BlockList, Failure> {
    let pool = shared.pool(tier)?;
    let slots = pool.allocate_slots(count)?;
    if shared.extras.zero_on_allocate {
        pool.blocks().wipe(&slots)?;
    }
    let (tier, device_id) = (pool.blocks().clone(), shared.device_id(tier));
    Ok(BlockList::new(Batch::writable(tier, device_id, slots)))
}

/// `allocate_blocks` of a tier.
pub(crate) fn allocate(
    py: Python<'_>,
    shared: &Shared,
    tier: Tier,
    n: &Bound<'_, PyAny>,
) -> PyResult<BlockList> {
    let count = count("n", n)?;
    logging::drain(py)?;
    let take = || take(shared, tier, count);
    // Wiping takes time with the bytes, not with the blocks.
    Ok(if shared.extras.zero_on_allocate { py.detach(take) } else { work(py, count, take) }?)
}

/// `allocate_blocks_async` of a tier.
pub(crate) fn allocate_async<'py>(
    py: Python<'py>,
    verb: &str,
    shared: &Arc<Shared>,
    tier: Tier,
    n: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let count = count("n", n)?;
    logging::drain(py)?;
    let block_bytes = shared.pool(tier)?.blocks().layout().block_bytes();
    let wipes = shared.extras.zero_on_allocate && count.saturating_mul(block_bytes) > BRIEF_BYTES;
    let shared = shared.clone();
    let take = move || take(&shared, tier, count);
    let taken = async move {
        if wipes { asyncio::on_thread(take).await } else { asyncio::work(count, take).await }
    };
    asyncio::start(py, verb, Operation::new(taken), None)
}

/// Finds blocks of a tier.
fn find(shared: &Shared, tier: Tier, hashes: &Hashes) -> Result<BlockList, Failure> {
    let pool = shared.pool(tier)?;
    let found = pool.match_slots(&hashes.keys())?;
    let hashes = hashes.prefix(found.len());
    let (tier, device_id) = (pool.blocks().clone(), shared.device_id(tier));
    Ok(BlockList::new(Batch::registered(tier, device_id, found, hashes)))
}

/// What `register_blocks` was given.
struct Registering {
    selection: Selection,
    hashes: Option<Hashes>,
    aliases: bool,
}

impl Registering {
    fn new(
        blocks: &Bound<'_, PyAny>,
        hashes: Option<HashesArgument>,
        aliases: bool,
    ) -> PyResult<Self> {
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
        Ok(Self { selection, hashes, aliases })
    }

    fn len(&self) -> usize {
        self.selection.len()
    }
}

/// Publishes blocks.
fn register(shared: &Shared, tier: Tier, wanted: Registering) -> Result<BlockList, Failure> {
    let Registering { selection, hashes, aliases } = wanted;
    let (pool, device_id) = (shared.pool(tier)?, shared.device_id(tier));
    let tier = pool.blocks();
    let registered = |slots, hashes| {
        Ok(BlockList::new(Batch::registered(tier.clone(), device_id, slots, hashes)))
    };
    if selection.len() == 0 {
        return registered(pool.match_slots(&[])?, Hashes::new(Vec::new()));
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
            registered(slots, hashes)
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
        Ok(self.pool()?.total_blocks())
    }

    /// Slots that an allocation could have now: free, and registered but held by nobody.
    fn available_blocks(&self) -> Result<usize, Failure> {
        Ok(self.pool()?.available_blocks())
    }

    /// `1 - available / total`.
    fn usage(&self) -> Result<f64, Failure> {
        Ok(self.pool()?.usage_rate())
    }

    /// Take `n` writable blocks, evicting unheld ones where none is free: all or nothing.
    fn allocate_blocks(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<BlockList> {
        allocate(py, self.shared.get()?, self.tier, n)
    }

    /// `allocate_blocks`, to await; wiping many blocks takes place on another thread.
    fn allocate_blocks_async<'py>(
        &self,
        py: Python<'py>,
        n: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let verb = "BlockPool.allocate_blocks_async";
        allocate_async(py, verb, self.shared.get()?, self.tier, n)
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
        let (shared, tier) = (self.open()?, self.tier);
        let wanted = Registering::new(blocks, hashes, allow_aliases)?;
        logging::drain(py)?;
        Ok(work(py, wanted.len(), || register(shared, tier, wanted))?)
    }

    /// `register_blocks`, to await. Once it has begun it is completed.
    #[pyo3(signature = (blocks, hashes=None, *, allow_aliases=false))]
    fn register_blocks_async<'py>(
        &self,
        py: Python<'py>,
        blocks: &Bound<'py, PyAny>,
        hashes: Option<HashesArgument>,
        allow_aliases: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, tier) = (self.open()?.clone(), self.tier);
        let wanted = Registering::new(blocks, hashes, allow_aliases)?;
        logging::drain(py)?;
        let registered = asyncio::work(wanted.len(), move || register(&shared, tier, wanted));
        asyncio::start(py, "BlockPool.register_blocks_async", Operation::new(registered), None)
    }

    /// Find and hold the longest prefix of `hashes` that this tier has; perhaps nothing.
    fn match_sequence_hashes(&self, py: Python<'_>, hashes: HashesArgument) -> PyResult<BlockList> {
        let (shared, tier, hashes) = (self.open()?, self.tier, hashes.0);
        logging::drain(py)?;
        Ok(work(py, hashes.as_slice().len(), || find(shared, tier, &hashes))?)
    }

    /// `match_sequence_hashes`, to await.
    fn match_sequence_hashes_async<'py>(
        &self,
        py: Python<'py>,
        hashes: HashesArgument,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, tier, hashes) = (self.open()?.clone(), self.tier, hashes.0);
        logging::drain(py)?;
        let asked = hashes.as_slice().len();
        let found = asyncio::work(asked, move || find(&shared, tier, &hashes));
        asyncio::start(py, "BlockPool.match_sequence_hashes_async", Operation::new(found), None)
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
