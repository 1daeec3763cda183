use dynamo_llm::block_manager::pool::{MutableSlots, Registration, SlotPool};

fn keep_writing(pool: &SlotPool, slots: MutableSlots, names: &[Registration]) {
    let registered = pool.register(slots, names);
    slots.ids();
    drop(registered);
}

fn main() {}
