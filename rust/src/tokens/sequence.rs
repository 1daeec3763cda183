//! A sequence that grows token by token.

use super::hasher::BlockHasher;
use super::{Identity, SequenceHash, TokenBlock, TokenError};

/// A growing sequence of tokens and the hashes of its full pages, kept in step.
///
/// At every moment `hashes()` is what [`hash_tokens`](super::hash_tokens) gives for `tokens()`. Adding
/// or taking back a token is O(1), and each page costs one hash when its last token arrives. Media
/// belong to the identity, not to the tokens: taking tokens back leaves them at their positions.
#[derive(Clone, Debug)]
pub struct TokenBlockSequence {
    identity: Identity,
    hasher: BlockHasher,
    tokens: Vec<u32>,
    hashes: Vec<SequenceHash>,
}

impl TokenBlockSequence {
    /// An empty sequence.
    ///
    /// # Errors
    ///
    /// As [`hash_tokens`](super::hash_tokens).
    pub fn new(page_size: usize, identity: Identity) -> Result<Self, TokenError> {
        let hasher = BlockHasher::new(page_size, &identity)?;
        Ok(Self { identity, hasher, tokens: Vec::new(), hashes: Vec::new() })
    }

    /// Adds one token; the hash of the page that it completes, if it does.
    pub fn push(&mut self, token: u32) -> Option<SequenceHash> {
        self.extend(&[token]).first().copied()
    }

    /// Adds tokens; the hashes of the pages that they complete, first page first.
    pub fn extend(&mut self, tokens: &[u32]) -> &[SequenceHash] {
        let before = self.hashes.len();
        self.tokens.extend_from_slice(tokens);
        self.hasher.pages(&self.tokens, &mut self.hashes);
        &self.hashes[before..]
    }

    /// Takes the last token back, and with it the hash of a page that is no longer full.
    pub fn pop(&mut self) -> Option<u32> {
        let token = self.tokens.pop();
        self.drop_hashes();
        token
    }

    /// Keeps the first `len` tokens; does nothing when there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.drop_hashes();
    }

    fn drop_hashes(&mut self) {
        self.hashes.truncate(self.tokens.len() / self.page_size());
    }

    /// All tokens, those of the partial last page included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens past the last full page.
    pub fn partial(&self) -> &[u32] {
        &self.tokens[self.hashes.len() * self.page_size()..]
    }

    /// The hashes of the full pages, first page first.
    pub fn hashes(&self) -> &[SequenceHash] {
        &self.hashes
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens of a full page.
    pub fn page_size(&self) -> usize {
        self.hasher.page_size()
    }

    /// What names the sequence beside its tokens.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Page number `index` with its tokens: a full one, or the one that is being filled (perhaps
    /// still empty), which is the last. `None` past that.
    pub fn block(&self, index: usize) -> Option<TokenBlock> {
        let parent = match index.checked_sub(1) {
            Some(before) => Some(*self.hashes.get(before)?),
            None => None,
        };
        let rest = &self.tokens[index * self.page_size()..];
        let tokens = &rest[..rest.len().min(self.page_size())];
        let hash = self.hashes.get(index).copied();
        Some(TokenBlock::at(self.hasher.clone(), index, parent).filled(tokens, hash))
    }
}
