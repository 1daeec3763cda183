use dynamo_llm::block_manager::ImmutableBlock;

fn write(block: &mut ImmutableBlock) {
    block.block_view_mut().unwrap().fill(0);
}

fn main() {}
