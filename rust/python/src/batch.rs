//! Who owns blocks in Python: a batch, shared by the lists and blocks that show it.
//!
//! A batch is what one verb handed out. It keeps the pool's own handle of all its slots for as long
//! as nobody singles one out, so allocating, registering and releasing many blocks costs one lock
//! each. Exporting or filling one block, or releasing a part, takes the handle apart.
//!
//! A slot goes back when its batch lets go (release, or the last list and block are gone) *and* its
//! last export has ended. A writable slot has one owner in the core, so batch and exports share that
//! owner, in a [`Keeper`].
//!
//! The lock of a batch is held for moves of handles alone: never while a Python object is made or
//! dropped, never across giving the interpreter lock up. Handles are dropped after it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use dynamo_llm::{
    block_manager::{
        Registration,
        offload::TierBlocks,
        pool::{ImmutableSlots, MutableSlots},
    },
    tokens::{Key, SequenceHash, TokenBlock},
};

use crate::{error::Failure, hashes::Hashes, view::View};

/// What one verb handed out.
pub(crate) struct Batch {
    tier: Arc<TierBlocks>,
    device_id: i32,
    len: usize,
    /// What the blocks are registered under.
    hashes: Option<Hashes>,
    state: Mutex<State>,
    /// The whole was released: what comes back later goes on to the pool. Changed under the lock.
    released: AtomicBool,
}

enum State {
    Writable(MutableSlots),
    Registered(ImmutableSlots),
    /// By position; `None` is released, or registered and now another batch's.
    Parts(Vec<Option<Part>>),
}

enum Part {
    Writable(Filling),
    Registered(ImmutableSlots),
}

/// One writable block and the tokens it is filled with.
pub(crate) struct Filling {
    keeper: Arc<Keeper>,
    pub(crate) tokens: Option<TokenBlock>,
    pub(crate) complete: bool,
}

/// The owner of one writable slot. When the slot is registered although it is exported, the owner
/// of the registered one takes its place.
pub(crate) struct Keeper(Mutex<Option<Kept>>);

enum Kept {
    Writable(MutableSlots),
    Registered(ImmutableSlots),
}

/// What keeps exported slots, by being dropped later.
#[expect(dead_code, reason = "kept for their drop")]
pub(crate) enum Owner {
    Writable(Vec<Arc<Keeper>>),
    Registered(ImmutableSlots),
}

/// Slots on their way to be registered or overwritten.
pub(crate) struct Taken {
    pub(crate) slots: MutableSlots,
    /// What goes back with them when they are refused; none when nobody singled one out.
    fillings: Vec<Filling>,
}

impl Keeper {
    fn new(slot: MutableSlots) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Kept::Writable(slot)))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> Option<u32> {
        match self.lock().as_ref()? {
            Kept::Writable(slot) => slot.ids().first().copied(),
            Kept::Registered(slot) => slot.ids().first().copied(),
        }
    }

    fn take(&self) -> Option<MutableSlots> {
        let mut kept = self.lock();
        match kept.take()? {
            Kept::Writable(slot) => Some(slot),
            other @ Kept::Registered(_) => {
                *kept = Some(other);
                None
            }
        }
    }

    fn put(&self, slot: Kept) {
        let before = self.lock().replace(slot);
        drop(before);
    }
}

impl Filling {
    fn new(slot: MutableSlots) -> Self {
        Self { keeper: Keeper::new(slot), tokens: None, complete: false }
    }

    /// Whether somebody else than its batch can write it.
    fn is_exported(&self) -> bool {
        Arc::strong_count(&self.keeper) > 1
    }

    /// The hash of its tokens once they are committed.
    pub(crate) fn sequence_hash(&self) -> Option<SequenceHash> {
        self.tokens.as_ref().filter(|_| self.complete)?.sequence_hash()
    }

    fn registration(&self) -> Option<Registration> {
        let hash = self.sequence_hash()?;
        let parent = self.tokens.as_ref().and_then(TokenBlock::parent);
        Some(Registration { parent, ..Registration::new(Key::from(hash)) })
    }
}

impl Taken {
    /// The name that each block's tokens give it, if they do.
    pub(crate) fn names(&self) -> impl Iterator<Item = Option<Registration>> {
        (0..self.slots.len()).map(|nth| self.fillings.get(nth)?.registration())
    }

    /// Hands the slots on; what is left puts them back, or follows them.
    pub(crate) fn split(self) -> (MutableSlots, TakenFrom) {
        (self.slots, TakenFrom { fillings: self.fillings })
    }
}

/// The rest of a [`Taken`] whose slots have gone on.
pub(crate) struct TakenFrom {
    fillings: Vec<Filling>,
}

impl TakenFrom {
    /// The slots are registered now, from `start` on in `slots`: exports that are still there keep
    /// them as such.
    pub(crate) fn registered(self, slots: &ImmutableSlots, start: usize) {
        for (nth, filling) in (start..).zip(self.fillings) {
            if filling.is_exported() {
                filling.keeper.put(Kept::Registered(slots.slice(nth..nth + 1)));
            }
        }
    }

    /// What goes with each of the `len` slots.
    pub(crate) fn singles(self, len: usize) -> impl Iterator<Item = Self> {
        let mut fillings = self.fillings.into_iter();
        (0..len).map(move |_| Self { fillings: fillings.next().into_iter().collect() })
    }
}

/// The block at a position is not this batch's any more.
fn gone(position: usize) -> Failure {
    Failure::manager(format!(
        "block {position} of its list was released or registered: it is no longer valid; use the \
         list that registering returned, or allocate again"
    ))
}

fn registered_already(position: usize) -> Failure {
    Failure::manager(format!(
        "block {position} of its list is registered: registered blocks are shared and never \
         change; allocate a new one"
    ))
}

impl State {
    /// One part for each position.
    fn parts(&mut self) -> &mut Vec<Option<Part>> {
        let parts: Vec<Option<Part>> = match std::mem::replace(self, State::Parts(Vec::new())) {
            State::Writable(slots) => {
                slots.into_singles().map(|slot| Some(Part::Writable(Filling::new(slot)))).collect()
            }
            State::Registered(slots) => {
                slots.into_singles().map(|slot| Some(Part::Registered(slot))).collect()
            }
            State::Parts(parts) => parts,
        };
        *self = State::Parts(parts);
        match self {
            State::Parts(parts) => parts,
            // Replaced two lines up.
            State::Writable(_) | State::Registered(_) => unreachable!(),
        }
    }
}

impl Batch {
    pub(crate) fn writable(tier: Arc<TierBlocks>, device_id: i32, slots: MutableSlots) -> Self {
        let (len, state) = (slots.len(), Mutex::new(State::Writable(slots)));
        Self { tier, device_id, len, hashes: None, state, released: AtomicBool::new(false) }
    }

    /// Blocks that are registered under `hashes`, in order.
    pub(crate) fn registered(
        tier: Arc<TierBlocks>,
        device_id: i32,
        slots: ImmutableSlots,
        hashes: Hashes,
    ) -> Self {
        let (len, state) = (slots.len(), Mutex::new(State::Registered(slots)));
        Self { tier, device_id, len, hashes: Some(hashes), state, released: AtomicBool::new(false) }
    }

    pub(crate) fn tier(&self) -> &Arc<TierBlocks> {
        &self.tier
    }

    pub(crate) fn device_id(&self) -> i32 {
        self.device_id
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the block at `position` is still this batch's.
    pub(crate) fn is_valid(&self, position: usize) -> bool {
        match &*self.lock() {
            State::Writable(_) | State::Registered(_) => true,
            State::Parts(parts) => parts[position].is_some(),
        }
    }

    /// Whether any block of `view` is.
    pub(crate) fn any_valid(&self, view: View) -> bool {
        match &*self.lock() {
            State::Writable(_) | State::Registered(_) => view.len() > 0,
            State::Parts(parts) => view.positions().any(|position| parts[position].is_some()),
        }
    }

    /// Whether the blocks are shared and read-only.
    pub(crate) fn is_registered(&self) -> bool {
        self.hashes.is_some()
    }

    /// The slots of the blocks.
    pub(crate) fn ids(&self, view: View) -> Result<Vec<u32>, Failure> {
        let state = self.lock();
        let id = |position: usize| match &*state {
            State::Writable(slots) => slots.ids().get(position).copied(),
            State::Registered(slots) => slots.ids().get(position).copied(),
            State::Parts(parts) => match parts[position].as_ref()? {
                Part::Writable(filling) => filling.keeper.id(),
                Part::Registered(slot) => slot.ids().first().copied(),
            },
        };
        view.positions().map(|position| id(position).ok_or_else(|| gone(position))).collect()
    }

    /// What the block is registered under, or the hash of its committed tokens.
    pub(crate) fn sequence_hash(&self, position: usize) -> Result<Option<SequenceHash>, Failure> {
        let state = self.lock();
        match &*state {
            State::Parts(parts) => match &parts[position] {
                None => return Err(gone(position)),
                Some(Part::Writable(filling)) => return Ok(filling.sequence_hash()),
                Some(Part::Registered(_)) => {}
            },
            State::Writable(_) | State::Registered(_) => {}
        }
        Ok(self.hashes.as_ref().and_then(|hashes| hashes.as_slice().get(position).copied()))
    }

    /// Lets go of the blocks of `view`, the last first. Those that are gone already stay so.
    pub(crate) fn release(&self, view: View) {
        let mut state = self.lock();
        if view.is_whole(self.len) {
            let none = std::iter::repeat_with(|| None).take(self.len).collect();
            let whole = std::mem::replace(&mut *state, State::Parts(none));
            self.released.store(true, Ordering::Relaxed);
            drop(state);
            match whole {
                State::Writable(slots) => drop(slots),
                State::Registered(slots) => drop(slots),
                State::Parts(parts) => release_parts(parts.into_iter().flatten()),
            }
        } else {
            let parts = state.parts();
            let taken: Vec<Part> = view.positions().filter_map(|at| parts[at].take()).collect();
            drop(state);
            release_parts(taken.into_iter());
        }
    }

    /// Another handle of registered blocks.
    pub(crate) fn share(&self, view: View) -> Result<ImmutableSlots, Failure> {
        let mut state = self.lock();
        let unregistered = |position: usize| {
            Failure::manager(format!(
                "block {position} of its list is not registered: register it first"
            ))
        };
        if let (State::Registered(slots), Some(range)) = (&*state, view.range()) {
            return Ok(slots.slice(range));
        }
        if let State::Writable(_) = &*state {
            return Err(unregistered(view.positions().next().unwrap_or(0)));
        }
        let parts = state.parts();
        let shared: Result<Vec<ImmutableSlots>, Failure> = view
            .positions()
            .map(|position| match &parts[position] {
                Some(Part::Registered(slot)) => Ok(slot.clone()),
                Some(Part::Writable(_)) => Err(unregistered(position)),
                None => Err(gone(position)),
            })
            .collect();
        let shared = shared?;
        ImmutableSlots::join(shared).ok_or_else(|| Failure::manager("no blocks were given"))
    }

    /// What keeps the blocks of `view` for an export, and their slots.
    pub(crate) fn owner(&self, view: View) -> Result<(Owner, Vec<u32>), Failure> {
        if self.is_registered() {
            let slots = match view.len() {
                0 => return Ok((Owner::Writable(Vec::new()), Vec::new())),
                _ => self.share(view)?,
            };
            let ids = slots.ids().to_vec();
            return Ok((Owner::Registered(slots), ids));
        }
        let mut state = self.lock();
        let parts = state.parts();
        let mut keepers = Vec::with_capacity(view.len());
        for position in view.positions() {
            match &parts[position] {
                Some(Part::Writable(filling)) => keepers.push(filling.keeper.clone()),
                Some(Part::Registered(_)) | None => return Err(gone(position)),
            }
        }
        drop(state);
        let ids = keepers.iter().map(|keeper| keeper.id()).collect::<Option<Vec<u32>>>();
        // Registered between the two steps by another thread.
        let ids = ids.ok_or_else(|| gone(view.at(0)))?;
        Ok((Owner::Writable(keepers), ids))
    }

    /// Takes writable blocks out, to register them or to copy into them. Exported ones only where
    /// `aliases` are allowed.
    pub(crate) fn take(&self, view: View, aliases: bool) -> Result<Taken, Failure> {
        let mut state = self.lock();
        if view.is_whole(self.len) && matches!(*state, State::Writable(_)) {
            let none = std::iter::repeat_with(|| None).take(self.len).collect();
            if let State::Writable(slots) = std::mem::replace(&mut *state, State::Parts(none)) {
                return Ok(Taken { slots, fillings: Vec::new() });
            }
        }
        if let State::Registered(_) = *state {
            return Err(registered_already(view.positions().next().unwrap_or(0)));
        }
        let parts = state.parts();
        for position in view.positions() {
            match &parts[position] {
                None => return Err(gone(position)),
                Some(Part::Registered(_)) => return Err(registered_already(position)),
                Some(Part::Writable(filling)) if !aliases && filling.is_exported() => {
                    return Err(Failure::manager(format!(
                        "block {position} of its list is still exported: an array made from it \
                         could go on writing; drop the array, or pass allow_aliases=True"
                    )));
                }
                Some(Part::Writable(_)) => {}
            }
        }
        let fillings: Vec<Filling> = view
            .positions()
            .filter_map(|position| match parts[position].take() {
                Some(Part::Writable(filling)) => Some(filling),
                Some(Part::Registered(_)) | None => None,
            })
            .collect();
        let slots = MutableSlots::join(fillings.iter().filter_map(|f| f.keeper.take()));
        drop(state);
        let slots = slots.ok_or_else(|| Failure::manager("no blocks were given"))?;
        Ok(Taken { slots, fillings })
    }

    /// Puts blocks back that `take` had taken from `view` and nobody used.
    pub(crate) fn put_back(&self, view: View, slots: MutableSlots, from: TakenFrom) {
        let mut state = self.lock();
        if self.released.load(Ordering::Relaxed) {
            drop(state);
            drop(slots);
            return;
        }
        if view.is_whole(self.len) && from.fillings.is_empty() {
            let before = std::mem::replace(&mut *state, State::Writable(slots));
            drop(state);
            drop(before);
            return;
        }
        let mut fillings = from.fillings.into_iter();
        let parts = state.parts();
        for (position, slot) in view.positions().zip(slots.into_singles()) {
            let filling = match fillings.next() {
                Some(filling) => {
                    filling.keeper.put(Kept::Writable(slot));
                    filling
                }
                None => Filling::new(slot),
            };
            parts[position] = Some(Part::Writable(filling));
        }
    }

    /// Runs `with` on the block at `position`, to fill it with tokens.
    pub(crate) fn fill<T>(
        &self,
        position: usize,
        with: impl FnOnce(&mut Filling) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut state = self.lock();
        if let State::Registered(_) = *state {
            return Err(registered_already(position));
        }
        match &mut state.parts()[position] {
            Some(Part::Writable(filling)) => with(filling),
            Some(Part::Registered(_)) => Err(registered_already(position)),
            None => Err(gone(position)),
        }
    }
}

/// The last first, and what can be in one step.
fn release_parts(parts: impl DoubleEndedIterator<Item = Part>) {
    let mut registered = Vec::new();
    for part in parts.rev() {
        match part {
            Part::Writable(filling) => drop(filling),
            Part::Registered(slot) => registered.push(slot),
        }
    }
    registered.reverse();
    drop(ImmutableSlots::join(registered));
}
