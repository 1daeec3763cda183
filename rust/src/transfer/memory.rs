//! Blocks in memory: a layout and the storages it describes.

use std::fmt;

use crate::{
    layout::{BlockLayout, Span},
    seal::SealTiling,
    storage::{Storage, StorageError},
    sync::Arc,
};

/// The bytes of one tier's slots.
///
/// Invariant: there is a storage for each that the layout names, at least as large as it asks for,
/// so every span of the layout lies within mapped memory for as long as this value lives.
#[derive(Clone)]
pub struct BlockMemory {
    layout: BlockLayout,
    tiling: SealTiling,
    storages: Vec<Arc<dyn Storage>>,
}

impl BlockMemory {
    /// Joins a layout and its storages.
    ///
    /// # Errors
    /// [`StorageError::InvalidConfig`] when number or sizes do not fit the layout.
    pub fn new(layout: BlockLayout, storages: Vec<Arc<dyn Storage>>) -> Result<Self, StorageError> {
        let needed = layout.storage_sizes();
        if needed.len() != storages.len() {
            return Err(StorageError::InvalidConfig {
                field: "storages",
                value: storages.len().to_string(),
                remedy: "give one for each that the layout names",
            });
        }
        for (storage, &needed) in storages.iter().zip(needed) {
            if storage.size() < needed {
                return Err(StorageError::InvalidConfig {
                    field: "storage size",
                    value: storage.size().to_string(),
                    remedy: "give as many bytes as the layout asks for",
                });
            }
        }
        let regions = layout.num_layers() * layout.outer_dim();
        let tiling = SealTiling::new(regions, layout.region_bytes()).map_err(|error| {
            StorageError::OperationFailed {
                operation: "cutting blocks into tiles",
                reason: error.to_string(),
                remedy: "correct the shape of the blocks",
            }
        })?;
        Ok(Self { layout, tiling, storages })
    }

    /// Where each block lies.
    pub fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// How each block is cut into tiles.
    pub fn tiling(&self) -> SealTiling {
        self.tiling
    }

    /// The memories, in the order the layout numbers them.
    pub fn storages(&self) -> &[Arc<dyn Storage>] {
        &self.storages
    }

    /// Whether the CPU can read and write the bytes.
    ///
    /// # Errors
    /// [`StorageError::NotAccessible`] naming the kind of storage.
    pub fn check_accessible(&self) -> Result<(), StorageError> {
        let hidden = self.storages.iter().find(|s| !s.storage_type().is_host_accessible());
        hidden.map_or(Ok(()), |storage| {
            Err(StorageError::NotAccessible { storage: storage.storage_type() })
        })
    }

    /// Address of a span of the layout.
    pub(crate) fn address(&self, span: Span) -> *mut u8 {
        debug_assert!(span.offset + span.len <= self.storages[span.storage].size());
        (self.storages[span.storage].addr() as usize + span.offset) as *mut u8
    }
}

impl fmt::Debug for BlockMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockMemory({:?})", self.layout)
    }
}
