"""A prefix computed once comes back after the device tier was filled with something else."""

import numpy as np

import dynamo_llm

tokens = list(range(64))

with dynamo_llm.BlockManager(
    num_layers=2, page_size=16, inner_dim=64, device_blocks=8, host_blocks=32
) as manager:
    hashes = dynamo_llm.hash_tokens(tokens, page_size=16)  # four blocks
    blocks = manager.allocate_blocks(len(hashes))
    for number, block in enumerate(blocks, start=1):
        np.from_dlpack(block)[:] = number  # an engine would write keys and values here

    device = manager.get_device_pool()
    blocks = device.register_blocks(blocks, hashes)
    computed = [np.from_dlpack(block).tobytes() for block in blocks]
    manager.offload(blocks, to="host").result(timeout=10)
    blocks.release()

    with manager.allocate_blocks(device.total_blocks()) as others:  # evicts all of the above
        for block in others:
            np.from_dlpack(block)[:] = -1

    found = manager.lookup(hashes)
    print(f"found {len(found)} blocks: {found.counts}")
    with manager.onboard(found) as back:
        assert [np.from_dlpack(block).tobytes() for block in back] == computed
    print("every byte is back")
