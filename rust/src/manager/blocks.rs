//! Single blocks with their bytes.
//!
//! The type says what may be done: a [`MutableBlock`] has one owner and can be written, an
//! [`ImmutableBlock`] is shared and can be read, a [`WeakBlock`] owns nothing. A mutable block goes
//! from reset to partial to complete, and becomes immutable when its pool registers it.
#![allow(unsafe_code)]

use std::{fmt, slice};

use super::BlockError;
use crate::{
    eviction::SlotId,
    layout::Span,
    offload::TierBlocks,
    pool::{ImmutableSlots, MutableSlots, Registration, WeakSlots},
    sync::Arc,
    tokens::{Identity, Key, SequenceHash, TokenBlock},
};

/// A block that its one owner may fill.
///
/// Bytes are those of whatever was in the slot before, zero at its first use. Dropping it frees
/// the slot.
pub struct MutableBlock {
    pub(super) tier: Arc<TierBlocks>,
    pub(super) slot: MutableSlots,
    tokens: Option<TokenBlock>,
    complete: bool,
}

/// How far a mutable block is.
#[derive(Default)]
pub(super) struct Filling {
    tokens: Option<TokenBlock>,
    complete: bool,
}

/// A registered block, shared by its readers.
#[derive(Clone)]
pub struct ImmutableBlock {
    pub(super) tier: Arc<TierBlocks>,
    pub(super) slot: ImmutableSlots,
}

/// A block that may be gone.
#[derive(Clone)]
pub struct WeakBlock {
    tier: Arc<TierBlocks>,
    slot: WeakSlots,
}

macro_rules! shape {
    () => {
        /// Number of its slot in its tier.
        pub fn block_id(&self) -> SlotId {
            self.slot.ids()[0]
        }

        /// Layers.
        pub fn num_layers(&self) -> usize {
            self.tier.layout().num_layers()
        }

        /// Tokens.
        pub fn page_size(&self) -> usize {
            self.tier.layout().page_size()
        }

        /// Elements per token, layer and outer index.
        pub fn inner_dim(&self) -> usize {
            self.tier.layout().inner_dim()
        }

        /// 2 where K and V lie apart, 1 where they are one.
        pub fn num_outer_dims(&self) -> usize {
            self.tier.layout().outer_dim()
        }

        /// The bytes of one layer's K (`outer` 0) or V (1): `page_size * inner_dim` elements.
        ///
        /// # Errors
        /// [`BlockError`] for an index that does not exist, memory that the CPU cannot reach, and
        /// a layout that spreads the region.
        pub fn layer_view(&self, layer: usize, outer: usize) -> Result<&[u8], BlockError> {
            let (start, len) = region(&self.tier, self.block_id(), layer, outer)?;
            // SAFETY: the handle keeps the slot ours and the memory mapped, and only
            // `&mut self` of the slot's one owner writes it.
            Ok(unsafe { slice::from_raw_parts(start, len) })
        }

        /// The bytes of the whole block, where they are one run.
        ///
        /// # Errors
        /// [`BlockError::NotContiguous`] in layouts that spread a block; memory that the CPU
        /// cannot reach.
        pub fn block_view(&self) -> Result<&[u8], BlockError> {
            let (start, len) = whole(&self.tier, self.block_id())?;
            // SAFETY: as for `layer_view`.
            Ok(unsafe { slice::from_raw_parts(start, len) })
        }
    };
}

impl MutableBlock {
    /// A block in a slot of `tier`.
    pub(super) fn new(tier: Arc<TierBlocks>, slot: MutableSlots) -> Self {
        Self::with_filling(tier, slot, Filling::default())
    }

    pub(super) fn with_filling(
        tier: Arc<TierBlocks>,
        slot: MutableSlots,
        filling: Filling,
    ) -> Self {
        let Filling { tokens, complete } = filling;
        Self { tier, slot, tokens, complete }
    }

    pub(super) fn into_parts(self) -> (MutableSlots, Filling) {
        (self.slot, Filling { tokens: self.tokens, complete: self.complete })
    }

    shape!();

    /// The bytes of one layer's K or V, to write.
    ///
    /// # Errors
    /// As [`layer_view`](Self::layer_view).
    pub fn layer_view_mut(&mut self, layer: usize, outer: usize) -> Result<&mut [u8], BlockError> {
        let (start, len) = region(&self.tier, self.block_id(), layer, outer)?;
        // SAFETY: the slot's one owner is borrowed mutably, and the memory stays mapped.
        Ok(unsafe { slice::from_raw_parts_mut(start, len) })
    }

    /// The bytes of the whole block, to write, where they are one run.
    ///
    /// # Errors
    /// As [`block_view`](Self::block_view).
    pub fn block_view_mut(&mut self) -> Result<&mut [u8], BlockError> {
        let (start, len) = whole(&self.tier, self.block_id())?;
        // SAFETY: as for `layer_view_mut`.
        Ok(unsafe { slice::from_raw_parts_mut(start, len) })
    }

    /// Whether its content is final.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Declares the content final without tokens; the hash is then given when it is registered.
    pub fn mark_complete(&mut self) {
        self.complete = true;
    }

    /// The hash of its tokens, once they are committed.
    pub fn sequence_hash(&self) -> Option<SequenceHash> {
        let tokens = self.tokens.as_ref().filter(|_| self.complete)?;
        tokens.sequence_hash()
    }

    /// Starts a sequence of tokens with this block, under `salt` if there is one.
    ///
    /// # Errors
    /// [`BlockError::AlreadyComplete`].
    pub fn init_sequence(&mut self, salt: Option<&str>) -> Result<(), BlockError> {
        let identity = salt.map_or_else(Identity::new, |salt| Identity::new().with_salt(salt));
        self.init_sequence_as(&identity)
    }

    /// Starts a sequence of tokens with this block, hashed as `identity` says.
    ///
    /// # Errors
    /// [`BlockError::AlreadyComplete`], and [`BlockError::Tokens`] for an identity that its scheme
    /// cannot express.
    pub fn init_sequence_as(&mut self, identity: &Identity) -> Result<(), BlockError> {
        self.check_open()?;
        self.tokens = Some(TokenBlock::new(self.page_size(), identity)?);
        Ok(())
    }

    /// Continues the sequence of `previous`, which must be full.
    ///
    /// # Errors
    /// [`BlockError::AlreadyComplete`], [`BlockError::NoSequence`] when `previous` has none,
    /// [`BlockError::NotFull`] when it lacks tokens.
    pub fn continue_sequence(&mut self, previous: &MutableBlock) -> Result<(), BlockError> {
        self.check_open()?;
        let before = previous.tokens.as_ref().ok_or(BlockError::NoSequence)?;
        let following =
            before.following().ok_or(BlockError::NotFull { remaining: before.remaining() })?;
        self.tokens = Some(following);
        Ok(())
    }

    /// Adds one token.
    ///
    /// # Errors
    /// [`BlockError::NoSequence`], [`BlockError::AlreadyComplete`], [`BlockError::Tokens`] when
    /// the block is full.
    pub fn add_token(&mut self, token: u32) -> Result<(), BlockError> {
        Ok(self.open_tokens()?.push(token)?)
    }

    /// Adds tokens, all or none.
    ///
    /// # Errors
    /// As [`add_token`](Self::add_token).
    pub fn add_tokens(&mut self, tokens: &[u32]) -> Result<(), BlockError> {
        Ok(self.open_tokens()?.extend(tokens)?)
    }

    /// Takes the last token off; `None` when there is none.
    ///
    /// # Errors
    /// [`BlockError::NoSequence`], [`BlockError::AlreadyComplete`].
    pub fn pop_token(&mut self) -> Result<Option<u32>, BlockError> {
        Ok(self.open_tokens()?.pop())
    }

    /// Takes the last `count` tokens off, or all if there are fewer.
    ///
    /// # Errors
    /// As [`pop_token`](Self::pop_token).
    pub fn pop_tokens(&mut self, count: usize) -> Result<(), BlockError> {
        let tokens = self.open_tokens()?;
        tokens.truncate(tokens.tokens().len().saturating_sub(count));
        Ok(())
    }

    /// Declares tokens and bytes final; the block has its hash from now on.
    ///
    /// # Errors
    /// [`BlockError::NoSequence`], [`BlockError::NotFull`], [`BlockError::AlreadyComplete`].
    pub fn commit(&mut self) -> Result<SequenceHash, BlockError> {
        let tokens = self.open_tokens()?;
        let hash =
            tokens.sequence_hash().ok_or(BlockError::NotFull { remaining: tokens.remaining() })?;
        self.complete = true;
        Ok(hash)
    }

    /// Tokens that the block lacks; a whole page before it has a sequence.
    pub fn remaining(&self) -> usize {
        self.tokens.as_ref().map_or(self.page_size(), TokenBlock::remaining)
    }

    /// Whether it has all its tokens.
    pub fn is_full(&self) -> bool {
        self.remaining() == 0
    }

    /// Under which name its tokens register it; `None` until they are committed.
    pub(super) fn registration(&self) -> Option<Registration> {
        let hash = self.sequence_hash()?;
        let parent = self.tokens.as_ref().and_then(TokenBlock::parent);
        Some(Registration { parent, ..Registration::new(Key::from(hash)) })
    }

    fn check_open(&self) -> Result<(), BlockError> {
        if self.complete { Err(BlockError::AlreadyComplete) } else { Ok(()) }
    }

    fn open_tokens(&mut self) -> Result<&mut TokenBlock, BlockError> {
        self.check_open()?;
        self.tokens.as_mut().ok_or(BlockError::NoSequence)
    }
}

impl ImmutableBlock {
    /// A block in a slot of `tier`.
    pub(super) fn new(tier: Arc<TierBlocks>, slot: ImmutableSlots) -> Self {
        Self { tier, slot }
    }

    shape!();

    /// The hash it was registered under.
    pub fn sequence_hash(&self) -> SequenceHash {
        self.slot.registrations()[0].key.hash
    }

    /// A handle that keeps nothing.
    pub fn downgrade(&self) -> WeakBlock {
        WeakBlock { tier: self.tier.clone(), slot: self.slot.downgrade() }
    }
}

impl WeakBlock {
    /// The block, if it is still there.
    pub fn upgrade(&self) -> Option<ImmutableBlock> {
        let slot = self.slot.upgrade(0)?;
        Some(ImmutableBlock { tier: self.tier.clone(), slot })
    }
}

/// Address and length of one region.
fn region(
    tier: &TierBlocks,
    block: SlotId,
    layer: usize,
    outer: usize,
) -> Result<(*mut u8, usize), BlockError> {
    let layout = tier.layout();
    let (num_layers, outer_dim) = (layout.num_layers(), layout.outer_dim());
    if layer >= num_layers {
        return Err(BlockError::InvalidLayerIndex { layer, num_layers });
    }
    if outer >= outer_dim {
        return Err(BlockError::InvalidOuterIndex { outer, outer_dim });
    }
    let mut spans = layout.region_spans(block as usize, layer, outer)?;
    single(tier, spans.next(), spans.next(), "the layer")
}

/// Address and length of a block.
fn whole(tier: &TierBlocks, block: SlotId) -> Result<(*mut u8, usize), BlockError> {
    single(tier, tier.layout().contiguous_block(block as usize), None, "the block")
}

fn single(
    tier: &TierBlocks,
    first: Option<Span>,
    second: Option<Span>,
    what: &'static str,
) -> Result<(*mut u8, usize), BlockError> {
    tier.memory()?.check_accessible()?;
    match (first, second) {
        (Some(span), None) => Ok((tier.memory()?.address(span), span.len)),
        _ => Err(BlockError::NotContiguous { what }),
    }
}

impl fmt::Debug for MutableBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutableBlock")
            .field("tier", &self.tier.tier())
            .field("block_id", &self.block_id())
            .field("complete", &self.complete)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ImmutableBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImmutableBlock")
            .field("tier", &self.tier.tier())
            .field("block_id", &self.block_id())
            .field("sequence_hash", &self.sequence_hash())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WeakBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeakBlock({}: {:?})", self.tier.tier(), self.slot)
    }
}
