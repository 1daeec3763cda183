//! From token ids to block identities.
//!
//! A sequence is cut into pages of `page_size` tokens. [`hash_tokens`] names each full page by a
//! [`SequenceHash`] chained over the pages before it, so that equal hashes mean equal prefixes; a
//! partial last page has no name. [`TokenBlockSequence`] does the same for a sequence that grows
//! token by token, [`TokenBlock`] for one page that is being filled.
//!
//! # What enters a hash
//!
//! Everything that changes the bytes of a block and is not fixed for a whole cache: the tokens, the
//! pages before, and the [`Identity`] of the sequence (tenant salt, adapter, media at their
//! positions). Not here: the group of layers (it stands beside the hash in [`Key`]) and the model,
//! data type and layout (they are the cache's fingerprint).
//!
//! # The chain
//!
//! `H(domain, parent, message)` is the keyed hash of a scheme, with 128 bits of output. A *part* is
//! its tag (1 byte), the length of its content (8 bytes, little-endian) and its content, so that no
//! two lists of parts have the same bytes.
//!
//! ```text
//! root     = H(ident, 0, part(1, salt)? part(2, adapter)?)          absent parts are left out
//! parent'  = H(media, parent, part(3, offset in page, digest) ...)  pages in which media start
//! block    = H(block, parent', tokens as little-endian u32)
//! ```
//!
//! - [`HashScheme::Blake3`]: the first 16 bytes of BLAKE3 in keyed mode; the key is the parent's 16
//!   bytes and the domain's 16-byte tag (`dynamo_llm ident`, `... media`, `... block`). A page of 16
//!   tokens is one compression.
//! - [`HashScheme::Xxh3`]: XXH3-128 of the parent's 16 bytes and the message; the seed is the last 8
//!   bytes of the domain's tag, little-endian. Not collision-resistant: for one trust domain.
//! - [`HashScheme::Kvbm`]: the 64-bit values of KVBM 1.6.1, for routers that recompute them. It has
//!   its own chain and knows no media.
//!
//! The definition never changes: hashes are stored on disk and compared between machines. Vectors
//! are checked in.
//!
//! # Costs
//!
//! One hash per call for the root, one per page, and one more for a page in which media start. A
//! handful of allocations per call (result, media, one page's bytes), none per page without media.
//! A page's tokens are copied once, into its bytes.

mod block;
mod engine;
mod error;
mod hasher;
mod identity;
mod key;
mod scheme;
mod sequence;

pub use block::TokenBlock;
pub use engine::EngineKey;
pub use error::TokenError;
pub use identity::{Identity, MediaItem};
pub use key::{Key, SequenceHash};
pub use scheme::HashScheme;
pub use sequence::TokenBlockSequence;

use hasher::BlockHasher;

/// The sequence hashes of the full pages of `tokens`, first page first.
///
/// A partial last page is dropped. The result for a prefix of `tokens` is a prefix of the result:
/// media whose position lies past the end have no effect.
///
/// # Errors
///
/// [`TokenError::ZeroPageSize`], and what `identity` cannot express in its scheme:
/// [`TokenError::EmptyMediaDigest`], [`TokenError::MediaUnsupported`].
///
/// ```
/// use dynamo_llm::tokens::{Identity, hash_tokens};
///
/// let tokens: Vec<u32> = (0..40).collect();
/// let plain = hash_tokens(&tokens, 16, &Identity::new())?;
/// let tenant = hash_tokens(&tokens, 16, &Identity::new().with_salt("tenant-1"))?;
/// assert_eq!(plain.len(), 2);
/// assert_ne!(plain[0], tenant[0]);
/// # Ok::<(), dynamo_llm::tokens::TokenError>(())
/// ```
pub fn hash_tokens(
    tokens: &[u32],
    page_size: usize,
    identity: &Identity,
) -> Result<Vec<SequenceHash>, TokenError> {
    let mut hasher = BlockHasher::new(page_size, identity)?;
    let mut hashes = Vec::with_capacity(tokens.len() / page_size);
    hasher.pages(tokens, &mut hashes);
    Ok(hashes)
}
