//! What changes a sequence's bytes besides its tokens.

use super::{HashScheme, TokenError};

/// An image, sound or other non-text input, by the digest of its content.
///
/// The tokens of such an input are placeholders that look alike for all inputs; the digest tells
/// them apart. It changes the page that contains `position` and, by the chain, all later pages, so
/// every page with a placeholder of it; pages before stay shared with other sequences.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaItem {
    /// Index in the sequence of the input's first placeholder token.
    pub position: usize,
    /// Digest of the content, of any length but 0; used whole.
    pub digest: Box<[u8]>,
}

impl MediaItem {
    /// The input with this digest whose first placeholder is token `position`.
    pub fn new(position: usize, digest: impl Into<Box<[u8]>>) -> Self {
        Self { position, digest: digest.into() }
    }
}

/// How a sequence's blocks are named: the scheme, and all beside the tokens that changes the bytes.
///
/// An empty salt or adapter says nothing and is the same as none. The order in which media are given
/// does not matter. Whether the scheme can express the rest is checked where it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    scheme: HashScheme,
    salt: Option<String>,
    adapter: Option<String>,
    /// Ordered by position, then digest.
    media: Vec<MediaItem>,
}

impl Identity {
    /// The default scheme, and nothing beside the tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names blocks by `scheme`.
    #[must_use]
    pub fn with_scheme(mut self, scheme: HashScheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Shares blocks only with sequences of the same salt (a tenant, usually).
    #[must_use]
    pub fn with_salt(mut self, salt: impl Into<String>) -> Self {
        self.salt = Some(salt.into()).filter(|salt| !salt.is_empty());
        self
    }

    /// The low-rank adapter, or other named change of the weights, under which K and V were computed.
    #[must_use]
    pub fn with_adapter(mut self, adapter: impl Into<String>) -> Self {
        self.adapter = Some(adapter.into()).filter(|adapter| !adapter.is_empty());
        self
    }

    /// Adds the sequence's media. Positions may lie past its present end.
    #[must_use]
    pub fn with_media(mut self, items: impl IntoIterator<Item = MediaItem>) -> Self {
        self.media.extend(items);
        self.media.sort();
        self
    }

    /// The scheme.
    pub fn scheme(&self) -> HashScheme {
        self.scheme
    }

    /// The salt, if there is one.
    pub fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    /// The adapter, if there is one.
    pub fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }

    /// The media, by position.
    pub fn media(&self) -> &[MediaItem] {
        &self.media
    }

    /// Whether the scheme can express this identity.
    pub(super) fn validate(&self) -> Result<(), TokenError> {
        if self.scheme == HashScheme::Kvbm && !self.media.is_empty() {
            return Err(TokenError::MediaUnsupported {
                scheme: self.scheme,
                items: self.media.len(),
            });
        }
        match self.media.iter().find(|item| item.digest.is_empty()) {
            Some(item) => Err(TokenError::EmptyMediaDigest { position: item.position }),
            None => Ok(()),
        }
    }

    /// The parts that hold for the whole sequence, as the root's message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut message = Vec::new();
        for (tag, text) in [(Tag::Salt, &self.salt), (Tag::Adapter, &self.adapter)] {
            if let Some(text) = text {
                put_part(&mut message, tag, &[text.as_bytes()]);
            }
        }
        message
    }
}

/// Media that start in one page, as a message. `first` is the position of the page's first token.
pub(super) fn encode_media(items: &[MediaItem], first: usize) -> Vec<u8> {
    let mut message = Vec::new();
    for item in items {
        let offset = (item.position - first) as u64;
        put_part(&mut message, Tag::Media, &[&offset.to_le_bytes(), &item.digest]);
    }
    message
}

/// The kinds of parts. Numbers are part of every hash: never reuse one.
#[derive(Clone, Copy)]
enum Tag {
    Salt = 1,
    Adapter = 2,
    Media = 3,
}

/// Appends tag, length and content, the content being the concatenation of `pieces`.
fn put_part(message: &mut Vec<u8>, tag: Tag, pieces: &[&[u8]]) {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    message.push(tag as u8);
    message.extend_from_slice(&(len as u64).to_le_bytes());
    for piece in pieces {
        message.extend_from_slice(piece);
    }
}
