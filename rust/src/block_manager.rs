//! The public face: every public name in one place.
//!
//! The names that most programs need stand here; the parts have submodules for the rest.

pub use crate::config::{
    EvictionKind, ModelConfig as KvManagerModelConfig, RuntimeConfig as KvManagerRuntimeConfig,
    Tier,
};
pub use crate::events::{EventManager, NullEventManager};
pub use crate::eviction::{EvictionPolicy, SlotId};
pub use crate::layout::{
    BlockLayout, DEFAULT_INNER_DIM, DEFAULT_NUM_LAYERS, DEFAULT_OUTER_DIM, DEFAULT_PAGE_SIZE,
    LayoutError, LayoutStrategy, LayoutType, MAX_INNER_DIM, MAX_NUM_LAYERS, MAX_OUTER_DIM,
    MAX_PAGE_SIZE,
};
pub use crate::manager::{
    BlockError, BlockPool, BlockPoolError, ImmutableBlock, KvBlockManager, KvBlockManagerConfig,
    KvBlockManagerConfigBuilder, KvManagerLayoutConfig, KvManagerLayoutConfigBuilder, ManagerError,
    MutableBlock, OnboardedBlocks, PolicyFactory, RegisterError, ResetReport, START_TARGET,
    ShutdownReport, WeakBlock, WeightsReport,
};
pub use crate::offload::{Match, OnboardOptions};
pub use crate::pool::{EvictionMode, Registration};
pub use crate::storage::StorageError;
pub use crate::tokens::{
    EngineKey, HashScheme, Identity, Key, MediaItem, SequenceHash, TokenBlock, TokenBlockSequence,
    TokenError, hash_tokens,
};
pub use crate::transfer::{Arrival, BlockResult, Transfer, TransferError};

/// Configuration: one tree from Rust, TOML, environment and dictionary.
pub mod config {
    pub use crate::config::{
        Capacity, Config, ConfigError, ConfigLayers, DiskConfig, DiskDurability, DriveConfig,
        Effective, EvictionKind, FieldInfo, Finding, LayoutKind, ModelConfig, ModelConfigBuilder,
        Nixl, OffloadConfig, OffloadPolicy, ParseDurabilityError, ParseEvictionError,
        ParseLayoutKindError, ParseOffloadPolicyError, ParseSizeError, RuntimeConfig,
        RuntimeConfigBuilder, Severity, Source, Tier, TierConfig, TransferConfig, format_size,
        parse_size,
    };
}

/// What happens to blocks, told to whoever wants to know.
pub mod events {
    pub use crate::events::{
        BlockEvent, EventBlock, EventKind, EventManager, EventStream, NullEventManager, TierCleared,
    };
}

/// Which block goes when a tier needs room.
pub mod eviction {
    pub use crate::config::EvictionKind;
    pub use crate::eviction::{Arc, EvictionPolicy, Fifo, Lru, S3Fifo, SlotId};
}

/// The table behind every lookup, for those who build their own bookkeeping.
pub mod index {
    pub use crate::index::{BlockIndex, Mixer, prefetch};
}

/// Positioned I/O on files.
pub mod io {
    pub use crate::io::fault;
    pub use crate::io::{
        AlignedBuffer, Clock, FileOp, Health, HealthOptions, IO_ALIGNMENT, IoBuffer, IoDone,
        IoEngine, IoError, IoFile, IoMemory, IoMode, IoRequest, IoTicket, IoWork, Lane,
        ManualClock, OpenFile, OsVolume, Place, PsyncEngine, PsyncOptions, Staging, StagingBuffer,
        SystemClock, Volume, read_full, write_full,
    };
}

/// Where the bytes of a block lie.
pub mod layout {
    pub use crate::layout::{
        Axis, BlockLayout, DEFAULT_INNER_DIM, DEFAULT_NUM_LAYERS, DEFAULT_OUTER_DIM,
        DEFAULT_PAGE_SIZE, ExternalLayout, ExternalTensor, LayoutConfig, LayoutConfigBuilder,
        LayoutError, LayoutStrategy, LayoutType, MAX_INNER_DIM, MAX_NUM_LAYERS, MAX_OUTER_DIM,
        MAX_PAGE_SIZE, MAX_PLACED_REGIONS, PAGED_ALIGNMENT, Place, Span, Spans, pair_runs,
    };
}

/// Figures as plain data.
pub mod metrics {
    pub use crate::metrics::{
        BlockManagerMetrics, DriveMetrics, Edge, EdgeMetrics, EventMetrics, LatencyHistogram,
        LatencySummary, PoolMetrics,
    };
}

/// What goes down, what comes up, and what is there.
pub mod offload {
    pub use crate::offload::{Match, Onboard, OnboardOptions, Onboarded, TierBlocks};
}

/// The lifecycle of a tier's slots.
pub mod pool {
    pub use crate::pool::{
        EvictionMode, ImmutableSlots, MutableSlots, PoolError, Registration, Section,
        SectionMetrics, SlotPool, SlotPoolOptions, WeakSlots,
    };
}

/// Request traces, replayed.
pub mod replay {
    pub use crate::replay::{
        ByteReplay, ByteReplayOptions, ByteReplayOptionsBuilder, Capacity, Hits, IndexReplay,
        Latencies, ParseCapacityError, ParseTraceFormatError, Progress, Quantiles, ReplayCancelled,
        ReplayEngines, ReplayError, Request, Sample, Trace, TraceError, TraceFormat, TraceProblem,
        index_only, sweep, with_bytes,
    };
}

/// Sums that prove bytes.
pub mod seal {
    pub use crate::seal::{
        Crc, Fingerprint, FingerprintFields, Piece, Seal, SealError, SealRoot, SealTiling,
        TILE_BYTES, Tile,
    };
}

/// Owned bytes.
pub mod storage {
    /// Blocks on a drive: a directory that survives its owner.
    pub mod disk {
        pub use crate::storage::disk::{
            DiskDirectory, DiskError, DiskFinding, DiskOptions, DiskRecord, DiskSlot, DropReason,
            Durability, EngineName, FORMAT_VERSION, FingerprintId, FingerprintUse, Geometry,
            Holder, Inspection, Preallocation, RECORD_BYTES, Recovered, RecoveredBlock,
            RecoveryReport, SetId, SetUse, SlotMemory, SlotPlace, Superblocks, WalkedSlot, inspect,
            walk,
        };
        pub use crate::transfer::disk::{Verification, verify};
    }

    pub use crate::storage::{
        AvailableMemory, DiskAllocator, DiskStorage, MemoryLimit, NullAllocator, NullStorage,
        RegisterableStorage, RegistrationHandle, RegistrationHandles, Storage, StorageAccess,
        StorageAllocator, StorageError, StorageMemset, StorageType, SystemAllocator, SystemStorage,
        available_memory, available_memory_in,
    };
}

/// Moving blocks.
pub mod transfer {
    pub use crate::transfer::disk::{
        DiskBlocks, DiskBlocksOptions, DiskEngine, Drive, DriveOptions, RecoveredSlot,
    };
    pub use crate::transfer::kernel;
    pub use crate::transfer::{
        Arrival, BlockLabel, BlockMemory, BlockPair, BlockPlace, BlockResult, Corruption,
        FaultEngine, Faults, HostEngine, Job, Reports, Ticket, Transfer, TransferEngine,
        TransferError, TransferPlan,
    };
}
