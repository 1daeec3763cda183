//! Writable blocks, taken out of their lists together, to be registered or copied into.

use std::sync::Arc;

use dynamo_llm::{
    block_manager::{
        Registration, SlotId,
        offload::TierBlocks,
        pool::{ImmutableSlots, MutableSlots},
    },
    tokens::SequenceHash,
};

use crate::{
    batch::{Batch, Taken, TakenFrom},
    block_list::Selection,
    error::Failure,
    view::View,
};

/// Where slots came from, in their order.
pub(crate) struct Gathered {
    sources: Vec<(Arc<Batch>, View, TakenFrom)>,
}

/// Slots of one pool and one generation, with the names that their tokens give them.
pub(crate) struct Writable {
    pub(crate) slots: MutableSlots,
    pub(crate) names: Vec<Option<Registration>>,
    pub(crate) from: Gathered,
}

impl Gathered {
    /// Takes the selected blocks, all or none. There is at least one.
    pub(crate) fn take(
        selection: Selection,
        tier: &TierBlocks,
        aliases: bool,
    ) -> Result<Writable, Failure> {
        let mut taken: Vec<(Arc<Batch>, View, Taken)> = Vec::with_capacity(selection.parts.len());
        let mut refused = None;
        for (batch, view) in selection.parts {
            if view.len() == 0 {
                continue;
            }
            match batch.take(view, aliases) {
                Ok(part) => {
                    refused = foreign(&part.slots, tier);
                    taken.push((batch, view, part));
                }
                Err(error) => refused = Some(error),
            }
            if refused.is_some() {
                break;
            }
        }
        let names = taken.iter().flat_map(|(_, _, part)| part.names()).collect();
        let mut sources = Vec::with_capacity(taken.len());
        let mut singles = Vec::with_capacity(taken.len());
        for (batch, view, part) in taken {
            let (slots, from) = part.split();
            singles.push(slots);
            sources.push((batch, view, from));
        }
        if let Some(error) = refused {
            for ((batch, view, from), slots) in sources.into_iter().zip(singles) {
                batch.put_back(view, slots, from);
            }
            return Err(error);
        }
        // All are of one pool and generation, so joining loses nothing.
        let slots = MutableSlots::join(singles);
        let slots = slots.ok_or_else(|| Failure::manager("no blocks were given"))?;
        Ok(Writable { slots, names, from: Self { sources } })
    }

    /// The slots were refused: the blocks are again what they were.
    pub(crate) fn put_back(self, slots: MutableSlots) {
        let mut rest = slots;
        for (batch, view, from) in self.sources {
            let tail = rest.split_off(view.len());
            batch.put_back(view, rest, from);
            rest = tail;
        }
    }

    /// Of the slots `ids`, those in `unused`, in the same order, were not needed: their blocks are
    /// again what they were.
    pub(crate) fn put_back_unused(self, ids: &[SlotId], unused: MutableSlots) {
        if unused.len() == ids.len() {
            return self.put_back(unused);
        }
        let mut unused = unused.into_singles().peekable();
        let mut ids = ids.iter();
        for (batch, view, from) in self.sources {
            for (nth, from) in from.singles(view.len()).enumerate() {
                let Some(id) = ids.next() else { return };
                if let Some(slot) = unused.next_if(|slot| slot.ids().first() == Some(id)) {
                    batch.put_back(View::one(view.at(nth)), slot, from);
                }
            }
        }
    }

    /// The slots are registered now.
    pub(crate) fn registered(self, slots: &ImmutableSlots) {
        let mut start = 0;
        for (_, view, from) in self.sources {
            from.registered(slots, start);
            start += view.len();
        }
    }
}

impl Writable {
    /// The names that the blocks' own tokens give them.
    pub(crate) fn own_names(&self) -> Result<Vec<Registration>, Failure> {
        let named = |(nth, name): (usize, &Option<Registration>)| {
            name.ok_or_else(|| {
                Failure::manager(format!(
                    "blocks[{nth}] has no hash: give hashes, or fill the block with tokens and \
                     commit it"
                ))
            })
        };
        self.names.iter().enumerate().map(named).collect()
    }

    /// Whether blocks that were filled with tokens are given the hashes of other tokens.
    pub(crate) fn check_names(&self, hashes: &[SequenceHash]) -> Result<(), Failure> {
        for (nth, (name, given)) in self.names.iter().zip(hashes).enumerate() {
            if let Some(name) = name
                && name.key.hash != *given
            {
                return Err(Failure::argument(format!(
                    "hashes[{nth}] = {given}: the block was filled with tokens whose hash is {}; \
                     give that, or no hashes",
                    name.key.hash
                )));
            }
        }
        Ok(())
    }
}

/// Why slots cannot be used in `tier`, if they cannot.
fn foreign(slots: &MutableSlots, tier: &TierBlocks) -> Option<Failure> {
    let (pool, id) = (tier.pool(), slots.ids().first().copied().unwrap_or_default());
    if !slots.belongs_to(pool) {
        return Some(Failure::manager(format!(
            "block {id} belongs to another pool than this {} tier; use the pool that allocated it",
            tier.tier()
        )));
    }
    (slots.generation() != pool.generation()).then(|| {
        Failure::manager(format!(
            "block {id} was allocated before a reset of the {} tier; allocate and fill it again",
            tier.tier()
        ))
    })
}
