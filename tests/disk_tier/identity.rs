//! Whose blocks are whose, across a restart.

use dynamo_llm::{
    block_manager::{
        Identity, SequenceHash, Tier, TransferError, config::Capacity, storage::disk::inspect,
    },
    common::dtype::DType,
};

use crate::rig::{Setup, hashes, hashes_of};

#[test]
fn another_model_revision_dtype_or_geometry_finds_nothing_and_both_live_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let limit = Capacity::Bytes(4 << 20);
    let base = Setup::new(0, 1).dir(dir.path()).with(|config| {
        config.disk.capacity = limit;
        config.model.name = Some("llama".to_owned());
        config.model.revision = Some("a".to_owned());
    });
    let others = [
        base.clone().with(|config| config.model.revision = Some("b".to_owned())),
        base.clone().with(|config| config.model.name = Some("qwen".to_owned())),
        base.clone().with(|config| config.model.dtype = DType::BF16),
        base.clone().with(|config| config.model.adapter = Some("style".to_owned())),
        base.clone().with(|config| config.model.num_layers = 5),
    ];
    let chain = hashes(1, 4);
    let rig = base.open();
    rig.put(&chain);
    rig.close();
    for other in &others {
        let rig = other.open();
        assert!(rig.manager.lookup(&chain).unwrap().is_empty());
        rig.put(&chain);
        rig.close();
    }
    for setup in std::iter::once(&base).chain(&others) {
        let rig = setup.open();
        assert_eq!(rig.get(&chain).blocks.len(), 4);
        rig.close();
    }
    let inspection = inspect(dir.path()).unwrap();
    assert_eq!((inspection.fingerprints.len(), inspection.blocks), (6, 24));
}

#[test]
fn blocks_that_nothing_can_read_now_make_room_before_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let limit = Capacity::Bytes(300 << 10);
    let setup = |layers: usize, revision: &str| {
        Setup::new(0, 1).dir(dir.path()).with(|config| {
            config.disk.capacity = limit;
            config.model.num_layers = layers;
            config.model.revision = Some(revision.to_owned());
        })
    };
    // Another geometry, then another revision, fill the directory.
    for (layers, revision) in [(9, "a"), (3, "b")] {
        let rig = setup(layers, revision).open();
        for seed in 1..=3 {
            rig.put(&hashes(seed, 8));
        }
        rig.close();
    }
    let rig = setup(3, "c").open();
    let mine = hashes(7, 12);
    rig.put(&mine);
    assert_eq!(rig.manager.disk().unwrap().status().evictions, 0);
    assert_eq!(rig.on_disk(&mine), 12);
    rig.clear_memory();
    assert_eq!(rig.get(&mine).blocks.len(), 12);
    rig.close();
}

#[test]
fn salt_and_adapter_part_tenants_on_disk_as_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 64).dir(dir.path());
    let identities = [
        Identity::new(),
        Identity::new().with_salt("tenant a"),
        Identity::new().with_salt("tenant b"),
        Identity::new().with_adapter("style"),
    ];
    // What one stored is its own, whoever asks; then the next stores too.
    for stored in 0..identities.len() {
        let rig = setup.open();
        rig.put(&hashes_of(1, 4, &identities[stored]));
        rig.close();
        let rig = setup.open();
        for (number, identity) in identities.iter().enumerate() {
            let chain = hashes_of(1, 4, identity);
            let found = rig.get(&chain).blocks.len();
            assert_eq!(found, if number <= stored { 4 } else { 0 });
            // Every block of the chain is another one, not the first alone.
            let single = |hash: &SequenceHash| rig.manager.lookup(&[*hash]).unwrap().len();
            assert_eq!(chain.iter().map(single).sum::<usize>(), found);
        }
        rig.close();
    }
}

#[test]
fn types_and_shapes_of_equal_size_are_told_apart_and_none_reads_the_others_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let base = Setup::new(0, 1).dir(dir.path()).with(|config| {
        config.disk.capacity = Capacity::Bytes(4 << 20);
        (config.model.num_layers, config.model.inner_dim) = (4, 40);
    });
    let mut setups = vec![];
    // The default type is FP16, stated or not; its two neighbours are as large.
    for dtype in [DType::FP16, DType::BF16, DType::INT16, DType::UINT16] {
        setups.push(base.clone().with(|config| config.model.dtype = dtype));
    }
    for dtype in [DType::FP8_E4M3, DType::FP8_E5M2, DType::INT8, DType::UINT8] {
        setups.push(base.clone().with(|config| config.model.dtype = dtype));
    }
    // As many bytes cut in other ways: layers over two ranks or four, heads likewise.
    for (num_layers, inner_dim) in [(2, 80), (1, 160), (8, 20), (16, 10)] {
        setups.push(base.clone().with(|config| {
            (config.model.num_layers, config.model.inner_dim) = (num_layers, inner_dim);
        }));
    }
    setups.push(base.clone().with(|config| {
        (config.model.outer_dim, config.model.inner_dim) = (1, 80);
    }));
    let chain = hashes(1, 4);
    for setup in &setups {
        let rig = setup.open();
        let said = rig.manager.lookup(&chain).unwrap().len();
        assert_eq!(said, 0, "{:?}", setup.settings.model);
        rig.put(&chain);
        rig.close();
    }
    for setup in &setups {
        let rig = setup.open();
        // Compares every byte of every layer.
        assert_eq!(rig.get(&chain).blocks.len(), 4);
        rig.close();
    }
    // Not stated is FP16.
    let rig = base.open();
    assert_eq!(rig.get(&chain).blocks.len(), 4);
    rig.close();
}

#[test]
fn a_hash_of_64_bits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Setup::new(0, 8).dir(dir.path()).manual().open();
    let short = SequenceHash::from_u128(7);
    let results = rig.store(&[short, hashes(1, 1)[0]]);
    assert!(matches!(results[0], Err(TransferError::Refused { .. })), "{results:?}");
    assert!(results[1].is_ok());
    assert!(rig.manager.lookup(&[short]).unwrap().count(Tier::Disk) == 0);
    rig.close();
}
