//! The slots of one drive that are out of use, and what the next test of one means.
//!
//! Plain bookkeeping: which slot is next, and what becomes of it. Who tests is told, and nobody is
//! called under the lock but the pool, which calls nobody.

use std::collections::{HashSet, VecDeque};

use crate::{
    eviction::SlotId,
    pool::{MutableSlots, SlotPool},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    transfer::disk::Tested,
};

/// Stores that go by between two tests, at most, while they show nothing.
const LONGEST_WAIT: u32 = 64;

/// The slots of one drive.
#[derive(Default)]
pub(super) struct Ward {
    /// Stores and loads that went well.
    stores: AtomicU64,
    loads: AtomicU64,
    /// Slots that wait for a test; also known without the lock.
    waiting: AtomicUsize,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Those that failed first.
    suspects: VecDeque<Patient>,
    /// Those there was no room for.
    roomless: VecDeque<Patient>,
    /// Slots that have failed once.
    failed: HashSet<SlotId>,
    retired: HashSet<SlotId>,
    testing: bool,
    /// Stores to let go by before the next test, and how many it was the last time.
    pause: u32,
    wait: u32,
}

/// A slot to be tested.
#[derive(Clone, Copy)]
pub(super) struct Patient {
    pub(super) slot: SlotId,
    /// What had gone well when it failed; `None`: it did not, it had no room.
    failed_after: Option<Well>,
}

/// How much a drive has done well. It is well if both go on: some write what they cannot read.
#[derive(Clone, Copy)]
struct Well {
    stores: u64,
    loads: u64,
}

impl Patient {
    /// Whether it has failed, rather than lacked room.
    pub(super) fn is_suspect(self) -> bool {
        self.failed_after.is_some()
    }
}

impl Ward {
    /// A slot has failed. Each reader that found its bytes bad says so while it holds them: before
    /// the last has, no test can begin.
    pub(super) fn blame(&self, slot: SlotId) {
        let mut books = self.books.lock();
        if books.failed.insert(slot) {
            books.suspects.push_back(self.failed_now(slot));
        } else if !books.suspects.iter().any(|patient| patient.slot == slot) {
            // Not another reader of the same bytes.
            books.retire(slot);
        }
        self.count(&books);
    }

    /// There is no room for a slot.
    pub(super) fn set_aside(&self, slot: SlotId) {
        let mut books = self.books.lock();
        books.roomless.push_back(Patient { slot, failed_after: None });
        self.count(&books);
    }

    /// A store went well; whether it is time for a test.
    pub(super) fn stored(&self) -> bool {
        self.stores.fetch_add(1, Ordering::Relaxed);
        if !self.waits() {
            return false;
        }
        let mut books = self.books.lock();
        books.pause = books.pause.saturating_sub(1);
        books.pause == 0
    }

    /// A load went well.
    pub(super) fn loaded(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether some slot waits for a test.
    pub(super) fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A slot is in use again without a test of ours.
    pub(super) fn returned(&self, slot: SlotId) {
        let mut books = self.books.lock();
        let Books { suspects, roomless, .. } = &mut *books;
        for queue in [suspects, roomless] {
            queue.retain(|patient| patient.slot != slot);
        }
        self.count(&books);
    }

    pub(super) fn is_retired(&self, slot: SlotId) -> bool {
        self.books.lock().retired.contains(&slot)
    }

    /// The next slot that is held by no reader any more; a test of it is under way then.
    pub(super) fn next(&self, pool: &SlotPool) -> Option<(Patient, MutableSlots)> {
        let mut books = self.books.lock();
        if books.testing {
            return None;
        }
        let Books { suspects, roomless, .. } = &mut *books;
        let found = [suspects, roomless].into_iter().find_map(|queue| {
            let (at, slot) = queue
                .iter()
                .enumerate()
                .find_map(|(at, patient)| Some((at, pool.take_quarantined_slot(patient.slot)?)))?;
            queue.remove(at).map(|patient| (patient, slot))
        });
        books.testing = found.is_some();
        self.count(&books);
        found
    }

    /// A test has ended; whether another one would show anything now.
    pub(super) fn settle(&self, patient: Patient, tested: Tested) -> bool {
        let id = patient.slot;
        let mut books = self.books.lock();
        books.testing = false;
        let now = self.well();
        let drive_is_well = patient
            .failed_after
            .is_some_and(|then| then.stores < now.stores && then.loads < now.loads);
        let on = match tested {
            Tested::Holds => {
                (books.pause, books.wait) = (0, 0);
                true
            }
            Tested::Fails if drive_is_well => {
                books.retire(id);
                true
            }
            Tested::Fails | Tested::NoRoom | Tested::Unknown => {
                books.wait = (books.wait * 2).clamp(1, LONGEST_WAIT);
                books.pause = books.wait;
                if patient.is_suspect() {
                    books.suspects.push_back(patient);
                } else if tested == Tested::Fails && books.failed.insert(id) {
                    books.suspects.push_back(self.failed_now(id));
                } else {
                    books.roomless.push_back(patient);
                }
                false
            }
        };
        self.count(&books);
        on
    }

    fn failed_now(&self, slot: SlotId) -> Patient {
        Patient { slot, failed_after: Some(self.well()) }
    }

    fn well(&self) -> Well {
        let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Well { stores: counted(&self.stores), loads: counted(&self.loads) }
    }

    fn count(&self, books: &Books) {
        let waiting = books.suspects.len() + books.roomless.len();
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}

impl Books {
    fn retire(&mut self, slot: SlotId) {
        if self.retired.insert(slot) {
            tracing::warn!(slot, "a slot on disk failed again and is retired");
        }
    }
}
