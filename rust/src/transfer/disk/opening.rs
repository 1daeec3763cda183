//! From directories to the slots of a tier.

use std::{cmp::Reverse, collections::HashSet, time::Duration};

use super::{
    blocks::DiskBlocks,
    drive::{Access, Drive, NONE, Opened},
    era::{Era, Eras},
    limit,
    rendezvous::Candidate,
    room::Room,
};
use crate::{
    eviction::SlotId,
    io::{IoEngine, Staging},
    layout::BlockLayout,
    pool::Registration,
    seal::{Fingerprint, SealRoot, SealTiling},
    storage::disk::{DiskDirectory, DiskError, DiskRecord, DiskSlot, RecoveredBlock},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    tokens::{EngineKey, Key, SequenceHash},
};

/// What [`DiskBlocks`] are made of.
#[derive(Debug)]
pub struct DiskBlocksOptions {
    /// Shape and number of the blocks: as many as the drives have together.
    pub layout: BlockLayout,
    /// How they are cut into tiles.
    pub tiling: SealTiling,
    /// How they are read; blocks of others are left alone until their room is needed.
    pub fingerprint: Fingerprint,
    /// Name of the fingerprint, for people.
    pub label: String,
    /// How long a reset waits for the drives.
    pub patience: Duration,
    /// Where they lie.
    pub drives: Vec<DriveOptions>,
}

/// What a [`Drive`] is made of.
#[derive(Debug)]
pub struct DriveOptions {
    /// What people call it: its directory. Also decides which blocks go there, so it should not
    /// change.
    pub name: Arc<str>,
    /// The most blocks that lie here, at least 1.
    pub capacity: usize,
    /// The directory, opened with the geometry of the blocks.
    pub directory: DiskDirectory,
    /// What was found in it.
    pub recovered: Vec<RecoveredBlock>,
    /// Who reads and writes.
    pub io: Arc<dyn IoEngine>,
    /// Loads and stores at the drive at once, as `io` has them: as many staging buffers.
    pub threads: (usize, usize),
}

/// A block that was there.
#[derive(Clone, Debug)]
pub struct RecoveredSlot {
    /// Its slot. The slots of a drive count up in the order of its blocks.
    pub slot: SlotId,
    /// Its name.
    pub registration: Registration,
    /// What proves its bytes.
    pub root: SealRoot,
    /// When it was last used; only the order counts.
    pub last_use: u64,
    /// When it was stored; only the order counts.
    pub sequence: u64,
}

impl DiskBlocks {
    /// Takes directories over. The blocks that can be read here come back in the order in which
    /// they were stored, so that what a block continues comes before it.
    ///
    /// # Errors
    /// [`DiskError`], where the fingerprint cannot be entered.
    pub fn new(options: DiskBlocksOptions) -> Result<(Self, Vec<RecoveredSlot>), DiskError> {
        let DiskBlocksOptions { layout, tiling, fingerprint, label, patience, mut drives } =
            options;
        DiskDirectory::order_together(drives.iter_mut().map(|drive| &mut drive.directory));
        let last_use = |block: &RecoveredBlock| block.record.last_use.saturating_add(1);
        let recovered = drives.iter().flat_map(|drive| &drive.recovered);
        let uses = Arc::new(AtomicU64::new(recovered.map(last_use).max().unwrap_or(1)));
        let candidates = drives.iter().map(|drive| Candidate::new(&drive.name, drive.capacity));
        let candidates = candidates.collect();
        let (mut opened, mut found, mut base) = (Vec::new(), Vec::new(), 0);
        for drive in drives {
            let facts = (layout.block_bytes(), fingerprint, &*label);
            let (drive, blocks) = Drive::new(drive, facts, uses.clone())?;
            let of_tier = |block: RecoveredSlot| RecoveredSlot { slot: base + block.slot, ..block };
            found.extend(blocks.into_iter().map(of_tier));
            base += drive.capacity() as SlotId;
            opened.push(Arc::new(drive));
        }
        found.sort_by_key(|block| block.sequence);
        let drives = opened.into();
        Ok((Self { layout, tiling, drives, candidates, patience }, found))
    }
}

impl Drive {
    fn new(
        options: DriveOptions,
        (block_bytes, fingerprint, label): (usize, Fingerprint, &str),
        uses: Arc<AtomicU64>,
    ) -> Result<(Self, Vec<RecoveredSlot>), DiskError> {
        let DriveOptions { name, capacity, directory, mut recovered, io, threads } = options;
        let (id, erased) = directory.claim_fingerprint(*fingerprint.as_bytes(), label)?;
        recovered.retain(|block| Some(block.record.fingerprint) != erased);
        let set = directory.current();
        let entry = directory.sets().into_iter().find(|(known, ..)| *known == set);
        let (_, geometry, count, _) = entry.ok_or(DiskError::NoSuchSet { set })?;

        let (mine, rest): (Vec<_>, Vec<_>) = recovered
            .into_iter()
            .partition(|block| block.slot.set == set && block.record.fingerprint == id);
        let (mut others, mut foreign): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|block| block.slot.set != set);
        let mine = keep_newest(mine, capacity, &mut foreign);
        for old in [&mut others, &mut foreign] {
            old.sort_unstable_by_key(|block| Reverse(block.sequence));
        }
        let lists = [&mut foreign, &mut others];
        if let Err(error) = limit::keep(&directory, geometry.slot_bytes(), lists, &mine) {
            tracing::warn!(dir = %name, %error, "the directory is larger than its limit");
        }

        let mut free = vec![true; count as usize];
        for block in mine.iter().chain(&foreign) {
            free[block.slot.slot as usize] = false;
        }
        // Those that have room go first.
        let given_up = directory.given_up(set)?;
        for &slot in &given_up {
            free[slot as usize] = false;
        }
        let with_room = (0..count).rev().filter(|&slot| free[slot as usize]);
        let room = Room {
            free: given_up.iter().copied().chain(with_room).collect(),
            foreign: foreign.iter().map(|block| block.slot.slot).collect(),
            scarce: false,
            others: unused(&directory, &others),
        };
        let slots: Box<[AtomicU32]> = (0..capacity).map(|_| AtomicU32::new(NONE)).collect();
        for (place, block) in slots.iter().zip(&mine) {
            place.store(block.slot.slot, Ordering::Relaxed);
        }
        let placed = mine.iter().enumerate();
        let found: Vec<_> = placed.map(|(slot, block)| found_in(slot as SlotId, block)).collect();
        let staging =
            |threads| Staging::new(threads, usize::try_from(geometry.slot_bytes()).unwrap_or(0));
        let file = directory.data_file(set)?;
        let (base, used) = (directory.generation(), directory.used());
        let label = label.into();
        let found_then = found.len();
        let era = Era { number: 0, fingerprint, label, id: Some(id), found: found_then, base };
        let drive = Self {
            name,
            access: Mutex::new(Access {
                opened: Some(Arc::new(Opened { directory, file })),
                users: 0,
            }),
            released: Condvar::new(),
            set,
            geometry,
            block_bytes,
            eras: Mutex::new(Eras::new(era)),
            turns: Mutex::default(),
            turned: Condvar::new(),
            resets: Mutex::default(),
            reset_told: Condvar::new(),
            io,
            load_staging: staging(threads.0),
            store_staging: staging(threads.1),
            slots,
            room: Mutex::new(room),
            returned: Mutex::default(),
            used: AtomicU64::new(used),
            touched: Mutex::default(),
            uses,
            found: found.len(),
            written: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        };
        Ok((drive, found))
    }
}

/// The slots of other geometries: those with a block, and behind them, to go first, those without.
fn unused(directory: &DiskDirectory, blocks: &[RecoveredBlock]) -> Vec<DiskSlot> {
    let mut slots: Vec<DiskSlot> = blocks.iter().map(|block| block.slot).collect();
    let taken: HashSet<DiskSlot> = slots.iter().copied().collect();
    for (set, _, count, _) in directory.sets() {
        let all = (0..count).map(|slot| DiskSlot { set, slot });
        slots.extend(all.filter(|slot| set != directory.current() && !taken.contains(slot)));
    }
    slots
}

/// The blocks in the order of storing. Where there are more than `capacity`, as after the limit was
/// lowered, those used longest ago go to the ones that are given up.
pub(super) fn keep_newest(
    mut mine: Vec<RecoveredBlock>,
    capacity: usize,
    given_up: &mut Vec<RecoveredBlock>,
) -> Vec<RecoveredBlock> {
    if mine.len() > capacity {
        mine.sort_unstable_by_key(|block| Reverse(block.record.last_use));
        given_up.extend(mine.drain(capacity..));
    }
    mine.sort_unstable_by_key(|block| block.sequence);
    mine
}

/// A block that was found and is given that slot.
pub(super) fn found_in(slot: SlotId, block: &RecoveredBlock) -> RecoveredSlot {
    RecoveredSlot {
        slot,
        registration: registration(&block.record),
        root: SealRoot::from_bytes(block.record.seal_root),
        last_use: block.record.last_use,
        sequence: block.sequence,
    }
}

fn registration(record: &DiskRecord) -> Registration {
    Registration {
        key: Key::new(SequenceHash::from_le_bytes(record.key), record.group),
        parent: record.parent.map(SequenceHash::from_le_bytes),
        engine_key: EngineKey::new(record.engine.as_bytes()).ok(),
    }
}
