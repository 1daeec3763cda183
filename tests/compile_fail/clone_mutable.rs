use dynamo_llm::block_manager::pool::MutableSlots;

fn two_owners(slots: &MutableSlots) -> MutableSlots {
    slots.clone()
}

fn main() {}
