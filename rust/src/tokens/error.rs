//! What can be wrong with tokens, hashes and engine keys.

use super::{EngineKey, HashScheme};

/// An argument of this part that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// A page without tokens.
    #[error("page_size: 0 given; a page holds at least one token")]
    ZeroPageSize,

    /// A media item that could not be told from another.
    #[error("media: the digest at position {position} is empty; give the digest of its content")]
    EmptyMediaDigest {
        /// Token position of the item.
        position: usize,
    },

    /// A scheme that has no place for media.
    #[error("media: {items} given, but scheme {scheme} knows none; use blake3 or xxh3")]
    MediaUnsupported {
        /// The scheme asked for.
        scheme: HashScheme,
        /// How many media items were given.
        items: usize,
    },

    /// More tokens than the page has room for.
    #[error("tokens: {given} given, room for {remaining} in a page of {page_size}; start the next")]
    BlockFull {
        /// Tokens that were to be added.
        given: usize,
        /// Tokens that would still fit.
        remaining: usize,
        /// Tokens of a full page.
        page_size: usize,
    },

    /// A name that is no scheme.
    #[error("scheme: {name:?} is not known; one of blake3, xxh3, kvbm")]
    UnknownScheme {
        /// The name as given.
        name: String,
    },

    /// An engine hash of a length that no engine uses.
    #[error("hash: {len} bytes given; engine hashes have 8, 16 or 32")]
    HashLength {
        /// Bytes given.
        len: usize,
    },

    /// Text that is no sequence hash.
    #[error("hash: {text:?} is not 32 hexadecimal digits")]
    HashText {
        /// The text as given.
        text: String,
    },

    /// An engine key that is empty or too long.
    #[error("engine key: {len} bytes given; 1 to {} are allowed", EngineKey::MAX_LEN)]
    EngineKeyLength {
        /// Bytes given.
        len: usize,
    },
}
