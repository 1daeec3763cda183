//! Weights that are swapped in place.
#![allow(clippy::unused_async, reason = "the async face of a verb, as that of a reset")]

use std::collections::BTreeMap;

use super::{KvBlockManager, ManagerError, build, disk_tier};
use crate::{
    config::{Config, ConfigError, Finding, Severity, Tier},
    offload::{CurrentFingerprint, StoreEdge},
    seal::Fingerprint,
    sync::{Arc, Mutex},
};

/// What a switch of weights left and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsReport {
    /// Blocks per tier that somebody still holds. They serve their holders and nobody else. Empty
    /// where the version was in force already.
    pub held: BTreeMap<Tier, usize>,
    /// Blocks of the version that were found on disk.
    pub found: usize,
}

/// Which weights are in force, and the settings, which say so.
pub(super) struct Weights {
    state: Mutex<State>,
    /// How the device packs a region, where it says so: part of the fingerprint.
    packing: Option<String>,
    fingerprint: CurrentFingerprint,
}

struct State {
    settings: Arc<Config>,
    /// Switches so far.
    begun: u64,
    /// The last of them after which nothing older was found in memory.
    ended: u64,
}

/// A switch that has begun.
struct Switch {
    number: u64,
    fingerprint: Fingerprint,
    label: Arc<str>,
}

impl Weights {
    pub(super) fn new(
        settings: Config,
        packing: Option<String>,
        fingerprint: CurrentFingerprint,
    ) -> Self {
        let state = State { settings: Arc::new(settings), begun: 0, ended: 0 };
        Self { state: Mutex::new(state), packing, fingerprint }
    }

    pub(super) fn settings(&self) -> Arc<Config> {
        self.state.lock().settings.clone()
    }

    /// Whether nothing has to be forgotten for this version.
    fn are(&self, version: &str) -> bool {
        let state = self.state.lock();
        state.begun == state.ended && state.settings.model.revision.as_deref() == Some(version)
    }

    /// Puts a version in force: whatever is sealed from now on is sealed under it.
    fn begin(&self, version: &str) -> Switch {
        let mut state = self.state.lock();
        let mut settings = Config::clone(&state.settings);
        settings.model.revision = Some(version.to_owned());
        let fingerprint = build::fingerprint(&settings, self.packing.as_deref());
        let label = disk_tier::label(&settings).into();
        state.settings = Arc::new(settings);
        state.begun += 1;
        self.fingerprint.set(fingerprint);
        Switch { number: state.begun, fingerprint, label }
    }

    fn end(&self, switch: &Switch) {
        let mut state = self.state.lock();
        state.ended = state.ended.max(switch.number);
    }
}

impl KvBlockManager {
    /// Says that the engine computes with other weights from now on, as if the manager had been made
    /// with `model.revision = version`. Blocks of before are not found any more in any tier, copies
    /// under way included; those in use serve their holders to the end. On disk they stay, and are
    /// the first to go when room is needed; those stored there under `version`, by this manager or an
    /// earlier one, are found again. The version in force is no switch.
    ///
    /// Reads the drives' tables, 256 bytes for each block, and waits for them as long as
    /// `transfer.deadline_ms` says.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`]; [`ManagerError::Config`] for an empty version, which changes
    /// nothing; [`ManagerError::Disk`] when a drive could not be read. The version is in force then
    /// all the same: that drive's blocks are not found and it takes none, until another call with
    /// this version or a store that comes by has read it.
    pub async fn set_weights_version(&self, version: &str) -> Result<WeightsReport, ManagerError> {
        self.set_weights_version_blocking(version)
    }

    /// [`set_weights_version`](Self::set_weights_version) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn set_weights_version_blocking(
        &self,
        version: &str,
    ) -> Result<WeightsReport, ManagerError> {
        self.check_open()?;
        if version.trim().is_empty() {
            let (message, remedy) = ("it is empty", "name the weights");
            let finding = Finding::new(Severity::Error, "version", "\"\"", message, remedy);
            return Err(ConfigError::Invalid { findings: vec![finding] }.into());
        }
        let inner = &self.inner;
        let mut report = WeightsReport::default();
        if !inner.weights.are(version) {
            report.held = inner.resets.reset(|| self.switch(version));
            // What was registered since the first tier was reset has waited.
            inner.edges.down.iter().for_each(StoreEdge::resume);
        }
        if let (Some(disk), Some(until)) = (self.disk(), self.deadline()) {
            report.found = disk.blocks().read_again(until)?;
            inner.edges.down.iter().for_each(StoreEdge::resume);
        }
        Ok(report)
    }

    /// In memory alone, while no copy begins; returns what is still held.
    fn switch(&self, version: &str) -> BTreeMap<Tier, usize> {
        let weights = &self.inner.weights;
        let switch = weights.begin(version);
        if let Some(disk) = self.disk().and_then(|disk| disk.blocks().disk()) {
            disk.begin_era(switch.number, switch.fingerprint, &switch.label);
        }
        let held = self.tiers().map(|pool| (pool.tier(), pool.blocks().pool().reset()));
        let held = held.collect();
        weights.end(&switch);
        held
    }
}
