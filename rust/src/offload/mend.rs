//! Slots of a drive that are out of use, and how they come back.
//!
//! * A slot that is to blame for a failure (its bytes were not those of its block, or the drive could
//!   not read or write them) is written with patterns and read back, on the store lane. If they hold
//!   it is in use again. If they do not although stores elsewhere went well meanwhile, or when it
//!   fails again later, it is retired until the process ends.
//! * A slot for which the drive had no room is out of use too, so that blocks make way for others
//!   instead of finding no room again and again. That speaks not against it: it is tried when stores
//!   go well, ever more rarely while there is no room, and at once when nothing else is left.
//!
//! One slot is tested at a time and nobody waits for it. All of them are quarantined meanwhile, as
//! far as the pool is concerned.
//!
//! Costs: a test of a suspect writes and reads it twice, one for room asks the file system; without
//! slots out of use, two atomic operations per store.

use std::collections::{HashSet, VecDeque};

use crate::{
    eviction::SlotId,
    pool::{MutableSlots, SlotPool},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    transfer::disk::{DiskBlocks, Tested},
};

/// Stores that go by between two tests, at most, while they show nothing.
const LONGEST_WAIT: u32 = 64;

/// Who waits for slots.
type Listener = Arc<dyn Fn() + Send + Sync>;

/// Who sees to the slots of a tier that are out of use.
pub(super) struct Mender {
    pool: SlotPool,
    disk: Arc<DiskBlocks>,
    /// Stores that went well.
    stores: AtomicU64,
    /// Slots that wait for a test; also known without the lock.
    waiting: AtomicUsize,
    books: Mutex<Books>,
    /// Told when a slot has come back.
    listeners: Mutex<Vec<Listener>>,
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
struct Patient {
    slot: SlotId,
    /// Stores that had gone well when it failed; `None`: it did not, it had no room.
    failed_after: Option<u64>,
}

impl Mender {
    pub(super) fn new(pool: SlotPool, disk: Arc<DiskBlocks>) -> Arc<Self> {
        Arc::new(Self {
            pool,
            disk,
            stores: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            books: Mutex::default(),
            listeners: Mutex::default(),
        })
    }

    /// Has `listener` called whenever a slot has come back, without a lock of ours.
    pub(super) fn when_mended(&self, listener: Listener) {
        self.listeners.lock().push(listener);
    }

    /// A slot that is quarantined, or will be when its last reader goes, has failed.
    pub(super) fn blame(self: &Arc<Self>, slot: SlotId) {
        {
            let mut books = self.books.lock();
            if books.failed.insert(slot) {
                books.suspects.push_back(self.failed_now(slot));
            } else if !books.suspects.iter().any(|patient| patient.slot == slot) {
                // Not another reader of the same bytes.
                self.retire(&mut books, slot);
            }
            self.count(&books);
        }
        self.test();
    }

    /// The drive has no room for slots: out of use until it has.
    pub(super) fn set_aside(&self, slots: MutableSlots) {
        let patients: Vec<_> =
            slots.ids().iter().map(|&slot| Patient { slot, failed_after: None }).collect();
        slots.quarantine();
        let mut books = self.books.lock();
        books.roomless.extend(patients);
        self.count(&books);
    }

    /// A store went well: a good moment for a test.
    pub(super) fn stored(self: &Arc<Self>) {
        self.stores.fetch_add(1, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        {
            let mut books = self.books.lock();
            books.pause = books.pause.saturating_sub(1);
            if books.pause > 0 {
                return;
            }
        }
        self.test();
    }

    /// A store found no slot: whatever can come back should.
    pub(super) fn wanted(self: &Arc<Self>) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.test();
        }
    }

    /// A quarantined slot was found good by somebody else.
    pub(super) fn returned(&self, slot: SlotId) {
        let mut books = self.books.lock();
        let Books { suspects, roomless, .. } = &mut *books;
        for queue in [suspects, roomless] {
            queue.retain(|patient| patient.slot != slot);
        }
        self.count(&books);
    }

    /// Whether a slot is out of use for good.
    pub(super) fn is_retired(&self, slot: SlotId) -> bool {
        self.books.lock().retired.contains(&slot)
    }

    /// Has the next slot tested, unless one is.
    fn test(self: &Arc<Self>) {
        let Some((patient, slot)) = self.next() else { return };
        let mender = self.clone();
        let told = move |tested| mender.tested(patient, slot, tested);
        if patient.failed_after.is_some() {
            self.disk.test(patient.slot, told);
        } else {
            self.disk.find_room(patient.slot, told);
        }
    }

    /// The next slot that is held by no reader any more; a test of it is under way then.
    fn next(&self) -> Option<(Patient, MutableSlots)> {
        let mut books = self.books.lock();
        if books.testing {
            return None;
        }
        let Books { suspects, roomless, retired, .. } = &mut *books;
        let found = [suspects, roomless].into_iter().find_map(|queue| {
            queue.retain(|patient| !retired.contains(&patient.slot));
            let (at, slot) = queue.iter().enumerate().find_map(|(at, patient)| {
                Some((at, self.pool.take_quarantined_slot(patient.slot)?))
            })?;
            queue.remove(at).map(|patient| (patient, slot))
        });
        books.testing = found.is_some();
        self.count(&books);
        found
    }

    fn tested(self: &Arc<Self>, patient: Patient, slot: MutableSlots, tested: Tested) {
        let id = patient.slot;
        // In use again, or as before, whatever is asked next.
        if tested == Tested::Holds {
            drop(slot);
        } else {
            slot.quarantine();
        }
        let on = {
            let mut books = self.books.lock();
            books.testing = false;
            let drive_is_well =
                patient.failed_after.is_some_and(|at| at < self.stores.load(Ordering::Relaxed));
            let on = match tested {
                Tested::Holds => {
                    (books.pause, books.wait) = (0, 0);
                    true
                }
                Tested::Fails if drive_is_well => {
                    self.retire(&mut books, id);
                    true
                }
                Tested::Fails | Tested::NoRoom | Tested::Unknown => {
                    books.wait = (books.wait * 2).clamp(1, LONGEST_WAIT);
                    books.pause = books.wait;
                    if patient.failed_after.is_some() {
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
        };
        if on {
            self.test();
        }
        if tested == Tested::Holds {
            let listeners = self.listeners.lock().clone();
            for listener in &listeners {
                listener();
            }
        }
    }

    fn failed_now(&self, slot: SlotId) -> Patient {
        Patient { slot, failed_after: Some(self.stores.load(Ordering::Relaxed)) }
    }

    fn retire(&self, books: &mut Books, slot: SlotId) {
        if books.retired.insert(slot) {
            tracing::warn!(tier = %self.pool.tier(), slot, "a slot failed again and is retired");
        }
    }

    fn count(&self, books: &Books) {
        let waiting = books.suspects.len() + books.roomless.len();
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}
