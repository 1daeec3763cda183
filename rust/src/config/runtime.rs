//! Who this worker is and which optional transports it wishes for.

use bon::Builder;
use serde::{Deserialize, Serialize};

/// Whether peers are reached through NIXL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nixl {
    /// Not used.
    #[default]
    Disabled,
    /// Wished for. This version has no NIXL part, so validation refuses the wish by name.
    Enabled,
}

/// Identity of the worker and its transports.
///
/// ```
/// use dynamo_llm::block_manager::KvManagerRuntimeConfig;
///
/// let runtime = KvManagerRuntimeConfig::builder().worker_id(7).disable_nixl().build();
/// assert_eq!(runtime.worker_id, 7);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Builder)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// Whether peers are reached through NIXL.
    #[builder(field)]
    pub nixl: Nixl,
    /// Number of this worker, unique among those that share a directory or an event stream; 0
    /// when not stated.
    #[builder(default)]
    pub worker_id: u64,
}

impl<S: runtime_config_builder::State> RuntimeConfigBuilder<S> {
    /// Wishes for NIXL. Refused at validation: not part of this version.
    pub fn enable_nixl(mut self) -> Self {
        self.nixl = Nixl::Enabled;
        self
    }

    /// Does without NIXL, as is the default.
    pub fn disable_nixl(mut self) -> Self {
        self.nixl = Nixl::Disabled;
        self
    }
}
