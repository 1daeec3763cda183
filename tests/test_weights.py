"""Weights swapped in place: old blocks are hidden at once, and found again when switched back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_llm import (
    BlockManager,
    BlockManagerError,
    BlockPool,
    ConfigError,
    HashList,
    hash_tokens,
)

PAGE = 4


def made(folder: Path, revision: str = "v1", **more: Any) -> BlockManager:
    """Eight small blocks on the device, thirty-two on disk; nothing goes down by itself."""
    disk = {"dir": str(folder / "cache"), "blocks": 32}
    settings = {"device_blocks": 8, "host_blocks": 0, "offload_policy": "manual", **more}
    return BlockManager(2, PAGE, 8, disk=disk, revision=revision, **settings)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[BlockManager]:
    """A manager whose weights are `v1`."""
    with made(tmp_path) as manager:
        yield manager


@pytest.fixture
def hashes() -> HashList:
    """The names of four blocks."""
    return hash_tokens(range(4 * PAGE), PAGE)


def device(manager: BlockManager) -> BlockPool:
    """The device tier."""
    pool = manager.get_device_pool()
    assert pool is not None
    return pool


def store(manager: BlockManager, hashes: HashList, mark: int) -> None:
    """Blocks on disk and nowhere else; block `n` is full of `mark + n`."""
    blocks = manager.allocate_blocks(len(hashes))
    for nth, block in enumerate(blocks):
        np.from_dlpack(block)[:] = mark + nth
    with device(manager).register_blocks(blocks, hashes) as blocks:
        assert manager.offload(blocks, to="disk").result(10) == ["ok"] * len(hashes)
    device(manager).allocate_blocks(8).release()


def marks(manager: BlockManager, hashes: HashList) -> list[int]:
    """What the blocks that arrive are full of."""
    with manager.onboard(hashes) as blocks:
        found = [int(np.unique(np.from_dlpack(block)).item()) for block in blocks]
    device(manager).allocate_blocks(8).release()
    return found


def test_other_weights_find_nothing_and_the_former_find_theirs(
    manager: BlockManager, hashes: HashList
) -> None:
    other = hash_tokens(range(100, 100 + 2 * PAGE), PAGE)
    store(manager, hashes, 1)
    assert manager.set_weights_version("v2") == 0
    with manager.lookup(hashes) as found:
        assert len(found) == 0
    store(manager, hashes, 11)
    store(manager, other, 21)
    assert marks(manager, hashes) == [11, 12, 13, 14]

    assert manager.set_weights_version("v1") == 4
    with manager.lookup(hashes) as found:
        assert found.counts["disk"] == 4
    assert marks(manager, hashes) == [1, 2, 3, 4]
    assert marks(manager, other) == []
    assert manager.set_weights_version("v2") == 6
    assert marks(manager, hashes) == [11, 12, 13, 14]
    assert manager.set_weights_version("v2") == 0
    assert marks(manager, other) == [21, 22]
    assert manager.status()["settings"]["model.revision"] == {"value": "v2", "source": "argument"}


def test_a_version_is_a_revision_to_whoever_comes_later(tmp_path: Path, hashes: HashList) -> None:
    with made(tmp_path) as manager:
        store(manager, hashes, 1)
        manager.set_weights_version("v2")
        store(manager, hashes, 11)
    with made(tmp_path, revision="v2") as manager:
        assert marks(manager, hashes) == [11, 12, 13, 14]
        assert manager.set_weights_version("v1") == 4
        assert marks(manager, hashes) == [1, 2, 3, 4]


def test_what_is_held_stays_readable_and_is_found_by_nobody(
    manager: BlockManager, hashes: HashList
) -> None:
    store(manager, hashes, 1)
    held, waiting = manager.onboard(hashes[:2]), manager.lookup(hashes)
    writable = manager.allocate_blocks(1)
    manager.set_weights_version("v2")
    assert [int(np.from_dlpack(block).max()) for block in held] == [1, 2]
    assert len(manager.onboard(waiting)) == 0
    with pytest.raises(BlockManagerError, match="reset"):
        device(manager).register_blocks(writable, hashes[:1])
    held.release()
    writable.release()
    store(manager, hashes, 11)
    assert marks(manager, hashes) == [11, 12, 13, 14]


@pytest.mark.parametrize("version", ["", "  "])
def test_an_empty_version_is_refused_and_changes_nothing(
    manager: BlockManager, hashes: HashList, version: str
) -> None:
    store(manager, hashes, 1)
    with pytest.raises(ConfigError, match="version"):
        manager.set_weights_version(version)
    with pytest.raises(TypeError, match="version"):
        manager.set_weights_version(2)  # type: ignore[arg-type]
    assert marks(manager, hashes) == [1, 2, 3, 4]


def test_a_closed_manager_refuses(tmp_path: Path) -> None:
    manager = made(tmp_path)
    manager.close()
    with pytest.raises(BlockManagerError, match="closed"):
        manager.set_weights_version("v2")


def test_it_can_be_awaited(manager: BlockManager, hashes: HashList) -> None:
    async def switch() -> list[int]:
        found = [await manager.set_weights_version_async("v2")]
        with pytest.raises(ConfigError, match="version"):
            await manager.set_weights_version_async("")
        return [*found, await manager.set_weights_version_async("v1")]

    store(manager, hashes, 1)
    assert asyncio.run(switch()) == [0, 4]
    assert marks(manager, hashes) == [1, 2, 3, 4]


def test_other_threads_run_and_every_block_is_of_its_version(
    manager: BlockManager, hashes: HashList
) -> None:
    for number in (1, 2):
        manager.set_weights_version(f"v{number}")
        store(manager, hashes, 10 * number)
    done, turns = threading.Event(), 0

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for nth in range(60):
            number = 1 + nth % 2
            assert manager.set_weights_version(f"v{number}") == 4
            assert marks(manager, hashes) == [10 * number + n for n in range(4)]
    finally:
        done.set()
        thread.join()
    assert turns > 0
