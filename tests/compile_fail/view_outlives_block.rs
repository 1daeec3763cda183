use dynamo_llm::block_manager::ImmutableBlock;

fn keep(block: ImmutableBlock) -> &'static [u8] {
    block.block_view().unwrap()
}

fn main() {}
