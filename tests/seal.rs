//! Tiles, seals, fingerprints, and the copy loops that take the sums.
#![allow(clippy::unwrap_used)]

use dynamo_llm::block_manager::seal::{
    Crc, Fingerprint, FingerprintFields, Seal, SealError, SealRoot, SealTiling, TILE_BYTES,
};
use dynamo_llm::block_manager::transfer::kernel;
use proptest::collection::vec;
use proptest::prelude::*;

fn fingerprint(model: &str) -> Fingerprint {
    FingerprintFields::builder().model(model).dtype("bf16").page_size(16).build().fingerprint()
}

/// The sums of a block whose regions follow one another.
fn sums(tiling: &SealTiling, block: &[u8]) -> Vec<u64> {
    tiling
        .iter()
        .map(|tile| {
            let start = tile.region * tiling.region_bytes() + tile.offset;
            Crc::of(&block[start..start + tile.len])
        })
        .collect()
}

#[test]
fn the_sum_is_crc_64_nvme() {
    assert_eq!(Crc::of(b"123456789"), 0xae8b_1486_0a79_9888);
    assert_eq!(Crc::of(b""), Crc::new().sum());
}

#[test]
fn roots_and_fingerprints_are_fixed_for_ever() {
    assert_eq!(
        FingerprintFields::default().fingerprint().to_string(),
        "864c2483e40df0bcd05dd1f6274fc998f09efa780969ffec0438c4296f7a2f9b"
    );
    assert_eq!(
        fingerprint("m").to_string(),
        "c6919964722853916612db347c7d5c19c00edf6b1e9bdf80c8a83a380751ea73"
    );
    let seal = Seal::new(b"key", &Fingerprint::from_bytes([7; 32]), vec![1, 2, u64::MAX]);
    assert_eq!(seal.root().to_string(), "a24b5854b8ed004b8916fe514fa12f3c");
}

#[test]
fn no_two_sets_of_fields_are_confused() {
    let build = |set: fn(&mut FingerprintFields)| {
        let mut fields = FingerprintFields::default();
        set(&mut fields);
        fields.fingerprint()
    };
    let all = [
        build(|_| ()),
        build(|f| f.model = Some(String::new())),
        build(|f| f.model = Some("a".into())),
        build(|f| f.revision = Some("a".into())),
        build(|f| f.weights = Some("a".into())),
        build(|f| f.dtype = Some("a".into())),
        build(|f| f.quantisation = Some("a".into())),
        build(|f| f.page_size = Some(16)),
        build(|f| f.page_size = Some(17)),
        build(|f| f.layout = Some("a".into())),
        build(|f| f.layout = Some("16".into())),
        build(|f| f.parallel = Some("a".into())),
        build(|f| f.attention = Some("a".into())),
        build(|f| f.hash_scheme = Some("a".into())),
    ];
    for (i, one) in all.iter().enumerate() {
        assert_eq!(all.iter().position(|other| other == one), Some(i));
    }
}

#[test]
fn impossible_tilings_are_refused() {
    for (regions, bytes) in [(0, 1), (1, 0), (usize::MAX, 2), (2, usize::MAX), (1, usize::MAX)] {
        let error = SealTiling::new(regions, bytes).unwrap_err();
        assert!(matches!(error, SealError::InvalidTiling { .. }), "{error}");
    }
}

fn shape() -> impl Strategy<Value = SealTiling> {
    let bytes =
        prop_oneof![1usize..5000, (TILE_BYTES - 2)..(TILE_BYTES + 3), 1usize..(3 * TILE_BYTES)];
    (1usize..6, bytes).prop_map(|(regions, bytes)| SealTiling::new(regions, bytes).unwrap())
}

proptest! {
    #[test]
    fn tiles_cover_each_region_once_from_its_start(tiling in shape()) {
        let tiles: Vec<_> = tiling.iter().collect();
        prop_assert_eq!(tiles.len(), tiling.tiles());
        let mut at = (0, 0);
        for (index, tile) in tiles.iter().enumerate() {
            prop_assert_eq!((tile.index, tile.region, tile.offset), (index, at.0, at.1));
            prop_assert!(tile.len == TILE_BYTES || tile.offset + tile.len == tiling.region_bytes());
            prop_assert_eq!(tiling.tile_of(tile.region, tile.offset), Some(index));
            prop_assert_eq!(tiling.tile_of(tile.region, tile.offset + tile.len - 1), Some(index));
            at.1 += tile.len;
            if at.1 == tiling.region_bytes() {
                at = (at.0 + 1, 0);
            }
        }
        prop_assert_eq!(at, (tiling.regions(), 0));
        prop_assert_eq!(tiling.tile(tiling.tiles()), None);
        prop_assert_eq!(tiling.tile_of(0, tiling.region_bytes()), None);
        prop_assert_eq!(tiling.tile_of(tiling.regions(), 0), None);
    }

    #[test]
    fn cutting_a_run_loses_and_crosses_nothing(
        tiling in shape(),
        region in 0usize..7,
        offset in 0usize..(3 * TILE_BYTES),
        len in prop_oneof![0usize..(3 * TILE_BYTES), Just(usize::MAX)],
    ) {
        let end = offset.saturating_add(len).min(tiling.region_bytes());
        let mut at = offset;
        for piece in tiling.cut(region, offset, len) {
            prop_assert_eq!(piece.offset, at);
            prop_assert!(piece.len > 0);
            let tile = tiling.tile(piece.tile).unwrap();
            prop_assert_eq!(tile.region, region);
            at += piece.len;
            prop_assert!(piece.offset >= tile.offset && at <= tile.offset + tile.len);
            prop_assert_eq!(piece.ends_tile, at == tile.offset + tile.len);
        }
        let expected = if region < tiling.regions() { end.max(offset) } else { offset };
        prop_assert_eq!(at, expected);
    }

    #[test]
    fn every_flipped_bit_is_found_and_named(
        regions in 1usize..4,
        bytes in 1usize..(2 * TILE_BYTES),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let tiling = SealTiling::new(regions, bytes).unwrap();
        let mut block: Vec<u8> = (0..tiling.block_bytes()).map(|i| ((i * 31) >> 3) as u8).collect();
        let print = fingerprint("m");
        let seal = Seal::new(b"key", &print, sums(&tiling, &block));
        let kept = Seal::from_parts(SealRoot::from_bytes(*seal.root().as_bytes()), seal.sums());
        prop_assert_eq!(kept.verify(b"key", &print, &sums(&tiling, &block)), Ok(()));

        let at = at.index(block.len());
        block[at] ^= 1 << bit;
        let damaged = tiling.tile_of(at / bytes, at % bytes).unwrap();
        let found = sums(&tiling, &block);
        match kept.verify(b"key", &print, &found) {
            Err(SealError::TileMismatch { tile, .. }) => prop_assert_eq!(tile, damaged),
            other => prop_assert!(false, "{:?}", other),
        }
        // A part without the damage still verifies, a part with it does not.
        for (tile, &sum) in found.iter().enumerate() {
            let part = kept.verify_part(b"key", &print, [(tile, sum)]);
            prop_assert_eq!(part.is_ok(), tile != damaged);
        }
    }

    #[test]
    fn no_other_identity_fingerprint_or_sums_have_the_root(
        id in vec(any::<u8>(), 0..40),
        other in vec(any::<u8>(), 0..40),
        tiles in vec(any::<u64>(), 1..20),
        flip in any::<prop::sample::Index>(),
    ) {
        let (print, foreign) = (fingerprint("m"), fingerprint("n"));
        let seal = Seal::new(&id, &print, tiles.clone());
        prop_assert_eq!(seal.verify(&id, &print, &tiles), Ok(()));
        let is_root = |r: Result<(), SealError>| matches!(r, Err(SealError::RootMismatch { .. }));
        prop_assert!(is_root(seal.verify(&id, &foreign, &tiles)));
        prop_assert!(id == other || is_root(seal.verify(&other, &print, &tiles)));
        // Damaged sums that agree with damaged bytes, and too few or too many of them.
        let mut bad = tiles.clone();
        bad[flip.index(tiles.len())] ^= 1;
        let forged = Seal::from_parts(seal.root(), bad.clone());
        prop_assert!(is_root(forged.verify(&id, &print, &bad)));
        prop_assert!(is_root(forged.verify_part(&id, &print, [])));
        let fewer = Seal::from_parts(seal.root(), &tiles[1..]);
        prop_assert!(is_root(fewer.verify(&id, &print, &tiles[1..])));
        let (expected, found) = (tiles.len(), tiles.len() - 1);
        let short = seal.verify(&id, &print, &tiles[1..]);
        prop_assert_eq!(short, Err(SealError::TileCount { expected, found }));
        let past = seal.verify_part(&id, &print, [(expected, 0)]);
        prop_assert_eq!(past, Err(SealError::NoSuchTile { tile: expected, tiles: expected }));
    }

    #[test]
    fn copies_move_exactly_their_bytes_and_sum_them(
        source in vec(any::<u8>(), 12_600),
        from in 0usize..200,
        to in 0usize..200,
        len in prop_oneof![0usize..300, 900usize..1200, 4000usize..4400, 0usize..12_400],
        cuts in vec(0usize..12_400, 0..4),
    ) {
        let mut expected = vec![0xa5u8; 12_800];
        expected[to..to + len].copy_from_slice(&source[from..from + len]);

        let mut plain = vec![0xa5u8; 12_800];
        // SAFETY: both ranges lie inside their vectors, which are apart.
        unsafe { kernel::copy(plain.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
        kernel::fence();
        prop_assert!(plain == expected);

        // One sum over any number of calls.
        let mut sealed = vec![0xa5u8; 12_800];
        let mut crc = Crc::new();
        let mut edges: Vec<usize> = cuts.into_iter().filter(|&cut| cut < len).collect();
        edges.extend([0, len]);
        edges.sort_unstable();
        for pair in edges.windows(2) {
            let (start, len) = (pair[0], pair[1] - pair[0]);
            // SAFETY: as above.
            unsafe {
                let dst = sealed.as_mut_ptr().add(to + start);
                kernel::copy_sealed(dst, source.as_ptr().add(from + start), len, &mut crc);
            }
        }
        kernel::fence();
        prop_assert!(sealed == expected);
        let sum = crc.take();
        prop_assert_eq!(sum, Crc::of(&source[from..from + len]));
        // SAFETY: as above.
        unsafe { kernel::sum(sealed.as_ptr().add(to), len, &mut crc) };
        prop_assert_eq!(crc.take(), sum);
        prop_assert_eq!(crc.sum(), Crc::of(b""));
    }
}
