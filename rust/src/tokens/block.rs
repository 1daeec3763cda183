//! One page that is being filled.

use super::hasher::BlockHasher;
use super::{Identity, SequenceHash, TokenError};

/// The tokens of one page, added one by one; named once the page is full.
///
/// A block knows its place in a sequence (index and parent), so its hash is the one that
/// [`hash_tokens`](super::hash_tokens) gives to that page of the whole sequence.
#[derive(Clone, Debug)]
pub struct TokenBlock {
    hasher: BlockHasher,
    parent: Option<SequenceHash>,
    index: usize,
    tokens: Vec<u32>,
    /// Present exactly while the page is full.
    hash: Option<SequenceHash>,
}

impl TokenBlock {
    /// The first block of a sequence, empty.
    ///
    /// # Errors
    ///
    /// As [`hash_tokens`](super::hash_tokens).
    pub fn new(page_size: usize, identity: &Identity) -> Result<Self, TokenError> {
        Ok(Self::at(BlockHasher::new(page_size, identity)?, 0, None))
    }

    /// Block number `index`, empty, of the sequence that `hasher` names.
    pub(super) fn at(hasher: BlockHasher, index: usize, parent: Option<SequenceHash>) -> Self {
        Self { hasher, parent, index, tokens: Vec::new(), hash: None }
    }

    /// The same block with `tokens`; `hash` is theirs when they fill the page.
    pub(super) fn filled(self, tokens: &[u32], hash: Option<SequenceHash>) -> Self {
        Self { tokens: tokens.to_vec(), hash, ..self }
    }

    /// The block that continues this one, empty; `None` until this one is full.
    pub fn following(&self) -> Option<Self> {
        let hash = self.hash?;
        Some(Self::at(self.hasher.clone(), self.index + 1, Some(hash)))
    }

    /// Adds one token. The last one of the page costs one hash.
    ///
    /// # Errors
    ///
    /// [`TokenError::BlockFull`]; the block is then unchanged.
    pub fn push(&mut self, token: u32) -> Result<(), TokenError> {
        self.extend(&[token])
    }

    /// Adds all of `tokens`, or none of them.
    ///
    /// # Errors
    ///
    /// [`TokenError::BlockFull`]; the block is then unchanged.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<(), TokenError> {
        if tokens.len() > self.remaining() {
            return Err(TokenError::BlockFull {
                given: tokens.len(),
                remaining: self.remaining(),
                page_size: self.page_size(),
            });
        }
        self.tokens.extend_from_slice(tokens);
        if self.is_full() && self.hash.is_none() {
            self.hash = Some(self.hasher.page(self.parent, self.index, &self.tokens));
        }
        Ok(())
    }

    /// Takes the last token back.
    pub fn pop(&mut self) -> Option<u32> {
        let token = self.tokens.pop();
        self.truncate(self.tokens.len());
        token
    }

    /// Keeps the first `len` tokens; does nothing when there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        if !self.is_full() {
            self.hash = None;
        }
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of a full page.
    pub fn page_size(&self) -> usize {
        self.hasher.page_size()
    }

    /// Tokens that still fit.
    pub fn remaining(&self) -> usize {
        self.page_size() - self.tokens.len()
    }

    /// Whether the page has all its tokens.
    pub fn is_full(&self) -> bool {
        self.remaining() == 0
    }

    /// The place of this page in its sequence, the first being 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The hash of the page before; `None` for a sequence's first.
    pub fn parent(&self) -> Option<SequenceHash> {
        self.parent
    }

    /// The page's name; `None` until it is full.
    pub fn sequence_hash(&self) -> Option<SequenceHash> {
        self.hash
    }
}
