//! What waits to be written through: keys in order, each once, with weak handles.
//!
//! A block that is evicted before its turn is simply no longer there. A key that is offered again
//! keeps its place; the newest handle to it counts.
//!
//! Blocks that were offered together are a [`Batch`], one chain as a rule. What of it is stored is
//! held in the lower tier until the rest is, so that a batch never makes room for its end by
//! evicting its beginning. When there is no room for the rest it is parked: what was stored can be
//! evicted by others then, and is held again when the rest has its turn. If some of it is gone, the
//! rest would never be found, and is dropped.

use std::collections::{HashMap, VecDeque, hash_map::Entry};

use crate::{
    pool::{ImmutableSlots, WeakSlots},
    sync::{Arc, Mutex},
    tokens::Key,
};

/// Blocks that were offered together.
pub(super) struct Batch {
    upper: WeakSlots,
    stored: Mutex<Stored>,
}

#[derive(Default)]
struct Stored {
    held: Vec<ImmutableSlots>,
    parked: Vec<WeakSlots>,
    /// Some of what was parked is gone.
    broken: bool,
}

impl Batch {
    pub(super) fn new(blocks: &ImmutableSlots) -> Arc<Self> {
        Arc::new(Self { upper: blocks.downgrade(), stored: Mutex::default() })
    }

    /// Holds a block of the batch that is in the lower tier now.
    pub(super) fn hold(&self, block: ImmutableSlots) {
        self.stored.lock().held.push(block);
    }

    /// Lets go of what is stored until [`unpark`](Self::unpark).
    fn park(&self) {
        let held = std::mem::take(&mut self.stored.lock().held);
        let weak: Vec<_> = held.iter().map(ImmutableSlots::downgrade).collect();
        self.stored.lock().parked.extend(weak);
        release(held);
    }

    /// Holds what was stored again; `false` when some of it is gone.
    pub(super) fn unpark(&self) -> bool {
        let parked = std::mem::take(&mut self.stored.lock().parked);
        let held: Vec<_> = parked.iter().map_while(|block| block.upgrade(0)).collect();
        let mut stored = self.stored.lock();
        stored.broken |= held.len() < parked.len();
        stored.held.extend(held);
        !stored.broken
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.stored.lock().held));
    }
}

/// Last first, like every release of a chain.
fn release(blocks: Vec<ImmutableSlots>) {
    blocks.into_iter().rev().for_each(drop);
}

/// One block of a batch. To be dropped under no lock: the last of a batch releases blocks.
#[must_use]
pub(super) struct Handle {
    pub(super) batch: Arc<Batch>,
    position: usize,
}

impl Handle {
    pub(super) fn new(batch: Arc<Batch>, position: usize) -> Self {
        Self { batch, position }
    }

    pub(super) fn upgrade(&self) -> Option<ImmutableSlots> {
        self.batch.upper.upgrade(self.position)
    }
}

/// The queue of one edge.
pub(super) struct Queue {
    order: VecDeque<Key>,
    blocks: HashMap<Key, Handle>,
    bound: usize,
}

impl Queue {
    /// A queue that takes at most `bound` blocks.
    pub(super) fn new(bound: usize) -> Self {
        Self { order: VecDeque::new(), blocks: HashMap::new(), bound }
    }

    /// Takes a block at the end, or a newer handle to one that is there, and gives the older one.
    ///
    /// # Errors
    /// The handle, when there is no room.
    pub(super) fn push(&mut self, key: Key, handle: Handle) -> Result<Option<Handle>, Handle> {
        let room = self.order.len() < self.bound;
        match self.blocks.entry(key) {
            Entry::Occupied(mut older) => Ok(Some(older.insert(handle))),
            Entry::Vacant(new) if room => {
                new.insert(handle);
                self.order.push_back(key);
                Ok(None)
            }
            Entry::Vacant(_) => Err(handle),
        }
    }

    /// Takes a block back whose turn came too early; it is the next again. There is always room:
    /// it had a place before. Gives the handle back if there is a newer one.
    pub(super) fn put_back(&mut self, key: Key, handle: Handle) -> Option<Handle> {
        match self.blocks.entry(key) {
            Entry::Occupied(_) => Some(handle),
            Entry::Vacant(new) => {
                new.insert(handle);
                self.order.push_front(key);
                None
            }
        }
    }

    /// Takes the next block, if it is of `batch` or that is not stated.
    pub(super) fn pop(&mut self, batch: Option<&Arc<Batch>>) -> Option<(Key, Handle)> {
        let next = self.order.front()?;
        let of_batch = |handle: &Handle| batch.is_none_or(|b| Arc::ptr_eq(b, &handle.batch));
        self.blocks.get(next).filter(|handle| of_batch(handle))?;
        let key = self.order.pop_front()?;
        Some((key, self.blocks.remove(&key)?))
    }

    /// Moves the first batch behind the others; gives it, to be parked under no lock.
    pub(super) fn rotate(&mut self) -> Option<Parked> {
        let batch = self.blocks.get(self.order.front()?)?.batch.clone();
        let mut moved = 0;
        while moved < self.order.len()
            && let Some((key, handle)) = self.pop(Some(&batch))
        {
            self.blocks.insert(key, handle);
            self.order.push_back(key);
            moved += 1;
        }
        Some(Parked { batch, blocks: moved })
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// A batch that had its turn and found no room.
pub(super) struct Parked {
    batch: Arc<Batch>,
    /// Its blocks in the queue.
    pub(super) blocks: usize,
}

impl Parked {
    pub(super) fn park(&self) {
        self.batch.park();
    }
}
