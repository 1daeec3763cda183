//! Hashing of contiguous token arrays, one core, beside the bare hash over the same bytes.
//!
//! The references do what no block manager can do with less: `blake3` keyed by the hash before,
//! `xxh3` of each page's bytes without a chain. They read bytes that lie ready; ours reads tokens.

#![allow(missing_docs)]

mod figure;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use dynamo_llm::tokens::{HashScheme, Identity, TokenBlockSequence, hash_tokens};
use xxhash_rust::xxh3::xxh3_128;

/// A request of usual length: 512 blocks of 16 tokens.
const TOKENS: usize = 8192;
const PAGE: usize = 16;

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).map(|i| i.wrapping_mul(2_654_435_761) % 150_000).collect()
}

fn hash(tokens: &[u32], page_size: usize, identity: &Identity) {
    let hashes = hash_tokens(black_box(tokens), page_size, identity);
    black_box(hashes.is_ok());
    drop(black_box(hashes));
}

/// BLAKE3 of each page, keyed by the 16 bytes before it and a constant.
fn bare_blake3(bytes: &[u8], page_bytes: usize) {
    let mut key = [0; blake3::KEY_LEN];
    for page in black_box(bytes).chunks_exact(page_bytes) {
        let digest = blake3::keyed_hash(&key, page);
        key[..16].copy_from_slice(&digest.as_bytes()[..16]);
    }
    black_box(key);
}

/// XXH3-128 of each page on its own.
fn bare_xxh3(bytes: &[u8], page_bytes: usize) {
    let mut sum = 0;
    for page in black_box(bytes).chunks_exact(page_bytes) {
        sum ^= xxh3_128(page);
    }
    black_box(sum);
}

fn detailed(criterion: &mut Criterion) {
    let tokens = tokens();
    let mut group = criterion.benchmark_group("hash_tokens");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for scheme in HashScheme::ALL {
        let identity = Identity::new().with_scheme(scheme);
        for page_size in [16, 64, 256] {
            let id = BenchmarkId::new(scheme.name(), page_size);
            group.bench_function(id, |b| b.iter(|| hash(&tokens, page_size, &identity)));
        }
    }
    group.bench_function("token by token", |b| {
        b.iter(|| {
            let sequence = TokenBlockSequence::new(PAGE, Identity::new());
            sequence.map(|mut sequence| {
                for &token in black_box(&tokens) {
                    sequence.push(token);
                }
                sequence.hashes().last().copied()
            })
        });
    });
    group.finish();
}

fn figures() {
    let tokens = tokens();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let page_bytes = PAGE * size_of::<u32>();
    let blake3 = Identity::new();
    figure::compare(
        "hashing/blake3",
        "tokens/s",
        TOKENS as f64,
        || hash(&tokens, PAGE, &blake3),
        "blake3::keyed_hash, keyed by the page before",
        || bare_blake3(&bytes, page_bytes),
    );
    let xxh3 = Identity::new().with_scheme(HashScheme::Xxh3);
    figure::compare(
        "hashing/xxh3",
        "tokens/s",
        TOKENS as f64,
        || hash(&tokens, PAGE, &xxh3),
        "xxh3_128 of each page, unchained",
        || bare_xxh3(&bytes, page_bytes),
    );
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    detailed(&mut criterion);
    criterion.final_summary();
    if figure::wanted() {
        figures();
    }
}
