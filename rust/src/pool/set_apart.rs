//! Which slots hold no block and are not free either.

use super::{
    SlotPool,
    slot::{Life, Standing},
    state::State,
};
use crate::eviction::SlotId;

impl SlotPool {
    /// Slots that are being written, and slots out of use because their bytes proved bad, those
    /// included that somebody still reads. Costs a look at each slot.
    pub(crate) fn set_apart(&self) -> Vec<SlotId> {
        self.with(|state| state.set_apart())
    }
}

impl State {
    fn set_apart(&self) -> Vec<SlotId> {
        let apart = self.slots.iter().enumerate().filter(|(_, slot)| match slot.life {
            Life::Mutable | Life::Quarantined => true,
            Life::Active => slot.standing == Standing::Suspect,
            Life::Free | Life::Inactive => false,
        });
        apart.map(|(id, _)| id as SlotId).collect()
    }
}
