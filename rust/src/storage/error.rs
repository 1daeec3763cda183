//! What can go wrong with owned bytes.

use super::{MemoryLimit, StorageType};

/// A storage could not be made or used.
///
/// Sizes are bytes. The type is `Clone` because one failure is reported for each block it hit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// There is not so much room.
    #[error(
        "size: {requested} bytes were requested, {available} are available under {limit}; \
         ask for less or raise that limit"
    )]
    AllocationFailed {
        /// What was asked for.
        requested: u64,
        /// What the tightest limit leaves.
        available: u64,
        /// The limit that decided.
        limit: MemoryLimit,
    },
    /// The host cannot reach these bytes through a pointer.
    #[error(
        "{storage} storage holds no bytes that the CPU can reach; \
         copy them to system or pinned storage first"
    )]
    NotAccessible {
        /// The kind of storage.
        storage: StorageType,
    },
    /// An argument that can never work.
    #[error("{field}: {value} is not usable; {remedy}")]
    InvalidConfig {
        /// The argument or configuration field.
        field: &'static str,
        /// What was given.
        value: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The operating system refused an operation.
    #[error("{operation} failed: {reason}; {remedy}")]
    OperationFailed {
        /// The operation.
        operation: &'static str,
        /// What the system said.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A call of the CUDA driver failed.
    #[error("CUDA call {call} failed with code {code}: {reason}")]
    Cuda {
        /// The driver function.
        call: &'static str,
        /// The driver's result code.
        code: i32,
        /// The driver's text for the code.
        reason: String,
    },
    /// The storage is already registered under this key.
    #[error("key: {key:?} is already registered for this storage; release it first")]
    RegistrationKeyExists {
        /// The key.
        key: String,
    },
    /// The storage is not registered under this key.
    #[error("key: {key:?} is not registered for this storage; register it first")]
    HandleNotFound {
        /// The key.
        key: String,
    },
    /// NIXL reported an error.
    #[error("NIXL failed: {reason}")]
    NixlError {
        /// NIXL's own text.
        reason: String,
    },
    /// A range that is not inside the storage.
    #[error(
        "offset, len: {len} bytes from {offset} do not fit a storage of {size} bytes; \
         offset + len may be at most its size"
    )]
    OutOfBounds {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes there are.
        size: usize,
    },
}

impl StorageError {
    /// Refuses a size of 0, which is never a region and easily an unset field.
    pub(super) fn require_nonzero(size: usize) -> Result<(), Self> {
        if size == 0 {
            return Err(Self::InvalidConfig {
                field: "size",
                value: "0 bytes".to_owned(),
                remedy: "give at least 1 byte, or switch the tier off by giving it 0 blocks",
            });
        }
        Ok(())
    }
}
