//! `dynamo_llm` keeps the key-value cache of LLM inference in *blocks* and each block on the
//! cheapest tier that still pays. A prefix that was computed once is found again by its sequence
//! hash, brought back, verified, and handed out.
//!
//! This file is a map. The floors, lowest first; a module uses lower floors and those to its left
//! on its own, and a test keeps it so:
//!
//! | floor | modules | what they are |
//! |---|---|---|
//! | 0 | `dtype` `sync` `tokens` | element types; locks, from std or loom; token ids to hashes |
//! | 1 | `index` `layout` `config` `metrics` | pure data structures and arithmetic |
//! | 2 | `io` `storage` `seal` | positioned I/O; owned bytes; what proves them |
//! | 3 | `eviction` `events` | which block goes; who is told |
//! | 4 | `pool` | the lifecycle of one tier's slots |
//! | 5 | `transfer` | moving blocks |
//! | 6 | `offload` | what goes down, what comes up |
//! | 7 | `manager` | [`block_manager::KvBlockManager`] over all of it |
//! | 8 | `replay` | request traces through a manager |
//!
//! Users write `use dynamo_llm::block_manager::{KvBlockManager, ...}`.
//!
//! # For the embedder
//!
//! No runtime is needed and none is started: futures run on any executor, and every verb that can
//! wait has a `_blocking` twin. There are no features to choose; the default build is all of it, in
//! pure Rust, and links nothing but libc. The oldest supported compiler is Rust 1.89; 64-bit Linux
//! on `x86_64` and `aarch64`.

#![deny(unsafe_code)]

mod config;
mod dtype;
mod events;
mod eviction;
mod index;
mod io;
mod layout;
mod manager;
mod metrics;
mod offload;
mod pool;
mod replay;
mod seal;
mod storage;
mod sync;
pub mod tokens;
mod transfer;

pub mod block_manager;

/// Types shared with other crates of an inference stack.
pub mod common {
    /// Element types of cached tensors.
    pub mod dtype {
        pub use crate::dtype::{DType, ParseDTypeError};
    }
}

/// The samples of the book, as documentation tests.
#[cfg(doctest)]
mod book {
    macro_rules! chapters {
        ($($name:ident = $path:literal;)*) => {
            $(#[doc = include_str!(concat!("../../book/src/", $path))] struct $name;)*
        };
    }

    chapters! {
        Overview = "core/overview.md";
        BlockManager = "core/block_manager.md";
        Configuration = "core/configuration.md";
        Storage = "core/storage.md";
        BlockPool = "core/block_pool.md";
        BlockData = "core/block_data.md";
        Layout = "core/layout.md";
        Offloading = "core/offloading.md";
        EventsMetrics = "core/events_metrics.md";
        Memory = "advanced/memory.md";
        Errors = "advanced/errors.md";
        ExamplesBasic = "examples/basic.md";
        ExamplesAdvanced = "examples/advanced.md";
    }
}
