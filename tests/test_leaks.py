"""What is dropped is gone: memory stays flat over a million exports, and over everything else."""

import gc
import logging
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dynamo_llm import BlockManager, BlockPool, hash_tokens

PAGE = 4
BYTES, OBJECTS = 4 << 20, 1000
"""What so many turns may leave behind: for thousands of turns, next to nothing."""


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """Records of the log are kept by the test runner."""
    logger = logging.getLogger("dynamo_llm")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def grown(turn: Callable[[], object], times: int) -> tuple[int, int]:
    """Bytes and Python objects that so many turns leave behind, once warm.

    Other threads and the allocator come and go: what is really left behind is left behind again.
    """
    for _ in range(max(times // 10, 1)):
        turn()
    least = (sys.maxsize, sys.maxsize)
    for _ in range(3):
        gc.collect()
        before, objects = resident(), sys.getallocatedblocks()
        for _ in range(times):
            turn()
        gc.collect()
        now = (resident() - before, sys.getallocatedblocks() - objects)
        least = (min(least[0], now[0]), min(least[1], now[1]))
        if least[0] < BYTES and least[1] < OBJECTS:
            break
    return least


@pytest.fixture
def manager() -> Iterator[BlockManager]:
    with BlockManager(2, PAGE, 8, device_blocks=64, host_blocks=128) as made:
        yield made


@pytest.fixture
def device(manager: BlockManager) -> BlockPool:
    pool = manager.get_device_pool()
    assert pool is not None
    return pool


def test_a_million_exports_leave_nothing(manager: BlockManager, device: BlockPool) -> None:
    blocks = manager.allocate_blocks(50)
    shown = [(block, block[1]) for block in blocks]

    def turn() -> None:
        """250 exports: consumed, never consumed, of either form, and copied."""
        for block, layer in shown:
            np.from_dlpack(block)
            block.__dlpack__()
            block.__dlpack__(max_version=(1, 1))
            np.from_dlpack(layer)
            layer.__dlpack__(copy=True)
        with pytest.raises(BufferError, match="stream"):
            shown[0][0].__dlpack__(stream=1)

    size, objects = grown(turn, 4000)
    assert size < BYTES
    assert objects < OBJECTS
    blocks.release()
    shown.clear()
    assert device.available_blocks() == 64


def test_requests_leave_nothing(manager: BlockManager, device: BlockPool) -> None:
    """The life of a request over and over, each time under other names."""
    first = iter(range(1, sys.maxsize))

    def turn() -> None:
        hashes = hash_tokens(range(8 * PAGE), PAGE, salt=str(next(first)))
        blocks = device.register_blocks(manager.allocate_blocks(8), hashes)
        manager.offload(blocks[:4]).result(10)
        list(blocks)
        blocks.release()
        with manager.lookup(hashes) as found:
            assert found.counts
        with manager.onboard(hashes[:2]) as back:
            assert len(back) == 2
        with pytest.raises(ValueError, match="hashes"):
            manager.lookup([b"short"])

    size, objects = grown(turn, 2000)
    assert size < BYTES
    assert objects < OBJECTS
    assert device.available_blocks() == 64


def test_managers_leave_nothing() -> None:
    cache = np.zeros((8, 2, 2, PAGE, 8), np.float16)

    def turn() -> None:
        with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=8) as own:
            own.allocate_blocks(2)
        # In an array of ours, whose references are counted.
        with BlockManager(
            2,
            PAGE,
            8,
            host_blocks=0,
            device_tensors=cache,
            axes=("block", "layer", "outer", "token", "element"),
        ) as borrowing:
            array = np.from_dlpack(borrowing.allocate_blocks(1)[0])
            del array

    before = sys.getrefcount(cache)
    size, objects = grown(turn, 200)
    assert size < BYTES
    assert objects < OBJECTS
    assert sys.getrefcount(cache) == before
