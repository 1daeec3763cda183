use dynamo_llm::block_manager::WeakBlock;

fn read(block: &WeakBlock) -> usize {
    block.block_view().unwrap().len()
}

fn main() {}
