//! Calls after which the model has to find out who went, and whether they had to.

use dynamo_llm::block_manager::pool::{EvictionMode, MutableSlots, Registration, SlotPool};

use crate::{model::Told, world::World};

impl World {
    /// The slots are of the sections named, as many as those have.
    pub(crate) fn allocate_in(&mut self, wanted: &[usize]) {
        let sections = self.model.sections();
        let mut asked = vec![0; sections.len()];
        let mut expected = Vec::new();
        for &section in wanted {
            expected.push(sections.get(section).is_some_and(|(_, [free, _, _, inactive, _])| {
                asked[section] += 1;
                asked[section] <= free + inactive
            }));
        }
        let needed = sections.iter().zip(asked).map(|((_, [free, _, _, inactive, _]), asked)| {
            asked.saturating_sub(*free).min(*inactive)
        });
        let (slots, told) = self.evicting(needed.collect(), |pool| pool.allocate_in(wanted));
        assert_eq!(slots.iter().map(Option::is_some).collect::<Vec<_>>(), expected);
        for (slot, &section) in slots.iter().zip(wanted) {
            for &id in slot.iter().flat_map(MutableSlots::ids) {
                assert_eq!(self.model.section_of(id), section);
                assert_eq!(self.pool.section_of(id), Some(section));
                self.model.handed_out(id);
            }
        }
        let slots = MutableSlots::join(slots.into_iter().flatten());
        let ids = slots.iter().flat_map(MutableSlots::ids);
        assert_eq!(ids.map(|&id| Told::Allocated(id)).collect::<Vec<_>>(), told);
        self.mutable.extend(slots);
    }

    pub(crate) fn trigger(&mut self, mode: EvictionMode) {
        let needed = self.model.sections().into_iter().map(|(slots, [free, _, _, inactive, _])| {
            let target = match mode {
                EvictionMode::Normal => slots.len().div_ceil(8),
                EvictionMode::Aggressive => usize::MAX,
            };
            target.saturating_sub(free).min(inactive)
        });
        let before = self.model.totals.evictions;
        let (evicted, told) = self.evicting(needed.collect(), |pool| pool.trigger_eviction(mode));
        assert_eq!(evicted as u64, self.model.totals.evictions - before);
        assert_eq!(told, []);
    }

    /// Makes a call that has to evict `needed` blocks of each section, and others only because they
    /// continue such a block. Returns what was told besides.
    fn evicting<T>(
        &mut self,
        mut needed: Vec<usize>,
        call: impl FnOnce(&SlotPool) -> T,
    ) -> (T, Vec<Told>) {
        let (succeeded, waiting_for) = (self.model.with_successors(), self.model.waiting_for());
        let result = call(&self.pool);
        let mut told = self.log.take();
        let evictions = told.iter().take_while(|event| matches!(event, Told::Evicted(..))).count();
        let rest = told.split_off(evictions);
        // A take-over is not told; a lookup shows whether there was one.
        let mut taken_over = Vec::new();
        for (key, id) in succeeded {
            let found = self.pool.match_prefix(&[key]);
            if found.ids() != [id] {
                self.model.evicted(id);
                taken_over.push(id);
            }
            let model = self.model.matched(&[Registration::new(key)], false);
            assert_eq!(found.ids(), model);
            drop(found);
            self.model.released(&model);
        }
        let probes = std::mem::take(&mut self.model.expected);
        let makes_way = |id, section, needy: &[usize]| {
            let mut waiting = waiting_for[&id].iter();
            waiting.any(|&other| other != section && needy[other] > 0)
        };
        // When a take-over came among the others is not known: those that cannot have made way are
        // taken off what was needed first, the others last.
        let mut needy = needed.clone();
        let mut made_way = Vec::new();
        for id in taken_over {
            let section = self.model.section_of(id);
            if makes_way(id, section, &needy) {
                made_way.push(section);
            } else {
                assert!(needed[section] > 0, "slot {id} was evicted for nothing");
                needed[section] -= 1;
            }
        }
        for event in &told {
            let Told::Evicted(id, _) = *event else { panic!("{event:?} in an eviction") };
            let section = self.model.section_of(id);
            let needed_here = needed[section] > 0;
            assert!(needed_here || makes_way(id, section, &needy), "slot {id} went for nothing");
            needed[section] -= usize::from(needed_here);
            needy[section] = needy[section].saturating_sub(1);
            self.model.evicted(id);
        }
        for section in made_way {
            needed[section] = needed[section].saturating_sub(1);
        }
        assert!(needed.iter().all(|&needed| needed == 0), "{needed:?} were to go besides");
        assert_eq!(std::mem::replace(&mut self.model.expected, probes), told);
        (result, rest)
    }
}
