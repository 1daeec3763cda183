//! A pool, its model, and everything that callers of the pool hold.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use dynamo_llm::block_manager::{
    EngineKey, Key, SlotId, Tier,
    config::EvictionKind,
    events::{BlockEvent, EventManager, EventStream, TierCleared},
    pool::{
        ImmutableSlots, MutableSlots, PoolError, Registration, Section, SectionMetrics, SlotPool,
        SlotPoolOptions, WeakSlots,
    },
};

use crate::{
    Call, Run,
    model::{Identity, Model, Told, name},
};

#[derive(Default)]
pub(crate) struct Log(Mutex<(u64, Vec<Told>)>);

impl Log {
    fn note(&self, sequence: u64, told: Told) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(log.0, sequence, "events come without gaps");
        log.0 += 1;
        log.1.push(told);
    }

    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).1)
    }
}

fn named(event: &BlockEvent) -> (SlotId, Registration) {
    let &BlockEvent { block_id, parent, engine_key, .. } = event;
    (block_id, Registration { key: event.key.unwrap(), parent, engine_key })
}

impl EventManager for Log {
    fn block_allocated(&self, event: &BlockEvent) {
        assert_eq!(event.key, None);
        self.note(event.sequence, Told::Allocated(event.block_id));
    }
    fn block_registered(&self, event: &BlockEvent) {
        let (id, name) = named(event);
        self.note(event.sequence, Told::Registered(id, name));
    }
    fn block_matched(&self, event: &BlockEvent) {
        let (id, name) = named(event);
        self.note(event.sequence, Told::Matched(id, name));
    }
    fn block_evicted(&self, event: &BlockEvent) {
        let (id, name) = named(event);
        self.note(event.sequence, Told::Evicted(id, name));
    }
    fn tier_cleared(&self, event: &TierCleared) {
        self.note(event.sequence, Told::Cleared);
    }
}

/// A read handle and the writes that it must show.
struct Held {
    blocks: ImmutableSlots,
    stamps: Vec<u64>,
}

pub(crate) struct World {
    pub(crate) pool: SlotPool,
    pub(crate) log: Arc<Log>,
    pub(crate) model: Model,
    pub(crate) mutable: Vec<MutableSlots>,
    held: Vec<Held>,
    weak: Vec<(WeakSlots, Vec<(SlotId, Identity)>)>,
}

/// Takes two handles out, if there are two.
fn take_two<T>(handles: &mut Vec<T>, a: usize, b: usize) -> Option<(T, T)> {
    if handles.len() < 2 {
        return None;
    }
    Some((take(handles, a)?, take(handles, b)?))
}

/// Takes the handle `n` means out of `handles`.
fn take<T>(handles: &mut Vec<T>, n: usize) -> Option<T> {
    (!handles.is_empty()).then(|| handles.swap_remove(n % handles.len()))
}

fn engine_key(name: &Registration, kind: u8) -> Option<EngineKey> {
    let number = name.key.hash.as_u128() << 32 | u128::from(name.key.group << 8);
    (kind > 0).then(|| EngineKey::new(&(number | u128::from(kind)).to_be_bytes()).unwrap())
}

fn names((sequence, from, count): Run, engine: u8) -> Vec<Registration> {
    let named = |position| {
        let name = name(sequence, position);
        Registration { engine_key: engine_key(&name, engine), ..name }
    };
    (from..from + count).map(named).collect()
}

fn keys(names: &[Registration]) -> Vec<Key> {
    names.iter().map(|name| name.key).collect()
}

impl World {
    pub(crate) fn new(sections: &[(EvictionKind, usize)]) -> Self {
        let log = Arc::new(Log::default());
        let section = |&(policy, capacity): &(EvictionKind, usize)| Section {
            capacity,
            policy: policy.build(capacity as u32),
        };
        let options = SlotPoolOptions {
            tier: Tier::Host,
            sections: sections.iter().map(section).collect(),
            events: Some(Arc::new(EventStream::new(log.clone()))),
        };
        Self {
            pool: SlotPool::new(options).unwrap(),
            log,
            model: Model::new(sections.iter().map(|section| section.1)),
            mutable: Vec::new(),
            held: Vec::new(),
            weak: Vec::new(),
        }
    }

    /// Makes the call on both sides and compares what was told.
    pub(crate) fn apply(&mut self, call: &Call) {
        self.call(call);
        assert_eq!(self.log.take(), std::mem::take(&mut self.model.expected));
    }

    fn call(&mut self, call: &Call) {
        match *call {
            Call::Allocate(count) => self.allocate(count),
            Call::AllocateUpTo(count) => {
                let slots = self.pool.allocate_up_to(count);
                assert_eq!(slots.len(), count.min(self.model.free() + self.model.inactive()));
                self.allocated(slots);
            }
            Call::AllocateIn(ref sections) => self.allocate_in(sections),
            Call::FreeMutable(n) => {
                if let Some(slots) = take(&mut self.mutable, n) {
                    self.model.freed(slots.ids());
                }
            }
            Call::SplitMutable(n, at) => {
                if let Some(mut slots) = take(&mut self.mutable, n) {
                    let tail = slots.split_off(at);
                    self.mutable.extend([slots, tail]);
                }
            }
            Call::JoinMutable(a, b) => self.join_mutable(a, b),
            Call::MutableSingles(n, count) => {
                if let Some(slots) = take(&mut self.mutable, n) {
                    self.model.freed(slots.ids().get(count..).unwrap_or_default());
                    self.mutable.extend(slots.into_singles().take(count));
                }
            }
            Call::Register(n, run, engine) => {
                if let Some(slots) = take(&mut self.mutable, n) {
                    let all = names((run.0, run.1, slots.len() as u8), engine);
                    self.register(slots, &all);
                }
            }
            Call::RegisterAllAlike(n, run) => {
                if let Some(slots) = take(&mut self.mutable, n) {
                    let all = vec![name(run.0, run.1); slots.len()];
                    self.register(slots, &all);
                }
            }
            Call::RegisterTooFew(n) => self.register_too_few(n),
            Call::Match(run, engine) => self.find(run, engine),
            Call::Clone(n) => self.slice(n, 0, usize::MAX),
            Call::Slice(n, from, to) => self.slice(n, from, to),
            Call::Split(n, at) => {
                if let Some(mut held) = take(&mut self.held, n) {
                    let blocks = held.blocks.split_off(at);
                    let stamps = held.stamps.split_off(at.min(held.stamps.len()));
                    self.held.extend([held, Held { blocks, stamps }]);
                }
            }
            Call::Join(a, b) => {
                if let Some((a, b)) = take_two(&mut self.held, a, b) {
                    let blocks = ImmutableSlots::join([a.blocks, b.blocks]).unwrap();
                    self.held.push(Held { blocks, stamps: [a.stamps, b.stamps].concat() });
                }
            }
            Call::Singles(n, count) => {
                if let Some(Held { blocks, stamps }) = take(&mut self.held, n) {
                    self.model.released(blocks.ids().get(count..).unwrap_or_default());
                    let singles = blocks.into_singles().take(count).zip(stamps);
                    self.held.extend(
                        singles.map(|(blocks, stamp)| Held { blocks, stamps: vec![stamp] }),
                    );
                }
            }
            Call::Release(n) => {
                if let Some(held) = take(&mut self.held, n) {
                    self.model.released(held.blocks.ids());
                }
            }
            Call::Downgrade(n) => self.downgrade(n),
            Call::Upgrade(n, position) => self.upgrade(n, position),
            Call::DropWeak(n) => drop(take(&mut self.weak, n)),
            Call::Touch(run) => {
                let keys = keys(&names(run, 0));
                let there = keys.iter().filter(|&&key| self.model.is_registered(key)).count();
                assert_eq!(self.pool.touch(&keys), there);
            }
            Call::Trigger(mode) => self.trigger(mode),
            Call::Quarantine(n) => self.quarantine(n),
            Call::QuarantineMutable(n) => {
                if let Some(slots) = take(&mut self.mutable, n) {
                    self.model.put_out_of_use(slots.ids());
                    slots.quarantine();
                }
            }
            Call::TakeQuarantined => {
                let slots = self.pool.take_quarantined();
                self.model.taken_back(slots.ids());
                self.mutable.push(slots);
            }
            Call::Reset => {
                let held = self.model.held();
                self.model.reset();
                assert_eq!(self.pool.reset(), held);
            }
        }
    }

    fn allocate(&mut self, count: usize) {
        let free_or_idle = self.model.free() + self.model.inactive();
        match self.pool.allocate(count) {
            Ok(slots) => {
                assert_eq!(slots.len(), count);
                self.allocated(slots);
            }
            Err(PoolError::NotEnoughBlocksAvailable { requested, available, .. }) => {
                assert_eq!((requested, available), (count, free_or_idle));
                assert!(count > free_or_idle);
                self.model.totals.allocation_failures += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn allocated(&mut self, slots: MutableSlots) {
        self.model.allocated(slots.ids());
        self.mutable.push(slots);
    }

    fn join_mutable(&mut self, a: usize, b: usize) {
        let Some((a, b)) = take_two(&mut self.mutable, a, b) else { return };
        let ids = [a.ids(), b.ids()].concat();
        let alike = a.generation() == b.generation();
        let joined = MutableSlots::join([a, b]);
        assert_eq!(joined.is_some(), alike);
        match joined {
            Some(joined) => self.mutable.push(joined),
            None => self.model.freed(&ids),
        }
    }

    fn register(&mut self, slots: MutableSlots, names: &[Registration]) {
        let (ids, generation) = (slots.ids().to_vec(), slots.generation());
        match self.pool.register(slots, names) {
            Ok(blocks) => {
                assert_eq!(generation, self.model.totals.resets);
                let stamps = self.model.registered(&ids, names);
                self.held.push(Held { blocks, stamps });
            }
            Err((PoolError::Stale { allocated, current, .. }, slots)) => {
                assert_eq!((allocated, current), (generation, self.model.totals.resets));
                assert!(allocated < current);
                self.mutable.push(slots);
            }
            Err((error, _)) => panic!("{error}"),
        }
    }

    fn register_too_few(&mut self, n: usize) {
        let Some(slots) = take(&mut self.mutable, n) else { return };
        let all = names((0, 0, slots.len() as u8 + 1), 0);
        let (error, slots) = self.pool.register(slots, &all).unwrap_err();
        assert!(matches!(error, PoolError::LengthMismatch { .. }), "{error}");
        self.mutable.push(slots);
    }

    fn quarantine(&mut self, n: usize) {
        let Some(held) = take(&mut self.held, n) else { return };
        let ids = held.blocks.ids().to_vec();
        self.model.suspected(&ids);
        held.blocks.quarantine();
        self.model.released(&ids);
    }

    /// Holds what was found, which must show the bytes of what was asked for.
    fn find(&mut self, run: Run, engine: Option<u8>) {
        let wanted = names(run, engine.unwrap_or_default());
        let engine_keys: Option<Vec<EngineKey>> = match engine {
            None | Some(0) => None,
            Some(_) => wanted.iter().map(|name| name.engine_key).collect(),
        };
        let blocks = match &engine_keys {
            // No engine keys at all: blocks without one are wanted.
            None if engine.is_some() => {
                self.pool.match_prefix_with_engine_keys(&keys(&wanted), &[])
            }
            None => self.pool.match_prefix(&keys(&wanted)),
            Some(engine_keys) => {
                self.pool.match_prefix_with_engine_keys(&keys(&wanted), engine_keys)
            }
        };
        assert_eq!(blocks.ids(), self.model.matched(&wanted, engine.is_some()));
        let contents: Vec<_> =
            blocks.ids().iter().map(|&id| self.model.bytes[id as usize].unwrap()).collect();
        for (content, name) in contents.iter().zip(&wanted) {
            assert_eq!(content.name.key, name.key);
            assert!(engine.is_none() || content.name.engine_key == name.engine_key);
        }
        let stamps = contents.iter().map(|content| content.stamp).collect();
        self.held.push(Held { blocks, stamps });
    }

    fn slice(&mut self, n: usize, from: usize, to: usize) {
        if self.held.is_empty() {
            return;
        }
        let held = &self.held[n % self.held.len()];
        let blocks =
            if to == usize::MAX { held.blocks.clone() } else { held.blocks.slice(from..to) };
        let end = to.min(held.stamps.len());
        let stamps = held.stamps[from.min(end)..end].to_vec();
        self.model.pinned(blocks.ids());
        self.held.push(Held { blocks, stamps });
    }

    fn downgrade(&mut self, n: usize) {
        if !self.held.is_empty() {
            let blocks = &self.held[n % self.held.len()].blocks;
            let identities = blocks.ids().iter().map(|&id| (id, self.model.identity(id)));
            self.weak.push((blocks.downgrade(), identities.collect()));
        }
    }

    fn upgrade(&mut self, n: usize, position: usize) {
        if self.weak.is_empty() {
            return;
        }
        let (weak, identities) = &self.weak[n % self.weak.len()];
        let expected = identities.get(position).copied().filter(|&(id, identity)| {
            self.model.is_readable(id) && self.model.identity(id) == identity
        });
        let blocks = weak.upgrade(position);
        assert_eq!(blocks.is_some(), expected.is_some());
        if let (Some(blocks), Some((id, (stamp, _)))) = (blocks, expected) {
            assert_eq!(blocks.ids(), [id]);
            self.model.pinned(&[id]);
            self.held.push(Held { blocks, stamps: vec![stamp] });
        }
    }

    /// Everything that must hold between two calls.
    pub(crate) fn check(&self) {
        let metrics = self.pool.metrics();
        let states =
            [metrics.free, metrics.mutable, metrics.active, metrics.inactive, metrics.quarantined];
        assert_eq!(states.iter().sum::<u64>(), metrics.capacity);
        assert_eq!(metrics, self.model.metrics());
        assert!((0.0..=1.0).contains(&metrics.usage()));
        self.pool.self_check().unwrap();
        let sections = self.pool.section_metrics().into_iter().map(|section| {
            let SectionMetrics { slots, free, mutable, active, inactive, quarantined, .. } =
                section;
            let counts = [free, mutable, active, inactive, quarantined];
            assert_eq!(counts.iter().sum::<u64>(), slots.len() as u64);
            (slots, counts.map(|count| count as usize))
        });
        assert_eq!(sections.collect::<Vec<_>>(), self.model.sections());
        for sequence in 0..4 {
            let keys = keys(&names((sequence, 0, 16), 0));
            let there: Vec<bool> = keys.iter().map(|&key| self.model.is_registered(key)).collect();
            assert_eq!(self.pool.contains(&keys), there);
            assert_eq!(self.pool.first_present(&keys), there.iter().position(|&there| there));
        }
        for Held { blocks, stamps } in &self.held {
            let names: Vec<_> = blocks.ids().iter().map(|&id| self.model.name(id)).collect();
            assert_eq!(blocks.registrations(), names);
            let shown = blocks.ids().iter().map(|&id| self.model.bytes[id as usize].unwrap());
            assert!(shown.zip(stamps).all(|(content, &stamp)| content.stamp == stamp));
            let current: Vec<_> =
                blocks.ids().iter().map(|&id| self.model.is_current(id)).collect();
            assert_eq!(blocks.are_current(), current);
            let duplicate: Vec<_> =
                blocks.ids().iter().map(|&id| self.model.is_duplicate(id)).collect();
            assert_eq!(blocks.are_duplicates(), duplicate);
        }
        let owned: Vec<SlotId> =
            self.mutable.iter().flat_map(|slots| slots.ids().iter().copied()).collect();
        let distinct: HashSet<SlotId> = owned.iter().copied().collect();
        assert_eq!((distinct.len(), owned.len() as u64), (owned.len(), metrics.mutable));
    }

    /// Once nobody holds anything, every slot that is not out of use can be had again.
    pub(crate) fn close(mut self) {
        self.mutable.drain(..).for_each(|slots| self.model.freed(slots.ids()));
        self.held.drain(..).for_each(|held| self.model.released(held.blocks.ids()));
        self.check();
        let all = self.pool.capacity() - self.model.quarantined();
        let slots = self.pool.allocate(all).unwrap();
        self.model.allocated(slots.ids());
        self.mutable.push(slots);
        assert_eq!(self.log.take(), std::mem::take(&mut self.model.expected));
        self.check();
    }
}
