//! Block identities: stable for ever, different whenever the bytes would be, kept in step by
//! growing sequences.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use dynamo_llm::tokens::{
    EngineKey, HashScheme, Identity, MediaItem, SequenceHash, TokenBlock, TokenBlockSequence,
    TokenError, hash_tokens,
};
use proptest::prelude::*;
use serde_json::Value;

const PAGE: usize = 16;

fn range(n: u32) -> Vec<u32> {
    (0..n).collect()
}

fn hashes(tokens: &[u32], identity: &Identity) -> Vec<SequenceHash> {
    hash_tokens(tokens, PAGE, identity).unwrap()
}

fn by(scheme: HashScheme) -> Identity {
    Identity::new().with_scheme(scheme)
}

#[test]
fn hashes_are_those_of_the_checked_in_vectors() {
    let file: Value = serde_json::from_str(include_str!("vectors/tokens.json")).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    let mut schemes = HashSet::new();
    for vector in vectors {
        let scheme: HashScheme = vector["scheme"].as_str().unwrap().parse().unwrap();
        schemes.insert(scheme);
        let mut identity = by(scheme);
        if let Some(salt) = vector["salt"].as_str() {
            identity = identity.with_salt(salt);
        }
        if let Some(adapter) = vector["adapter"].as_str() {
            identity = identity.with_adapter(adapter);
        }
        for item in vector["media"].as_array().into_iter().flatten() {
            let position = item["position"].as_u64().unwrap() as usize;
            let digest = from_hex(item["digest"].as_str().unwrap());
            identity = identity.with_media([MediaItem::new(position, digest)]);
        }
        let number = |name: &str| vector["tokens"][name].as_u64().unwrap() as u32;
        let tokens: Vec<u32> = (0..number("count"))
            .map(|i| number("step").wrapping_mul(i).wrapping_add(number("start")))
            .collect();
        let page_size = vector["page_size"].as_u64().unwrap() as usize;
        let want: Vec<SequenceHash> = serde_json::from_value(vector["hashes"].clone()).unwrap();
        assert_eq!(hash_tokens(&tokens, page_size, &identity).unwrap(), want, "{vector}");
    }
    assert_eq!(schemes.len(), HashScheme::ALL.len());
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn kvbm_hashes_are_those_that_its_routers_compute() {
    let kvbm = by(HashScheme::Kvbm);
    let cases: [(Identity, [u128; 2]); 4] = [
        (kvbm.clone(), [9_443_242_342_507_244_185, 14_531_308_934_350_064_430]),
        (kvbm.clone().with_adapter("x"), [6_745_125_628_378_340_534, 9_287_674_654_373_552_010]),
        (kvbm.clone().with_salt("s1"), [17_690_832_973_096_234_328, 3_813_010_993_998_970_242]),
        (
            kvbm.with_salt("s1").with_adapter("x"),
            [11_788_865_432_679_589_838, 15_339_496_340_718_934_800],
        ),
    ];
    for (identity, want) in cases {
        let got = hashes(&range(32), &identity);
        assert_eq!(got.iter().map(|hash| hash.as_u128()).collect::<Vec<_>>(), want);
        assert!(got.iter().all(|hash| hash.is_64_bit()));
    }
}

#[test]
fn every_difference_of_identity_is_a_different_hash() {
    let item = |position, digest: &[u8]| MediaItem::new(position, digest);
    for scheme in [HashScheme::Blake3, HashScheme::Xxh3, HashScheme::Kvbm] {
        let mut identities = vec![
            by(scheme),
            by(scheme).with_salt("a"),
            by(scheme).with_adapter("a"),
            by(scheme).with_salt("ab").with_adapter("c"),
            by(scheme).with_salt("a").with_adapter("bc"),
            by(scheme).with_salt("a\0"),
        ];
        if scheme != HashScheme::Kvbm {
            identities.extend([
                by(scheme).with_media([item(0, b"a")]),
                by(scheme).with_media([item(1, b"a")]),
                by(scheme).with_media([item(0, b"a"), item(0, b"a")]),
                by(scheme).with_media([item(0, b"ab"), item(1, b"c")]),
                by(scheme).with_media([item(0, b"a"), item(1, b"bc")]),
                by(scheme).with_salt("a").with_media([item(0, b"a")]),
            ]);
        }
        let mut seen = HashSet::new();
        for identity in &identities {
            // The first page and, by the chain, the last one as well.
            let all = hashes(&range(64), identity);
            assert!(all.iter().all(|&hash| seen.insert(hash)), "{identity:?}");
        }
    }
}

#[test]
fn a_part_that_says_nothing_is_the_same_as_none() {
    for scheme in HashScheme::ALL {
        let silent = by(scheme).with_salt("").with_adapter("").with_media([]);
        assert_eq!(silent, by(scheme));
        assert_eq!(hashes(&range(48), &silent), hashes(&range(48), &by(scheme)));
    }
}

#[test]
fn two_thousand_images_share_what_precedes_them_and_nothing_else() {
    // One image from token 24 on, over placeholders that are all alike.
    let mut tokens = range(24);
    tokens.extend([151_655; 56]);
    for scheme in [HashScheme::Blake3, HashScheme::Xxh3] {
        let plain = hashes(&tokens, &by(scheme));
        let mut seen = HashSet::new();
        for image in 0_u32..2000 {
            let digest = *blake3::hash(&image.to_le_bytes()).as_bytes();
            let got = hashes(&tokens, &by(scheme).with_media([MediaItem::new(24, digest)]));
            assert_eq!(got[0], plain[0], "the page before the image is shared");
            assert!(
                got[1..].iter().all(|&hash| seen.insert(hash)),
                "image {image} is like another"
            );
            assert!(got[1..].iter().zip(&plain[1..]).all(|(image, text)| image != text));
        }
        assert_eq!(seen.len(), 2000 * 4);
    }
}

#[test]
fn media_past_the_end_and_their_order_do_not_matter() {
    let (a, b) = (MediaItem::new(20, *b"a"), MediaItem::new(70, *b"b"));
    let forward = Identity::new().with_media([a.clone(), b.clone()]);
    let backward = Identity::new().with_media([b]).with_media([a.clone()]);
    assert_eq!(forward, backward);
    let whole = hashes(&range(96), &forward);
    assert_eq!(hashes(&range(96), &backward), whole);
    assert_eq!(hashes(&range(64), &forward), whole[..4]);
    assert_eq!(hashes(&range(64), &Identity::new().with_media([a])), whole[..4]);
    let far = Identity::new().with_media([MediaItem::new(usize::MAX, *b"z")]);
    assert_eq!(hashes(&range(64), &far), hashes(&range(64), &Identity::new()));
}

#[test]
fn equal_pages_at_other_places_are_other_blocks() {
    let page = range(PAGE as u32);
    for scheme in HashScheme::ALL {
        let repeated = hashes(&page.repeat(50), &by(scheme));
        assert_eq!(repeated.iter().collect::<HashSet<_>>().len(), 50);
        let other_parent: Vec<u32> = [vec![7; PAGE], page.clone()].concat();
        assert!(!repeated.contains(&hashes(&other_parent, &by(scheme))[1]));
    }
}

#[test]
fn bad_arguments_are_named() {
    let tokens = range(32);
    let identity = Identity::new();
    assert_eq!(hash_tokens(&tokens, 0, &identity), Err(TokenError::ZeroPageSize));
    assert!(TokenBlockSequence::new(0, identity.clone()).is_err());
    assert!(TokenBlock::new(0, &identity).is_err());
    assert_eq!(hash_tokens(&tokens, usize::MAX, &identity), Ok(vec![]));
    assert_eq!(hash_tokens(&[], 1, &identity), Ok(vec![]));

    let media = by(HashScheme::Kvbm).with_media([MediaItem::new(3, *b"digest")]);
    let error = hash_tokens(&tokens, PAGE, &media).unwrap_err();
    assert_eq!(error, TokenError::MediaUnsupported { scheme: HashScheme::Kvbm, items: 1 });
    let empty = Identity::new().with_media([MediaItem::new(3, [])]);
    let error = hash_tokens(&tokens, PAGE, &empty).unwrap_err();
    assert_eq!(error, TokenError::EmptyMediaDigest { position: 3 });
    assert!("sha256".parse::<HashScheme>().unwrap_err().to_string().contains("\"sha256\""));

    let mut block = TokenBlock::new(4, &identity).unwrap();
    block.extend(&[1, 2, 3]).unwrap();
    let error = block.extend(&[4, 5]).unwrap_err();
    assert_eq!(error, TokenError::BlockFull { given: 2, remaining: 1, page_size: 4 });
    assert_eq!(block.tokens(), [1, 2, 3], "a refused addition changes nothing");
}

#[test]
fn engine_hashes_are_read_big_endian_and_keep_the_low_bits() {
    let bytes: Vec<u8> = (1..=32).collect();
    let of = |bytes: &[u8]| SequenceHash::from_engine_hash(bytes);
    assert_eq!(of(&bytes[..8]).unwrap().as_u128(), 0x0102_0304_0506_0708);
    assert!(of(&bytes[..8]).unwrap().is_64_bit());
    let low = 0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20;
    assert_eq!(of(&bytes[16..]).unwrap().as_u128(), low);
    assert_eq!(of(&bytes).unwrap().as_u128(), low);
    assert!(!of(&bytes).unwrap().is_64_bit());
    for len in (0..64).filter(|len| ![8, 16, 32].contains(len)) {
        assert_eq!(of(&vec![0; len]), Err(TokenError::HashLength { len }));
    }
}

#[test]
fn engine_keys_are_kept_whole() {
    for len in 1..=EngineKey::MAX_LEN {
        let bytes = vec![0; len];
        assert_eq!(EngineKey::new(&bytes).unwrap().as_bytes(), bytes);
        assert_ne!(EngineKey::new(&bytes), EngineKey::new(&vec![0; len + 1]));
    }
    for len in [0, EngineKey::MAX_LEN + 1, 10_000] {
        assert_eq!(EngineKey::new(&vec![1; len]), Err(TokenError::EngineKeyLength { len }));
    }
    assert_eq!(EngineKey::new(&[0xab, 0x01]).unwrap().to_string(), "ab01");
}

#[test]
fn hashes_and_schemes_survive_their_text_forms() {
    for scheme in HashScheme::ALL {
        assert_eq!(scheme.to_string().parse(), Ok(scheme));
        assert_eq!(serde_json::to_value(scheme).unwrap(), scheme.name());
    }
    for text in ["", "0", "+0000000000000000000000000000001", &"0".repeat(33), &"g".repeat(32)] {
        assert_eq!(text.parse::<SequenceHash>(), Err(TokenError::HashText { text: text.into() }));
    }
}

fn identities() -> impl Strategy<Value = Identity> {
    let item = (0_usize..60, prop::collection::vec(any::<u8>(), 1..4));
    let items = prop::collection::vec(item, 0..5);
    (0..HashScheme::ALL.len(), "[ab]{0,2}", "[ab]{0,2}", items).prop_map(
        |(scheme, salt, adapter, items)| {
            let identity = by(HashScheme::ALL[scheme]).with_salt(salt).with_adapter(adapter);
            if identity.scheme() == HashScheme::Kvbm {
                return identity;
            }
            identity.with_media(items.into_iter().map(|(at, digest)| MediaItem::new(at, digest)))
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Push(u32),
    Extend(Vec<u32>),
    Pop,
    Truncate(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let token = || 0_u32..4;
    let step = prop_oneof![
        4 => token().prop_map(Step::Push),
        2 => prop::collection::vec(token(), 0..20).prop_map(Step::Extend),
        2 => Just(Step::Pop),
        1 => (0_usize..60).prop_map(Step::Truncate),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn a_growing_sequence_agrees_with_hashing_from_scratch(
        identity in identities(),
        page_size in 1_usize..9,
        steps in steps(),
    ) {
        let mut sequence = TokenBlockSequence::new(page_size, identity.clone()).unwrap();
        let mut model: Vec<u32> = Vec::new();
        for step in steps {
            let before = model.len() / page_size;
            match step {
                Step::Push(token) => {
                    model.push(token);
                    let completed = sequence.push(token);
                    prop_assert_eq!(completed.is_some(), model.len().is_multiple_of(page_size));
                    prop_assert_eq!(completed, sequence.hashes().get(before).copied());
                }
                Step::Extend(tokens) => {
                    model.extend(&tokens);
                    let completed = sequence.extend(&tokens).to_vec();
                    prop_assert_eq!(&completed, &sequence.hashes()[before..]);
                }
                Step::Pop => prop_assert_eq!(sequence.pop(), model.pop()),
                Step::Truncate(len) => {
                    model.truncate(len);
                    sequence.truncate(len);
                }
            }
            let want = hash_tokens(&model, page_size, &identity).unwrap();
            prop_assert_eq!(sequence.hashes(), &want);
            prop_assert_eq!(sequence.tokens(), &model);
            prop_assert_eq!(sequence.partial(), &model[want.len() * page_size..]);
        }
    }

    #[test]
    fn blocks_filled_one_by_one_agree_with_the_sequence(
        identity in identities(),
        page_size in 1_usize..9,
        tokens in prop::collection::vec(0_u32..4, 0..60),
    ) {
        let mut sequence = TokenBlockSequence::new(page_size, identity.clone()).unwrap();
        sequence.extend(&tokens);
        let mut block = TokenBlock::new(page_size, &identity).unwrap();
        for &token in &tokens {
            if let Some(next) = block.following() {
                block = next;
            }
            // One token too many and back again must leave no trace.
            block.push(token).unwrap();
            prop_assert_eq!(block.pop(), Some(token));
            prop_assert_eq!(block.sequence_hash(), None);
            block.push(token).unwrap();
            prop_assert_eq!(block.is_full(), block.sequence_hash().is_some());
            let of_sequence = sequence.block(block.index()).unwrap();
            prop_assert_eq!(block.parent(), of_sequence.parent());
            if block.is_full() {
                prop_assert_eq!(block.tokens(), of_sequence.tokens());
                prop_assert_eq!(block.sequence_hash(), of_sequence.sequence_hash());
            }
        }
        let full = sequence.hashes().len();
        let last = sequence.block(full).unwrap();
        prop_assert_eq!(last.tokens(), sequence.partial());
        prop_assert!(sequence.block(full + 1).is_none() && sequence.block(usize::MAX).is_none());
    }

    #[test]
    fn hashes_of_a_prefix_are_a_prefix_of_the_hashes(
        identity in identities(),
        page_size in 1_usize..40,
        tokens in prop::collection::vec(any::<u32>(), 0..200),
        cut in 0_usize..200,
    ) {
        let whole = hash_tokens(&tokens, page_size, &identity).unwrap();
        prop_assert_eq!(whole.len(), tokens.len() / page_size);
        let cut = cut.min(tokens.len());
        let part = hash_tokens(&tokens[..cut], page_size, &identity).unwrap();
        prop_assert_eq!(&part, &whole[..cut / page_size]);
    }

    #[test]
    fn sequence_hashes_survive_bytes_text_and_serde(number: u128, upper: bool) {
        let hash = SequenceHash::from(number);
        prop_assert_eq!(SequenceHash::from_le_bytes(hash.as_bytes()), hash);
        prop_assert_eq!(SequenceHash::from_engine_hash(&number.to_be_bytes()).unwrap(), hash);
        let text = hash.to_string();
        let text = if upper { text.to_uppercase() } else { text };
        prop_assert_eq!(text.parse(), Ok(hash));
        let json = serde_json::to_string(&hash).unwrap();
        prop_assert_eq!(serde_json::from_str::<SequenceHash>(&json).unwrap(), hash);
    }
}
