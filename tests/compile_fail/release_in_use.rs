use dynamo_llm::block_manager::MutableBlock;

fn free_while_written(mut block: MutableBlock) {
    let bytes = block.block_view_mut().unwrap();
    drop(block);
    bytes.fill(0);
}

fn main() {}
