//! The directory and its verbs.

use std::collections::HashSet;

use super::geometry::{DiskSlot, SetId, SlotPlace};
use super::record::{FingerprintId, Parsed, RECORD_BYTES, parse};
use super::report::DiskFinding;
use super::set::{DiskSet, Marks};
use super::superblock::{FILE_BYTES, MAX_FINGERPRINTS, NamedFingerprint, Superblock};
use super::{DiskError, DiskOptions, DiskRecord, Durability, Geometry};
use crate::io::{IoError, IoFile, Volume};
use crate::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

/// Room that the directory has beside its sets: superblock and lock file.
const FIXED_BYTES: u64 = FILE_BYTES + 4096;

/// Blocks on a drive; see the module documentation.
///
/// All verbs may be called from any thread and may wait for the drive.
#[derive(Debug)]
pub struct DiskDirectory {
    pub(super) volume: Arc<dyn Volume>,
    pub(super) options: DiskOptions,
    pub(super) superfile: Arc<dyn IoFile>,
    pub(super) head: Mutex<Head>,
    /// The present reset generation; changed under `head`.
    pub(super) generation: AtomicU64,
    /// Of the next record.
    pub(super) sequence: Arc<AtomicU64>,
    pub(super) current: SetId,
}

#[derive(Debug)]
pub(super) struct Head {
    pub(super) superblock: Superblock,
    /// What is on the drive may differ: it is written before anything else is.
    pub(super) unwritten: bool,
    pub(super) sets: Vec<Arc<DiskSet>>,
    /// Fingerprints that were asked for since opening: in use, with blocks or without.
    pub(super) asked: Vec<FingerprintId>,
    pub(super) findings: Vec<DiskFinding>,
}

impl Head {
    pub(super) fn find(&mut self, finding: DiskFinding) {
        if !self.findings.contains(&finding) {
            tracing::info!(%finding, "disk");
            self.findings.push(finding);
        }
    }

    pub(super) fn used(&self) -> u64 {
        FIXED_BYTES + self.sets.iter().map(|set| set.used()).sum::<u64>()
    }

    pub(super) fn set(&self, id: SetId) -> Result<&Arc<DiskSet>, DiskError> {
        self.sets.iter().find(|set| set.id == id).ok_or(DiskError::NoSuchSet { set: id })
    }
}

impl Geometry {
    /// Bytes that a directory with so many slots of this geometry, and no others, has on the drive.
    pub fn directory_bytes(&self, slots: u64) -> u64 {
        FIXED_BYTES.saturating_add(slots.saturating_mul(self.slot_bytes() + RECORD_BYTES as u64))
    }

    /// The most slots of this geometry that a directory of at most `bytes` has.
    pub fn slots_in(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(FIXED_BYTES) / (self.slot_bytes() + RECORD_BYTES as u64)
    }
}

impl DiskDirectory {
    /// Lets directories number their records in one sequence from now on, past all there are, so that
    /// the order of storing is known across them. All that have records of one another's blocks
    /// should be given.
    pub(crate) fn order_together<'a>(directories: impl IntoIterator<Item = &'a mut Self>) {
        let directories: Vec<_> = directories.into_iter().collect();
        let next = directories.iter().map(|one| one.sequence.load(Ordering::Relaxed)).max();
        let sequence = Arc::new(AtomicU64::new(next.unwrap_or(1)));
        for directory in directories {
            directory.sequence = sequence.clone();
        }
    }

    /// The set that blocks are stored in.
    pub fn current(&self) -> SetId {
        self.current
    }

    /// All sets, with geometry and slots: in total, and given up.
    pub fn sets(&self) -> Vec<(SetId, Geometry, u32, u32)> {
        let head = self.head.lock();
        let entry = |set: &Arc<DiskSet>| {
            let marks = set.marks.lock();
            (set.id, set.geometry, marks.len(), marks.holes())
        };
        head.sets.iter().map(entry).collect()
    }

    /// Bytes on the drive, everything included. They never grow past the limit; where that is lower
    /// than before they are more until slots are given up.
    pub fn used(&self) -> u64 {
        self.head.lock().used()
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.options.bytes
    }

    /// The present reset generation.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What was found out since opening.
    pub fn findings(&self) -> Vec<DiskFinding> {
        self.head.lock().findings.clone()
    }

    /// The file with the slots of a set.
    ///
    /// # Errors
    ///
    /// [`DiskError::NoSuchSet`].
    pub fn data_file(&self, set: SetId) -> Result<Arc<dyn IoFile>, DiskError> {
        Ok(self.set(set)?.data.clone())
    }

    /// Where the bytes of a slot lie. Whoever writes there has erased the slot's record before.
    ///
    /// # Errors
    ///
    /// [`DiskError::NoSuchSet`], [`DiskError::NoSuchSlot`].
    pub fn place(&self, slot: DiskSlot) -> Result<SlotPlace, DiskError> {
        let set = self.set(slot.set)?;
        set.check(slot.slot)?;
        Ok(set.place(slot.slot))
    }

    /// Records blocks whose data has been written. On return they are acknowledged.
    ///
    /// # Errors
    ///
    /// Nothing is acknowledged: [`DiskError::WrongGeneration`] where a reset came between,
    /// [`DiskError::SlotInUse`] where the slot was not erased, and whatever the drive says; after
    /// that the slots must be erased before they are used again.
    pub fn write_records(&self, records: &[(DiskSlot, DiskRecord)]) -> Result<(), DiskError> {
        self.head_written()?;
        for set in self.touched(records.iter().map(|(slot, _)| *slot))? {
            let mine = || records.iter().filter(|(slot, _)| slot.set == set.id);
            let mut raw = Vec::new();
            {
                let head = self.head.lock();
                for (slot, record) in mine() {
                    set.check(slot.slot)?;
                    let index = record.fingerprint.index();
                    let known = head.superblock.fingerprint(record.fingerprint);
                    let known = known.ok_or(DiskError::NoSuchFingerprint { index })?;
                    let most = set.geometry.payload_bytes();
                    if record.stored_len > most {
                        return Err(DiskError::InvalidConfig {
                            field: "stored_len",
                            value: record.stored_len.to_string(),
                            remedy: "store at most the payload of the set's geometry",
                        });
                    }
                    let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
                    raw.push(record.encode(*slot, sequence, &known.digest));
                }
            }
            if self.options.durability == Durability::Power {
                set.sync_data()?;
            }
            let mut marks = set.marks.lock();
            self.check(&marks, mine())?;
            for ((slot, record), raw) in mine().zip(&raw) {
                // Before the write: one that fails may have got through.
                marks.set_block(slot.slot, record.fingerprint);
                set.put(slot.slot, raw)?;
            }
            drop(marks);
            if self.options.durability == Durability::Power {
                set.sync_table()?;
            }
        }
        Ok(())
    }

    /// Notes when blocks were last used. Slots without a record are passed over: the block may just
    /// have been evicted. Not synced: a recency that is lost costs nothing but order.
    ///
    /// # Errors
    ///
    /// Whatever the drive says.
    pub fn touch(&self, uses: &[(DiskSlot, u64)]) -> Result<(), DiskError> {
        for set in self.touched(uses.iter().map(|(slot, _)| *slot))? {
            let marks = set.marks.lock();
            for &(slot, last_use) in uses.iter().filter(|(slot, _)| slot.set == set.id) {
                if !marks.has_block(slot.slot) {
                    continue;
                }
                let Parsed::Block { mut record, sequence, fingerprint } =
                    parse(&set.get(slot.slot)?, slot)
                else {
                    continue;
                };
                record.last_use = last_use;
                let mut digest = [0; 32];
                digest[..16].copy_from_slice(&fingerprint);
                set.put(slot.slot, &record.encode(slot, sequence, &digest))?;
            }
        }
        Ok(())
    }

    /// Erases records. On return the slots may be written again. One without a record is no error.
    ///
    /// # Errors
    ///
    /// Whatever the drive says; the slots must then be erased again before they are written.
    pub fn tombstone(&self, slots: &[DiskSlot]) -> Result<(), DiskError> {
        self.head_written()?;
        for set in self.touched(slots.iter().copied())? {
            let mine = || slots.iter().filter(|slot| slot.set == set.id);
            let mut marks = set.marks.lock();
            let mut erased = Vec::new();
            for slot in mine().filter(|slot| marks.has_block(slot.slot)) {
                set.erase(slot.slot)?;
                erased.push(slot.slot);
            }
            if self.options.durability == Durability::Power && !erased.is_empty() {
                set.sync_table()?;
            }
            for slot in erased {
                marks.set_free(slot);
            }
        }
        Ok(())
    }

    /// Starts a reset generation for so many `resets`, `at_least` that one: on return no record of
    /// before is ever seen again, and every slot is free. `skipped` is told how many numbers were left
    /// out, as soon as the new one counts and before the drive is asked.
    ///
    /// # Errors
    ///
    /// Whatever the drive says. The reset may or may not have happened then; until the superblock
    /// could be written nothing else is.
    pub fn next_generation(
        &self,
        resets: u64,
        at_least: u64,
        skipped: impl FnOnce(u64),
    ) -> Result<u64, DiskError> {
        let mut head = self.head.lock();
        let next = head.superblock.generation.saturating_add(resets);
        let generation = next.max(at_least);
        self.start_generation(&mut head, generation, || skipped(generation - next))
    }

    /// Catches up with directories that have heard of a reset when this one could not be reached: on
    /// return its generation is `generation` at least. Whether there was one to catch up with; then
    /// no record of before is ever seen again, and every slot is free.
    ///
    /// # Errors
    ///
    /// As for [`next_generation`](Self::next_generation).
    pub(crate) fn catch_up(&self, generation: u64) -> Result<bool, DiskError> {
        let mut head = self.head.lock();
        let behind = head.superblock.generation < generation;
        if behind {
            self.start_generation(&mut head, generation, || ())?;
        }
        Ok(behind)
    }

    fn start_generation(
        &self,
        head: &mut Head,
        generation: u64,
        counts: impl FnOnce(),
    ) -> Result<u64, DiskError> {
        head.superblock.generation = generation;
        // Before the drive is asked: whatever comes of it, nothing older is acknowledged any more.
        self.generation.store(generation, Ordering::Release);
        counts();
        self.write_head(head)?;
        for set in &head.sets {
            set.marks.lock().reset();
        }
        Ok(generation)
    }

    /// The number of a fingerprint, which enters the table where it is not there. In a full table it
    /// takes the place of one that has no blocks.
    ///
    /// # Errors
    ///
    /// [`DiskError::TableFull`], and whatever the drive says.
    pub fn fingerprint(&self, digest: [u8; 32], label: &str) -> Result<FingerprintId, DiskError> {
        let mut head = self.head.lock();
        if let Some(id) = head.superblock.find(&digest) {
            head.asked.push(id);
            return Ok(id);
        }
        let index = match head.superblock.fingerprints.iter().position(Option::is_none) {
            Some(free) => free,
            None if head.superblock.fingerprints.len() < MAX_FINGERPRINTS => {
                head.superblock.fingerprints.push(None);
                head.superblock.fingerprints.len() - 1
            }
            None => {
                let mut used = [false; MAX_FINGERPRINTS];
                head.asked.iter().for_each(|id| used[usize::from(id.0)] = true);
                for set in &head.sets {
                    let marks = set.marks.lock();
                    marks.fingerprints().for_each(|id| used[usize::from(id.0)] = true);
                }
                let full = DiskError::TableFull { what: "fingerprint", limit: MAX_FINGERPRINTS };
                used.iter().position(|used| !used).ok_or(full)?
            }
        };
        let id = FingerprintId(index as u16);
        let entry = NamedFingerprint { digest, label: label.to_owned() };
        head.superblock.fingerprints[index] = Some(entry);
        head.asked.push(id);
        self.write_head(&mut head)?;
        Ok(id)
    }

    /// Fingerprints that were asked for before give up their places as soon as they have no blocks,
    /// these excepted.
    pub(crate) fn keep_fingerprints(&self, ids: &[FingerprintId]) {
        self.head.lock().asked = ids.to_vec();
    }

    /// What a fingerprint's number stands for: digest and label.
    pub fn fingerprint_of(&self, id: FingerprintId) -> Option<([u8; 32], String)> {
        let head = self.head.lock();
        head.superblock.fingerprint(id).map(|named| (named.digest, named.label.clone()))
    }

    /// Makes durable everything that was written before the call.
    ///
    /// # Errors
    ///
    /// Whatever the drive says.
    pub fn sync(&self) -> Result<(), DiskError> {
        self.head_written()?;
        let sets = self.head.lock().sets.clone();
        for set in sets {
            set.sync_data()?;
            set.sync_table()?;
        }
        Ok(())
    }

    /// Refuses what may not be recorded.
    fn check<'a>(
        &self,
        marks: &Marks,
        records: impl Iterator<Item = &'a (DiskSlot, DiskRecord)>,
    ) -> Result<(), DiskError> {
        let mut seen = HashSet::new();
        for &(slot, ref record) in records {
            let current = self.generation();
            if record.generation != current {
                return Err(DiskError::WrongGeneration { found: record.generation, current });
            }
            if marks.has_block(slot.slot) || !seen.insert(slot) {
                return Err(DiskError::SlotInUse { slot });
            }
            if marks.is_hole(slot.slot) {
                return Err(DiskError::SlotGivenUp { slot });
            }
        }
        Ok(())
    }

    fn set(&self, id: SetId) -> Result<Arc<DiskSet>, DiskError> {
        self.head.lock().set(id).cloned()
    }

    /// The sets of some slots, each once; all slots are there.
    pub(super) fn touched(
        &self,
        slots: impl Iterator<Item = DiskSlot>,
    ) -> Result<Vec<Arc<DiskSet>>, DiskError> {
        let head = self.head.lock();
        let mut sets: Vec<Arc<DiskSet>> = Vec::new();
        for slot in slots {
            let set = head.set(slot.set)?;
            set.check(slot.slot)?;
            if !sets.iter().any(|known| known.id == set.id) {
                sets.push(set.clone());
            }
        }
        Ok(sets)
    }

    pub(super) fn write_head(&self, head: &mut Head) -> Result<(), IoError> {
        head.unwritten = true;
        head.superblock.sequence = head.superblock.sequence.saturating_add(1);
        head.superblock.write(&*self.superfile)?;
        head.unwritten = false;
        Ok(())
    }

    /// A superblock that could not be written comes before everything else.
    fn head_written(&self) -> Result<(), IoError> {
        let mut head = self.head.lock();
        if !head.unwritten {
            return Ok(());
        }
        self.write_head(&mut head)
    }
}
