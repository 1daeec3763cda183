//! Configuration as plain data: read in layers, validated as a whole.
//!
//! One [`Config`] from Rust, TOML, the environment or a dictionary. Precedence is argument over
//! environment over file over default, and each setting in force remembers who stated it.
//!
//! Invariants: an unknown name is an error in files and arguments and a warning in the
//! environment, both with the nearest known name; a setting whose part is not built is refused by
//! name; [`Config::validate`] names every problem at once, each with field, value and remedy.
//!
//! Not here: live objects (builders that hold them belong to the manager), memory limits of the
//! machine (a default capacity stays [`Capacity::Default`]), and the process environment, which
//! only the caller reads.
//!
//! Reading costs microseconds and happens once; nothing here is on a hot path.

mod capacity;
mod disk;
mod drives;
mod eviction;
mod finding;
mod layers;
mod model;
mod named;
mod nearest;
mod reading;
mod runtime;
mod schema;
mod setting;
mod size;
mod source;
mod tier;
mod traffic;
mod tree;
mod validate;

pub use capacity::{Capacity, LayoutKind, ParseLayoutKindError, TierConfig};
pub use disk::{DiskConfig, DiskDurability, ParseDurabilityError};
pub use drives::DriveConfig;
pub use eviction::{EvictionKind, ParseEvictionError};
pub use finding::{ConfigError, Finding, Severity};
pub use layers::ConfigLayers;
pub use model::{ModelConfig, ModelConfigBuilder};
pub use runtime::{Nixl, RuntimeConfig, RuntimeConfigBuilder};
pub use size::{ParseSizeError, format_size, parse_size};
pub use source::{Effective, Source};
pub use tier::Tier;
pub use traffic::{OffloadConfig, OffloadPolicy, ParseOffloadPolicyError, TransferConfig};
pub use tree::{Config, FieldInfo};
