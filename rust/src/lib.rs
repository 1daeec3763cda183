//! `dynamo_llm` keeps the key-value cache of LLM inference in *blocks* and each block on the
//! cheapest tier that still pays. A prefix that was computed once is found again by its sequence
//! hash, brought back, verified, and handed out.
//!
//! This file is a map. The floors, lowest first; a module uses lower floors and those to its left
//! on its own:
//!
//! | floor | modules |
//! |---|---|
//! | 0 | [`error`] [`dtype`] [`sync`] [`tokens`] |
//! | 1 | [`index`] [`layout`] [`config`] [`metrics`] |
//! | 2 | [`storage`] [`seal`] |
//! | 3 | [`eviction`] [`events`] |
//! | 4 | [`pool`] |
//! | 5 | [`transfer`] |
//! | 6 | [`offload`] |
//! | 7 | [`manager`] |
//! | 8 | [`replay`] |
//!
//! Users write `use dynamo_llm::block_manager::{KvBlockManager, ...}`.

#![deny(unsafe_code)]

mod config;
mod dtype;
mod error;
mod eviction;
mod events;
mod index;
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
