//! The manager itself.
#![allow(clippy::unused_async, reason = "the async face of verbs, some of which never wait")]

use std::{collections::BTreeMap, fmt, time::Instant};

use super::{
    BlockPool, ImmutableBlock, KvBlockManagerConfig, ManagerError, MutableBlock, block_pool, build,
    edges::Edges, weights::Weights,
};
use crate::{
    config::{Config, Finding, Severity, Source, Tier},
    events::EventStream,
    metrics::{BlockManagerMetrics, LatencyHistogram},
    offload::{
        Match, Onboard, OnboardOptions, Onboarded, ResetEpoch, StoreEdge, TierBlocks, in_place,
        lookup,
    },
    pool::{ImmutableSlots, MutableSlots, PoolError},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    tokens::{Key, SequenceHash},
    transfer::{BlockResult, Transfer, disk::BegunReset},
};

/// Target of the events in which a new manager tells its [settings](KvBlockManager::settings) and
/// [findings](KvBlockManager::findings), for embedders that tell them in another way.
pub const START_TARGET: &str = "dynamo_llm::start";

/// The KV block manager of one worker. Clones share it.
///
/// See the [crate documentation](crate) and the examples of the repository.
#[derive(Clone)]
pub struct KvBlockManager {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) weights: Weights,
    findings: Vec<Finding>,
    device: Option<BlockPool>,
    host: Option<BlockPool>,
    disk: Option<BlockPool>,
    pub(super) edges: Edges,
    events: Arc<EventStream>,
    pub(super) resets: ResetEpoch,
    pub(super) closed: Arc<AtomicBool>,
    latency: Latency,
}

#[derive(Default)]
struct Latency {
    lookup: LatencyHistogram,
    onboard: Arc<LatencyHistogram>,
}

/// The blocks that an onboarding brought.
#[derive(Debug)]
pub struct OnboardedBlocks {
    /// The longest prefix that is on the device now, after what was skipped.
    pub blocks: Vec<ImmutableBlock>,
    /// What became of each block after those skipped, in order.
    pub results: Vec<BlockResult>,
    /// Blocks given to copy into that were not needed, as they were.
    pub unused: Vec<MutableBlock>,
}

/// What a reset left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetReport {
    /// Blocks per tier that somebody still holds. They serve their holders and nobody else.
    pub held: BTreeMap<Tier, usize>,
}

impl KvBlockManager {
    /// Makes a manager. Memory is mapped, not touched, and no thread is started; a tier that asks
    /// to be prefaulted is committed before this returns, which takes seconds for large ones.
    ///
    /// # Errors
    /// [`ManagerError`] when a tier's layout, memory or pool cannot be made.
    pub async fn new(config: KvBlockManagerConfig) -> Result<Self, ManagerError> {
        Self::new_blocking(config)
    }

    /// [`new`](Self::new) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn new_blocking(config: KvBlockManagerConfig) -> Result<Self, ManagerError> {
        let events = Arc::new(match &config.event_manager {
            Some(sink) => EventStream::new(sink.clone()),
            None => EventStream::detached(),
        });
        let tiers = build::tiers(&config, &events)?;
        let build::Tiers { device, host, disk, packing, fingerprint, findings } = tiers;
        let settings = config.settings;
        report(&settings, &findings);
        let resets = ResetEpoch::default();
        let tiers = [device.as_ref(), host.as_ref(), disk.as_ref()];
        let edges = Edges::new(tiers, config.engines, &settings, &resets);
        let closed = Arc::new(AtomicBool::new(false));
        let pool = |tier: Arc<TierBlocks>| {
            let below = edges.by_itself(tier.tier());
            BlockPool::new(tier, below, closed.clone())
        };
        let (device, host, disk) = (device.map(&pool), host.map(&pool), disk.map(&pool));
        Ok(Self {
            inner: Arc::new(Inner {
                weights: Weights::new(settings, packing, fingerprint),
                findings,
                device,
                host,
                disk,
                edges,
                events,
                resets,
                closed,
                latency: Latency::default(),
            }),
        })
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.settings().model.page_size
    }

    /// Number of this worker.
    pub fn worker_id(&self) -> u64 {
        self.settings().runtime.worker_id
    }

    /// The settings in force, with their sources. `model.revision` follows
    /// [`set_weights_version`](Self::set_weights_version).
    pub fn settings(&self) -> Arc<Config> {
        self.inner.weights.settings()
    }

    /// What was decided or noticed at start: default sizes, fallbacks in force, doubtful settings.
    pub fn findings(&self) -> &[Finding] {
        &self.inner.findings
    }

    /// The device tier; `None` when it is off.
    pub fn device(&self) -> Option<&BlockPool> {
        self.inner.device.as_ref()
    }

    /// The host tier; `None` when it is off.
    pub fn host(&self) -> Option<&BlockPool> {
        self.inner.host.as_ref()
    }

    /// The disk tier; `None` when it is off. Its blocks come by offloading and have no views.
    pub fn disk(&self) -> Option<&BlockPool> {
        self.inner.disk.as_ref()
    }

    /// The pool of `tier`; `None` when it is off.
    pub fn pool(&self, tier: Tier) -> Option<&BlockPool> {
        match tier {
            Tier::Device => self.device(),
            Tier::Host => self.host(),
            Tier::Disk => self.disk(),
            Tier::Remote => None,
        }
    }

    pub(super) fn tiers(&self) -> impl Iterator<Item = &BlockPool> {
        [self.device(), self.host(), self.disk()].into_iter().flatten()
    }

    /// The longest prefix of `hashes` over all tiers, held where it was found.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`].
    pub fn lookup(&self, hashes: &[SequenceHash]) -> Result<Match, ManagerError> {
        self.lookup_keys(&block_pool::keys(hashes))
    }

    /// [`lookup`](Self::lookup) of keys, which name a group beside the hash.
    ///
    /// # Errors
    /// The same.
    pub fn lookup_keys(&self, keys: &[Key]) -> Result<Match, ManagerError> {
        self.check_open()?;
        let start = Instant::now();
        let tiers: Vec<&TierBlocks> = self.tiers().map(|pool| &**pool.blocks()).collect();
        let found = lookup(&tiers, keys);
        self.inner.latency.lookup.record(start.elapsed());
        Ok(found)
    }

    /// Brings a match to the device: what is there stays, the rest is copied up and verified.
    ///
    /// Returns the longest prefix that arrived, by the deadline at the latest (the configured one
    /// when the options have none). Dropping the future gives the onboarding up.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`], [`ManagerError::NoSuchTier`] without a device tier,
    /// [`ManagerError::Pool`] for a match or slots of another manager. Blocks that do not arrive
    /// are no error: see [`OnboardedBlocks::results`].
    pub async fn onboard(
        &self,
        found: Match,
        options: OnboardOptions,
    ) -> Result<OnboardedBlocks, ManagerError> {
        let onboarded = self.start_onboard(found, options)?.await;
        self.with_bytes(onboarded)
    }

    /// [`onboard`](Self::onboard) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn onboard_blocking(
        &self,
        found: Match,
        options: OnboardOptions,
    ) -> Result<OnboardedBlocks, ManagerError> {
        let onboarded = self.onboard_slots(found, options)?;
        self.with_bytes(onboarded)
    }

    /// [`onboard_blocking`](Self::onboard_blocking) with the prefix as one handle.
    ///
    /// # Errors
    /// The same.
    pub fn onboard_slots(
        &self,
        found: Match,
        options: OnboardOptions,
    ) -> Result<Onboarded, ManagerError> {
        let mut under_way = self.start_onboard(found, options)?;
        loop {
            match under_way.wait(None) {
                Ok(onboarded) => return Ok(onboarded),
                Err(still) => under_way = still,
            }
        }
    }

    /// Starts to bring a match up and returns at once.
    ///
    /// # Errors
    /// As [`onboard`](Self::onboard).
    pub fn start_onboard(
        &self,
        found: Match,
        mut options: OnboardOptions,
    ) -> Result<Onboard, ManagerError> {
        self.check_open()?;
        let begun = Instant::now();
        options.deadline = options.deadline.or_else(|| self.deadline());
        let under_way = match (&self.inner.edges.up, &self.inner.device) {
            (Some(load), _) => load.onboard(found, options)?,
            (None, Some(device)) => in_place(device.blocks(), found, options)?,
            (None, None) => return Err(ManagerError::NoSuchTier { tier: Tier::Device }),
        };
        Ok(under_way.timed(begun, self.inner.latency.onboard.clone()))
    }

    fn with_bytes(&self, onboarded: Onboarded) -> Result<OnboardedBlocks, ManagerError> {
        let device = self.device().ok_or(ManagerError::NoSuchTier { tier: Tier::Device })?;
        let Onboarded { blocks, results, unused } = onboarded;
        let blocks = blocks.map_or_else(|| Ok(Vec::new()), |blocks| device.single(blocks))?;
        let tier = device.blocks();
        let unused = unused
            .into_iter()
            .flat_map(MutableSlots::into_singles)
            .map(|slot| MutableBlock::new(tier.clone(), slot))
            .collect();
        Ok(OnboardedBlocks { blocks, results, unused })
    }

    /// Copies blocks of one tier, the device or the host, down to the next lower one. The transfer
    /// reports each block.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`], [`ManagerError::NoSuchTier`] when there is no lower tier,
    /// [`ManagerError::Pool`] for blocks of several tiers or of another manager: nothing is copied
    /// then.
    pub fn offload(&self, blocks: &[ImmutableBlock]) -> Result<Transfer, ManagerError> {
        match self.joined(blocks)? {
            Some(slots) => self.offload_slots(&slots),
            None if self.inner.edges.down.is_empty() => {
                Err(ManagerError::NoSuchTier { tier: Tier::Host })
            }
            None => Ok(Transfer::of_nothing()),
        }
    }

    /// [`offload`](Self::offload) to the tier stated. What is reported to have come to the disk
    /// tier is acknowledged: it is still there when the process has died.
    ///
    /// # Errors
    /// The same, and [`ManagerError::NoSuchTier`] when the tier is off or not a lower one.
    pub fn offload_to(
        &self,
        blocks: &[ImmutableBlock],
        to: Tier,
    ) -> Result<Transfer, ManagerError> {
        match self.joined(blocks)? {
            Some(slots) => self.offload_slots_to(&slots, to),
            None if self.pool(to).is_none() => Err(ManagerError::NoSuchTier { tier: to }),
            None => Ok(Transfer::of_nothing()),
        }
    }

    /// [`offload`](Self::offload) for one handle of many blocks.
    ///
    /// # Errors
    /// The same.
    pub fn offload_slots(&self, blocks: &ImmutableSlots) -> Result<Transfer, ManagerError> {
        let from = self.tier_of(blocks)?;
        let edge = self.inner.edges.from(from);
        let below = if from == Tier::Device { Tier::Host } else { Tier::Disk };
        let edge = edge.ok_or(ManagerError::NoSuchTier { tier: below })?;
        Ok(edge.offload(blocks, self.deadline())?)
    }

    /// [`offload_to`](Self::offload_to) for one handle of many blocks.
    ///
    /// # Errors
    /// The same.
    pub fn offload_slots_to(
        &self,
        blocks: &ImmutableSlots,
        to: Tier,
    ) -> Result<Transfer, ManagerError> {
        let edge = self.inner.edges.between(self.tier_of(blocks)?, to);
        let edge = edge.ok_or(ManagerError::NoSuchTier { tier: to })?;
        Ok(edge.offload(blocks, self.deadline())?)
    }

    /// One handle for blocks; `None` for none.
    fn joined(&self, blocks: &[ImmutableBlock]) -> Result<Option<ImmutableSlots>, ManagerError> {
        self.check_open()?;
        let Some(first) = blocks.first() else { return Ok(None) };
        let tier = first.slot.pool().tier();
        let joined = ImmutableSlots::join(blocks.iter().map(|block| block.slot.clone()));
        joined.map(Some).ok_or(ManagerError::Pool(PoolError::ForeignHandle { tier }))
    }

    /// The tier that blocks are of.
    fn tier_of(&self, blocks: &ImmutableSlots) -> Result<Tier, ManagerError> {
        self.check_open()?;
        let of_ours = self.tiers().find(|pool| pool.blocks().check_owner(blocks).is_ok());
        let tier = blocks.pool().tier();
        let of_ours = of_ours.ok_or(ManagerError::Pool(PoolError::ForeignHandle { tier }))?;
        Ok(of_ours.tier())
    }

    /// Forgets every block in every tier, copies under way included: once this returns, nothing
    /// that was cached before is found again. Blocks in use serve their holders to the end.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`]; [`ManagerError::Disk`] when the drive could not be told, so that
    /// a restart may find blocks of before again.
    pub async fn reset(&self) -> Result<ResetReport, ManagerError> {
        self.reset_blocking()
    }

    /// [`reset`](Self::reset) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn reset_blocking(&self) -> Result<ResetReport, ManagerError> {
        self.check_open()?;
        let mut held = BTreeMap::new();
        let mut begun = Vec::new();
        self.inner.resets.reset(|| {
            for pool in self.tiers() {
                let (still_held, drives) = pool.blocks().begin_reset();
                held.insert(pool.tier(), still_held);
                begun.extend(drives);
            }
        });
        // What was registered since the first tier was reset has waited. Memory is not kept waiting
        // for drives.
        let resume = || self.inner.edges.down.iter().for_each(StoreEdge::resume);
        resume();
        let noted = begun.into_iter().try_for_each(BegunReset::noted);
        resume();
        noted?;
        Ok(ResetReport { held })
    }

    /// Counts and gauges of everything.
    pub fn status(&self) -> BlockManagerMetrics {
        let inner = &self.inner;
        let mut metrics = BlockManagerMetrics {
            worker_id: self.worker_id(),
            events: inner.events.metrics(),
            ..BlockManagerMetrics::default()
        };
        metrics.drives = self.disk().map(|disk| disk.blocks().drives()).unwrap_or_default();
        metrics.pools = self.tiers().map(|pool| (pool.tier(), pool.status())).collect();
        metrics.edges.extend(inner.edges.metrics());
        metrics.latency.insert("lookup", inner.latency.lookup.summary());
        metrics.latency.insert("onboard", inner.latency.onboard.summary());
        metrics
    }

    /// Whether the manager was shut down.
    pub fn is_shut_down(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.settings().transfer.deadline())
    }

    pub(super) fn check_open(&self) -> Result<(), ManagerError> {
        if self.is_shut_down() { Err(ManagerError::Shutdown) } else { Ok(()) }
    }
}

impl Inner {
    /// Ends everything; waits until `deadline`, if there is one, for the drive to be free.
    pub(super) fn close(&self, deadline: Option<Instant>) {
        self.edges.close();
        if let Some(disk) = self.disk.as_ref().and_then(|disk| disk.blocks().disk()) {
            disk.close(deadline);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Pools and blocks that outlive the manager find it closed; the engines end by themselves.
        self.closed.store(true, Ordering::Release);
        self.close(None);
    }
}

/// Says once, at start, what is in force and what was decided.
fn report(settings: &Config, findings: &[Finding]) {
    for setting in settings.effective() {
        if setting.source == Source::Default {
            tracing::debug!(target: START_TARGET, "{setting}");
        } else {
            tracing::info!(target: START_TARGET, "{setting}");
        }
    }
    for finding in findings {
        if finding.severity == Severity::Info {
            tracing::info!(target: START_TARGET, "{finding}");
        } else {
            tracing::warn!(target: START_TARGET, "{finding}");
        }
    }
}

impl fmt::Debug for KvBlockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvBlockManager")
            .field("worker_id", &self.worker_id())
            .field("device", &self.device())
            .field("host", &self.host())
            .field("disk", &self.disk())
            .finish_non_exhaustive()
    }
}
