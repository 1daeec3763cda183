//! Blocks in memory: a layout and the storages it describes.
#![allow(unsafe_code)]

use std::fmt;

use super::claims::Claims;

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
    /// Nobody else makes blocks of the same bytes meanwhile. Before `storages`: given up while the
    /// addresses are still taken, so that whoever maps them next finds them free.
    _claims: Arc<Claims>,
    storages: Vec<Arc<dyn Storage>>,
}

impl BlockMemory {
    /// Joins a layout and its storages.
    ///
    /// # Errors
    /// [`StorageError::InvalidConfig`] when there are not as many storages as the layout names, or
    /// when other blocks lie in one of them; [`StorageError::OutOfBounds`] for one that is smaller
    /// than the layout asks for.
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
            let size = storage.size();
            if size < needed {
                return Err(StorageError::OutOfBounds { offset: 0, len: needed, size });
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
        let claims = Arc::new(Claims::new(&storages)?);
        Ok(Self { layout, tiling, storages, _claims: claims })
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

    /// Address of a span of the layout, good for the span's bytes where
    /// [`check_accessible`](Self::check_accessible) says so and meaningless elsewhere. Using it
    /// needs the handle of the slot that the span belongs to.
    pub(crate) fn address(&self, span: Span) -> *mut u8 {
        let storage = &self.storages[span.storage];
        debug_assert!(span.end() <= storage.size());
        // SAFETY: only the address is taken here; whoever uses the bytes vouches for the slot.
        let base = unsafe { storage.as_mut_ptr() };
        base.wrapping_add(span.offset)
    }
}

impl fmt::Debug for BlockMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockMemory({:?})", self.layout)
    }
}
