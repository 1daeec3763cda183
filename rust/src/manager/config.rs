//! What a manager is made from: settings, which are plain data, and live objects beside them.

use std::{ffi::OsStr, fmt, path::Path};

use super::{ManagerError, given_layout};
use crate::{
    config::{Capacity, Config, ConfigError, Finding, ModelConfig, RuntimeConfig, Severity, Tier},
    events::EventManager,
    eviction::EvictionPolicy,
    io::{PsyncOptions, Volume},
    layout::{BlockLayout, LayoutType},
    storage::{Storage, StorageAllocator},
    sync::Arc,
    transfer::TransferEngine,
};

/// Makes the eviction policy of a tier for so many slots.
pub type PolicyFactory = Arc<dyn Fn(u32) -> Box<dyn EvictionPolicy> + Send + Sync>;

/// One tier, with the live objects that settings cannot hold.
///
/// Without `storage` and `allocator` the tier takes ordinary memory from the system.
#[derive(Clone, Default, bon::Builder)]
pub struct KvManagerLayoutConfig {
    /// Blocks; the settings' own number, or a default that fits the machine, when not stated. 0
    /// switches the tier off.
    pub num_blocks: Option<usize>,
    /// How the blocks lie; the settings' own kind when not stated.
    pub layout_type: Option<LayoutType>,
    /// A layout of your own, that of an engine's tensors say; it states the number of blocks, too.
    /// Excludes `layout_type`.
    pub layout: Option<BlockLayout>,
    /// Memory to use, one storage for each that the layout names. Excludes `allocator`.
    pub storage: Option<Vec<Arc<dyn Storage>>>,
    /// Where to take memory from. Excludes `storage`.
    pub allocator: Option<Arc<dyn StorageAllocator>>,
    /// An eviction policy of your own.
    pub policy: Option<PolicyFactory>,
}

impl KvManagerLayoutConfig {
    /// What is wrong with the live objects of a tier of this capacity.
    fn problem(&self, tier: Tier, capacity: Capacity, model: &ModelConfig) -> Option<Finding> {
        if let Some(finding) = given_layout::problem(self, tier, capacity, model) {
            return Some(finding);
        }
        let (memory, message, remedy) = match (&self.storage, &self.allocator) {
            (None, None) => return None,
            (Some(_), Some(_)) => {
                ("storage and allocator", "exclude each other", "give the one that is to be used")
            }
            (storage, _) if capacity.is_off() => (
                if storage.is_some() { "storage" } else { "allocator" },
                "without effect: the tier is off",
                "remove it, or give the tier a number of blocks",
            ),
            (Some(_), None) if capacity == Capacity::Default => {
                ("storage", "nothing says how many blocks it holds", "state num_blocks")
            }
            _ => return None,
        };
        let field = format!("{tier}_layout");
        Some(Finding::new(Severity::Error, field, memory, message, remedy))
    }

    /// What of it the disk tier cannot have.
    fn disk_problem(&self) -> Option<Finding> {
        let own = "its blocks lie in slots of their own, one run each";
        let (field, message, remedy) = if self.storage.is_some() {
            ("storage", "the disk tier has a directory, not a region", "give an allocator")
        } else if self.layout.is_some() {
            ("layout", own, "remove it")
        } else if self.layout_type.is_some() {
            ("layout_type", own, "remove it")
        } else {
            let allocator = self.allocator.as_ref()?;
            if allocator.folder().is_some() {
                return None;
            }
            let message = "it makes no files";
            ("allocator", message, "give a DiskAllocator, or name a directory in the settings")
        };
        let field = format!("disk_layout.{field}");
        Some(Finding::new(Severity::Error, field, "", message, remedy))
    }
}

/// A validated configuration, ready for [`KvBlockManager::new`](super::KvBlockManager::new).
#[derive(Clone)]
pub struct KvBlockManagerConfig {
    pub(super) settings: Config,
    pub(super) device: KvManagerLayoutConfig,
    pub(super) host: KvManagerLayoutConfig,
    pub(super) disk: KvManagerLayoutConfig,
    pub(super) drive: Drive,
    pub(super) event_manager: Option<Arc<dyn EventManager>>,
    pub(super) engines: Option<Engines>,
    pub(super) findings: Vec<Finding>,
}

/// The live objects of the disk tier.
#[derive(Clone, Default)]
pub(super) struct Drive {
    /// Each instead of the directory of its name.
    pub(super) volumes: Vec<Arc<dyn Volume>>,
    /// Who reads and writes.
    pub(super) io: Option<PsyncOptions>,
}

/// Who copies: up and down do not share a lane.
#[derive(Clone)]
pub(super) struct Engines {
    pub(super) load: Arc<dyn TransferEngine>,
    pub(super) store: Arc<dyn TransferEngine>,
}

/// Collects what a manager is made from. Later calls win over earlier ones.
#[derive(Clone, Default)]
#[must_use = "nothing is configured until build()"]
pub struct KvBlockManagerConfigBuilder {
    settings: Config,
    model_stated: bool,
    device: KvManagerLayoutConfig,
    host: KvManagerLayoutConfig,
    disk: KvManagerLayoutConfig,
    drive: Drive,
    event_manager: Option<Arc<dyn EventManager>>,
    engines: Option<Engines>,
}

impl KvBlockManagerConfig {
    /// Starts with the defaults; the model has to be stated.
    pub fn builder() -> KvBlockManagerConfigBuilder {
        KvBlockManagerConfigBuilder::default()
    }

    /// From settings alone.
    ///
    /// # Errors
    /// [`ManagerError::Config`] with every problem at once.
    pub fn from_settings(settings: Config) -> Result<Self, ManagerError> {
        Self::builder().settings(settings).build()
    }

    /// From TOML text.
    ///
    /// # Errors
    /// [`ManagerError::Config`] with every problem at once.
    pub fn from_toml(text: &str) -> Result<Self, ManagerError> {
        Self::from_settings(Config::from_toml_str(text)?)
    }

    /// From a TOML file; a missing one is an error.
    ///
    /// # Errors
    /// [`ManagerError::Config`].
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, ManagerError> {
        Self::from_settings(Config::from_toml_file(path)?)
    }

    /// From environment variables (`std::env::vars_os()`, say) whose names begin with
    /// `DYNAMO_LLM_`, and the file that `DYNAMO_LLM_CONFIG` names.
    ///
    /// # Errors
    /// [`ManagerError::Config`].
    pub fn from_env<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ManagerError> {
        Self::from_settings(Config::from_env(variables)?)
    }

    /// The volume that stands for a directory.
    pub(super) fn volume(&self, dir: &str) -> Option<&Arc<dyn Volume>> {
        self.drive.volumes.iter().find(|volume| volume.path() == dir)
    }

    /// The settings in force.
    pub fn settings(&self) -> &Config {
        &self.settings
    }

    /// What validation had to say short of an error.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl KvBlockManagerConfigBuilder {
    /// All settings at once.
    pub fn settings(mut self, settings: Config) -> Self {
        self.settings = settings;
        self.model_stated = true;
        self
    }

    /// Identity and transports of the worker.
    pub fn runtime(mut self, runtime: RuntimeConfig) -> Self {
        self.settings.runtime = runtime;
        self
    }

    /// Shape and identity of the model. Has to be stated.
    pub fn model(mut self, model: ModelConfig) -> Self {
        self.settings.model = model;
        self.model_stated = true;
        self
    }

    /// The device tier.
    pub fn device_layout(mut self, layout: KvManagerLayoutConfig) -> Self {
        self.device = layout;
        self
    }

    /// No device tier: the engine keeps its own blocks and only the lower tiers are ours.
    pub fn without_device(mut self) -> Self {
        self.settings.device.capacity = Capacity::Blocks(0);
        self.device = KvManagerLayoutConfig::default();
        self
    }

    /// The host tier.
    pub fn host_layout(mut self, layout: KvManagerLayoutConfig) -> Self {
        self.host = layout;
        self
    }

    /// The disk tier, on one drive: a number of blocks, a policy, and a
    /// [`DiskAllocator`](crate::storage::disk::DiskAllocator), whose folder becomes the directory of
    /// the tier. How blocks lie there is not for others to say.
    pub fn disk_layout(mut self, layout: KvManagerLayoutConfig) -> Self {
        self.disk = layout;
        self
    }

    /// A volume of your own, which nobody else uses, for the disk tier: instead of the drive with
    /// the directory of its name, or as the only drive where the settings list none.
    pub fn disk_volume(mut self, volume: Arc<dyn Volume>) -> Self {
        self.drive.volumes.push(volume);
        self
    }

    /// How the disk tier reads and writes: threads, queues, and when a drive counts as sick. Wins
    /// over `disk.io_threads`.
    pub fn disk_io(mut self, options: PsyncOptions) -> Self {
        self.drive.io = Some(options);
        self
    }

    /// Who is told what happens to blocks.
    pub fn event_manager(mut self, events: Arc<dyn EventManager>) -> Self {
        self.event_manager = Some(events);
        self
    }

    /// Engines of your own, for copies up (`load`) and down (`store`). They must be two, or loads
    /// wait behind stores.
    pub fn engines(
        mut self,
        load: Arc<dyn TransferEngine>,
        store: Arc<dyn TransferEngine>,
    ) -> Self {
        self.engines = Some(Engines { load, store });
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`ManagerError::Config`] with every problem at once.
    pub fn build(self) -> Result<KvBlockManagerConfig, ManagerError> {
        let Self { mut settings, model_stated, device, host, disk, drive, event_manager, engines } =
            self;
        if let Some(blocks) = device.stated_blocks() {
            settings.device.capacity = Capacity::Blocks(blocks);
        }
        if let Some(blocks) = host.stated_blocks() {
            settings.host.capacity = Capacity::Blocks(blocks);
        }
        if let Some(blocks) = disk.num_blocks {
            settings.disk.capacity = Capacity::Blocks(blocks);
        }
        if let Some(folder) = disk.allocator.as_ref().and_then(|allocator| allocator.folder()) {
            settings.disk.dir = Some(folder.to_string_lossy().into_owned());
        }
        if let Some(volume) = drive.volumes.last()
            && settings.disk.drives.is_empty()
        {
            settings.disk.dir = Some(volume.path().to_owned());
        }
        let mut refused = Vec::new();
        if !model_stated {
            refused.push(Finding::new(
                Severity::Error,
                "model",
                "",
                "not stated",
                "call model(KvManagerModelConfig::builder()...build())",
            ));
        }
        for (tier, layout) in [(Tier::Device, &device), (Tier::Host, &host)] {
            let capacity = settings.tier(tier).map(|tier| tier.capacity).unwrap_or_default();
            refused.extend(layout.problem(tier, capacity, &settings.model));
        }
        refused.extend(disk.disk_problem());
        let findings = match settings.validate() {
            Ok(findings) if refused.is_empty() => findings,
            Ok(_) => return Err(ConfigError::Invalid { findings: refused }.into()),
            Err(ConfigError::Invalid { findings }) => {
                refused.extend(findings);
                return Err(ConfigError::Invalid { findings: refused }.into());
            }
            Err(other) => return Err(other.into()),
        };
        Ok(KvBlockManagerConfig {
            settings,
            device,
            host,
            disk,
            drive,
            event_manager,
            engines,
            findings,
        })
    }
}

impl fmt::Debug for KvManagerLayoutConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvManagerLayoutConfig")
            .field("num_blocks", &self.num_blocks)
            .field("layout_type", &self.layout_type)
            .field("layout", &self.layout)
            .field("storage", &self.storage)
            .field("allocator", &self.allocator)
            .field("own_policy", &self.policy.is_some())
            .finish()
    }
}

impl fmt::Debug for KvBlockManagerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvBlockManagerConfig")
            .field("settings", &self.settings)
            .field("device", &self.device)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for KvBlockManagerConfigBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvBlockManagerConfigBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
