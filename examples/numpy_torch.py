"""Blocks as tensors of numpy and, where it is installed, of torch: no copy, one owner."""

import numpy as np

import dynamo_llm
from dynamo_llm import BlockManager, DType

with BlockManager(
    num_layers=4, page_size=16, inner_dim=128, dtype=DType.FP16, device_blocks=8, host_blocks=16
) as manager:
    device = manager.get_device_pool()

    # A block is (layers, K and V, tokens, elements); a layer is one of its slices. All of these
    # show the same bytes.
    blocks = manager.allocate_blocks(2)
    whole = np.from_dlpack(blocks)
    block = np.from_dlpack(blocks[1])
    layer = np.from_dlpack(blocks[1][2])
    layer[0] = 0.5  # the keys of layer 2
    assert (block[2, 0] == 0.5).all()
    assert (whole[1, 2, 0] == 0.5).all()
    print("one block:", block.shape, block.dtype, "- a list of two:", whole.shape)

    # An array keeps its slot, whatever becomes of the block.
    del whole, layer
    blocks[1:].release()
    print("released, and still held by its array:", device.available_blocks(), "of 8 available")
    del block
    print("the array is gone:", device.available_blocks(), "of 8 available")

    # A registered block is shared, so its arrays are read-only. Who wants to write takes a copy.
    shared = device.register_blocks(blocks[:1], [1])
    assert not np.from_dlpack(shared[0]).flags.writeable
    copied = np.from_dlpack(shared[0], copy=True)
    copied[:] = 1

# numpy has no BF16 and no FP8. Any block can be had as bytes.
with BlockManager(2, 16, 128, DType.BF16, device_blocks=4, host_blocks=0) as manager:
    blocks = manager.allocate_blocks(1)
    raw = np.from_dlpack(blocks[0].view_uint8())
    raw.view(np.uint16)[:] = 0x3F80  # 1.0
    print("BF16 as bytes:", raw.shape, raw.dtype)

    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("torch is not installed")
    else:
        tensor = torch.from_dlpack(blocks[0])
        assert tensor.dtype == torch.bfloat16
        assert bool((tensor == 1).all())
        tensor.mul_(2)  # torch ignores the read-only flag: write into your own blocks alone
        assert (raw.view(np.uint16) == 0x4000).all()
        print("and as torch sees it:", tuple(tensor.shape), tensor.dtype)

print("dynamo_llm", dynamo_llm.__version__)
