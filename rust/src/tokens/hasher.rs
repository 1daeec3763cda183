//! The chain itself: from a parent and a page of tokens to the page's hash.
//!
//! One [`BlockHasher`] serves one identity and page size. It keeps the root, so that the identity
//! is hashed once, and a buffer for one page's bytes.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::identity::encode_media;
use super::{HashScheme, Identity, MediaItem, SequenceHash, TokenError};
use crate::sync::Arc;

/// Bytes of a parent, in front of the page's bytes in the buffer.
const PARENT: usize = 16;

/// What a hash is computed for; hashes of different domains never meet. The tags enter every hash.
#[derive(Clone, Copy)]
enum Domain {
    Ident,
    Media,
    Block,
}

impl Domain {
    const fn tag(self) -> [u8; 16] {
        match self {
            Domain::Ident => *b"dynamo_llm ident",
            Domain::Media => *b"dynamo_llm media",
            Domain::Block => *b"dynamo_llm block",
        }
    }
}

/// How the scheme chains, and where it starts.
#[derive(Clone, Copy, Debug)]
enum Chain {
    Blake3 { root: SequenceHash },
    Xxh3 { root: SequenceHash },
    Kvbm { seed: u64 },
}

/// Names the pages of sequences of one identity.
#[derive(Clone, Debug)]
pub(super) struct BlockHasher {
    chain: Chain,
    page_size: usize,
    /// By position; shared between the blocks of one sequence.
    media: Arc<[MediaItem]>,
    /// Room for a parent, then one page's tokens as little-endian bytes. Sized by the first page,
    /// never before there is one: a page size may be any number.
    buffer: Vec<u8>,
}

impl BlockHasher {
    pub(super) fn new(page_size: usize, identity: &Identity) -> Result<Self, TokenError> {
        if page_size == 0 {
            return Err(TokenError::ZeroPageSize);
        }
        identity.validate()?;
        let origin = SequenceHash::default();
        let chain = match identity.scheme() {
            HashScheme::Blake3 => {
                Chain::Blake3 { root: blake3(Domain::Ident, origin, &identity.encode()) }
            }
            HashScheme::Xxh3 => {
                let message = [&origin.as_bytes()[..], &identity.encode()].concat();
                Chain::Xxh3 { root: xxh3(Domain::Ident, &message) }
            }
            HashScheme::Kvbm => Chain::Kvbm { seed: kvbm_seed(identity) },
        };
        Ok(Self { chain, page_size, media: identity.media().into(), buffer: Vec::new() })
    }

    pub(super) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Appends to `hashes`, which name the first pages of `tokens`, those of its other full pages.
    pub(super) fn pages(&mut self, tokens: &[u32], hashes: &mut Vec<SequenceHash>) {
        let mut parent = hashes.last().copied();
        for page in tokens[hashes.len() * self.page_size..].chunks_exact(self.page_size) {
            let hash = self.page(parent, hashes.len(), page);
            hashes.push(hash);
            parent = Some(hash);
        }
    }

    /// The hash of the sequence's page number `index`; `parent` is that of the page before, if there
    /// is one. `page` is full.
    #[inline]
    pub(super) fn page(
        &mut self,
        parent: Option<SequenceHash>,
        index: usize,
        page: &[u32],
    ) -> SequenceHash {
        self.buffer.resize(PARENT + size_of_val(page), 0);
        let (room, bytes) = self.buffer.split_at_mut(PARENT);
        for (four, token) in bytes.as_chunks_mut().0.iter_mut().zip(page) {
            *four = token.to_le_bytes();
        }
        match self.chain {
            Chain::Blake3 { root } => {
                let mut parent = parent.unwrap_or(root);
                if let Some(message) = media_message(&self.media, index, self.page_size) {
                    parent = blake3(Domain::Media, parent, &message);
                }
                blake3(Domain::Block, parent, bytes)
            }
            Chain::Xxh3 { root } => {
                let mut parent = parent.unwrap_or(root);
                if let Some(message) = media_message(&self.media, index, self.page_size) {
                    let message = [&parent.as_bytes()[..], &message].concat();
                    parent = xxh3(Domain::Media, &message);
                }
                room.copy_from_slice(&parent.as_bytes());
                xxh3(Domain::Block, &self.buffer)
            }
            Chain::Kvbm { seed } => kvbm(seed, parent, bytes),
        }
    }
}

/// The media that start in page `index`, encoded; `None` for most pages.
#[inline]
fn media_message(media: &[MediaItem], index: usize, page_size: usize) -> Option<Vec<u8>> {
    if media.is_empty() {
        return None;
    }
    let first = index * page_size;
    let from = media.partition_point(|item| item.position < first);
    let count = media[from..].partition_point(|item| item.position - first < page_size);
    (count > 0).then(|| encode_media(&media[from..from + count], first))
}

/// The first 16 bytes of BLAKE3 keyed with parent and domain.
#[inline]
fn blake3(domain: Domain, parent: SequenceHash, message: &[u8]) -> SequenceHash {
    let mut key = [0; blake3::KEY_LEN];
    key[..PARENT].copy_from_slice(&parent.as_bytes());
    key[PARENT..].copy_from_slice(&domain.tag());
    let digest = blake3::keyed_hash(&key, message);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    SequenceHash::from_le_bytes(bytes)
}

/// XXH3-128 of a message that begins with the parent. The parent goes first because XXH3 mixes the
/// front of a short input last: the rest of a page is mixed while its parent is still being computed.
#[inline]
fn xxh3(domain: Domain, message: &[u8]) -> SequenceHash {
    let seed = (u128::from_le_bytes(domain.tag()) >> 64) as u64;
    SequenceHash::from_u128(xxh3_128_with_seed(message, seed))
}

/// KVBM 1.6.1: a block's own hash is chained with the parent's, both 64 bits wide; the first block
/// has none and stands for itself.
#[inline]
fn kvbm(seed: u64, parent: Option<SequenceHash>, page: &[u8]) -> SequenceHash {
    let block = xxh3_64_with_seed(page, seed);
    let value = match parent {
        None => block,
        Some(parent) => {
            let pair = (u128::from(block) << 64) | u128::from(parent.as_u128() as u64);
            xxh3_64_with_seed(&pair.to_le_bytes(), seed)
        }
    };
    SequenceHash::from_u128(value.into())
}

/// KVBM 1.6.1: the seed of all its hashes is the hash of the salt and adapter as compact JSON.
fn kvbm_seed(identity: &Identity) -> u64 {
    let fields = [("salt", identity.salt()), ("lora_name", identity.adapter())];
    let members: Vec<String> = fields
        .into_iter()
        .filter_map(|(name, text)| Some(format!("\"{name}\":{}", serde_json::Value::from(text?))))
        .collect();
    xxh3_64_with_seed(format!("{{{}}}", members.join(",")).as_bytes(), 0)
}
