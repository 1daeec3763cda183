"""The pool from Python: allocate, register, match, release, in every order and from every side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dynamo_llm import (
    ArgumentError,
    BlockList,
    BlockManager,
    BlockManagerError,
    BlockPool,
    HashList,
    NotEnoughBlocksError,
    hash_tokens,
)

PAGE = 4
BLOCKS = 8


def make(**more: Any) -> BlockManager:
    """A manager of eight small blocks on the device and none on the host."""
    return BlockManager(1, PAGE, 8, device_blocks=BLOCKS, host_blocks=0, **more)


def pool(manager: BlockManager) -> BlockPool:
    """Its device tier."""
    device = manager.get_device_pool()
    assert isinstance(device, BlockPool)
    return device


def states(manager: BlockManager) -> dict[str, int]:
    """Slots by state."""
    tier = manager.status()["tiers"]["device"]
    names = ("free", "mutable", "active", "inactive", "quarantined")
    return {name: tier[name] for name in names}


@pytest.fixture
def manager() -> Iterator[BlockManager]:
    """See `make`."""
    with make() as manager:
        yield manager


@pytest.fixture
def device(manager: BlockManager) -> BlockPool:
    """The device tier of `manager`."""
    return pool(manager)


@pytest.mark.parametrize("n", [-1, 2**64, 2**70, -(2**70)])
def test_impossible_numbers_of_blocks(device: BlockPool, n: int) -> None:
    with pytest.raises(ArgumentError, match=f"n = {n}"):
        device.allocate_blocks(n)


@pytest.mark.parametrize("n", [9, 2**32, 2**50, 2**63])
def test_more_blocks_than_there_are(device: BlockPool, n: int) -> None:
    with pytest.raises(NotEnoughBlocksError, match=f"{n} .*8 available"):
        device.allocate_blocks(n)
    assert device.available_blocks() == 8


@pytest.mark.parametrize("n", [1.0, "1", None, [1]])
def test_numbers_of_blocks_that_are_none(device: BlockPool, n: Any) -> None:
    with pytest.raises(TypeError, match="n = "):
        device.allocate_blocks(n)


def test_registered_blocks_stay_until_room_is_needed(device: BlockPool) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    device.register_blocks(device.allocate_blocks(4), hashes).release()
    assert (device.available_blocks(), device.usage()) == (8, 0.0)
    device.allocate_blocks(6).release()
    # A chain loses its end before its beginning.
    assert len(device.match_sequence_hashes(hashes)) == 2


def test_a_match_holds_what_it_returns(device: BlockPool) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    device.register_blocks(device.allocate_blocks(4), hashes).release()
    with device.match_sequence_hashes(hashes) as found:
        assert [block.sequence_hash() for block in found] == list(hashes)
        with pytest.raises(NotEnoughBlocksError):
            device.allocate_blocks(5)
    device.allocate_blocks(8).release()


def test_a_part_may_be_registered_and_the_rest_later(device: BlockPool) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    blocks = device.allocate_blocks(4)
    for nth, block in enumerate(blocks):
        np.from_dlpack(block)[:] = nth
    last = device.register_blocks(blocks[2:], hashes[2:])
    assert [bool(block) for block in blocks] == [True, True, False, False]
    first = device.register_blocks(blocks[:2], hashes[:2])
    assert not blocks
    with device.match_sequence_hashes(hashes) as found:
        assert found.block_ids == first.block_ids + last.block_ids
        assert [np.from_dlpack(block).max() for block in found] == [0, 1, 2, 3]


def test_blocks_of_several_lists_are_registered_together(device: BlockPool) -> None:
    one, two = device.allocate_blocks(2), device.allocate_blocks(2)
    ids = [two[1].block_id, one[0].block_id]
    shared = device.register_blocks([two[1], one[0]], [1, 2])
    assert shared.block_ids == ids
    assert [bool(block) for block in (*one, *two)] == [False, True, True, False]


def test_equal_blocks_may_coexist(device: BlockPool) -> None:
    one = device.register_blocks(device.allocate_blocks(1), [7])
    two = device.register_blocks(device.allocate_blocks(1), [7])
    assert one.block_ids != two.block_ids
    one.release()
    with device.match_sequence_hashes([7]) as found:
        assert found[0].sequence_hash() == two[0].sequence_hash()


def refused(manager: BlockManager) -> dict[str, Any]:
    """Registrations that must change nothing, by what is wrong with them."""
    device, other = pool(manager), make()
    mine, late, gone = (device.allocate_blocks(1) for _ in range(3))
    foreign = other.allocate_blocks(1)
    gone.release()
    shared = device.register_blocks(device.allocate_blocks(1), [1])
    return {
        "numbers": lambda: device.register_blocks(mine, [1, 2]),
        "no hashes": lambda: device.register_blocks(mine),
        "foreign": lambda: device.register_blocks([mine[0], foreign[0]], [1, 2]),
        "gone": lambda: device.register_blocks([mine[0], gone[0]], [1, 2]),
        "twice": lambda: device.register_blocks([mine[0], mine[0]], [1, 2]),
        "shared": lambda: device.register_blocks([mine[0], shared[0]], [1, 2]),
        "short": lambda: device.register_blocks(mine, [b"short"]),
        "negative": lambda: device.register_blocks(mine, [-1]),
        "late": lambda: device.register_blocks([mine[0], late[0]], [1]),
        "object": lambda: device.register_blocks([mine[0], 7], [1, 2]),  # type: ignore[list-item]
        "list": lambda: device.register_blocks(7, [1]),  # type: ignore[arg-type]
        "block": lambda: device.register_blocks(mine[0], [1]),  # type: ignore[arg-type]
        "keep": (mine, late, foreign),
    }


def test_a_refused_registration_changes_nothing(manager: BlockManager) -> None:
    cases = refused(manager)
    keep = cases.pop("keep")
    before = states(manager)
    for what, case in cases.items():
        with pytest.raises((ArgumentError, BlockManagerError, TypeError), match=r"block|hashes"):
            case()
        assert states(manager) == before, what
        assert all(keep), what
    pool(manager).register_blocks(keep[0], [9])


def test_nothing_can_be_allocated_registered_matched(device: BlockPool) -> None:
    assert len(device.allocate_blocks(0)) == 0
    nothings: list[Any] = [device.allocate_blocks(0), device.allocate_blocks(2)[:0], []]
    for nothing in nothings:
        assert len(device.register_blocks(nothing, [])) == 0
        assert len(device.register_blocks(nothing)) == 0
    assert len(device.match_sequence_hashes([])) == 0
    assert len(device.match_sequence_hashes(HashList())) == 0


def test_reset_serves_holders_and_nobody_else(manager: BlockManager, device: BlockPool) -> None:
    shared = device.register_blocks(device.allocate_blocks(1), [1])
    writable = device.allocate_blocks(1)
    np.from_dlpack(writable[0])[:] = 5
    manager.reset()
    assert len(device.match_sequence_hashes([1])) == 0
    assert np.from_dlpack(shared[0]).shape == shared[0].shape
    with pytest.raises(BlockManagerError, match="reset"):
        device.register_blocks(writable, [2])
    assert (np.from_dlpack(writable[0]) == 5).all()
    shared.release()
    writable.release()
    assert states(manager)["free"] == 8


def test_reused_slots_are_wiped_on_request() -> None:
    for wipe in (False, True):
        with make(zero_on_allocate=wipe) as manager:
            for _ in range(2):
                with manager.allocate_blocks(8) as blocks:
                    values = np.from_dlpack(blocks)
                    assert not wipe or not values.any()
                    values[:] = 1
                    del values


@pytest.mark.parametrize("eviction", ["lru", "fifo", "arc", "s3fifo"])
def test_every_policy_serves(eviction: Any) -> None:
    with make(eviction=eviction) as manager:
        device = pool(manager)
        for turn in range(5):
            hashes = hash_tokens(range(turn, turn + 5 * PAGE), PAGE)
            device.register_blocks(device.allocate_blocks(5), hashes).release()
            assert len(device.match_sequence_hashes(hashes)) == 5


@settings(deadline=None)
@given(n=st.integers(1, 6), order=st.randoms(use_true_random=False), register=st.booleans())
def test_blocks_come_back_in_any_order(n: int, order: Any, register: bool) -> None:
    with make() as manager:
        device = pool(manager)
        blocks = device.allocate_blocks(n)
        if register:
            blocks = device.register_blocks(blocks, hash_tokens(range(n), 1))
        parts = [blocks[nth : nth + 1] for nth in range(n)]
        order.shuffle(parts)
        for left, part in zip(range(n - 1, -1, -1), parts, strict=True):
            part.release()
            part.release()
            assert device.available_blocks() == BLOCKS - left
        blocks.release()
        assert device.available_blocks() == BLOCKS


class Pool(RuleBasedStateMachine):
    """Any sequence of verbs, against the sum of the slots and a model of the bytes."""

    lists: Bundle[BlockList] = Bundle("lists")
    arrays: Bundle[Any] = Bundle("arrays")

    def __init__(self) -> None:
        super().__init__()
        self.manager = make()
        self.device = pool(self.manager)
        self.marks: dict[int, int] = {}

    @rule(target=lists, n=st.integers(0, 4))
    def allocate(self, n: int) -> BlockList:
        """Take blocks to write; too many give none."""
        try:
            return self.device.allocate_blocks(n)
        except NotEnoughBlocksError:
            assert n > self.device.available_blocks()
            return self.device.allocate_blocks(0)

    @rule(target=lists, blocks=lists, hashes=st.lists(st.integers(1, 9), max_size=4, unique=True))
    def register(self, blocks: BlockList, hashes: list[int]) -> BlockList:
        """Fill and publish blocks, if they can be."""
        for block, mark in zip(blocks, hashes, strict=False):
            if block and block.sequence_hash() is None:
                array = np.from_dlpack(block)
                array[:] = mark
                del array
        try:
            return self.device.register_blocks(blocks, hashes)
        except (ArgumentError, BlockManagerError):
            return self.device.allocate_blocks(0)

    @rule(target=lists, hashes=st.lists(st.integers(1, 9), max_size=4))
    def match(self, hashes: list[int]) -> BlockList:
        """Find blocks, full of what their hash says."""
        found = self.device.match_sequence_hashes(hashes)
        for block, mark in zip(found, hashes, strict=False):
            assert (np.from_dlpack(block) == mark).all()
        return found

    @rule(target=lists, blocks=lists, cut=st.slices(4))
    def cut(self, blocks: BlockList, cut: slice) -> BlockList:
        """A part of a list."""
        return blocks[cut]

    @rule(target=arrays, blocks=lists, data=st.data())
    def export(self, blocks: BlockList, data: Any) -> Any:
        """An array of one block of a list."""
        if not blocks or not all(blocks):
            return None
        return np.from_dlpack(blocks[data.draw(st.integers(0, len(blocks) - 1))])

    @rule(blocks=lists)
    def release(self, blocks: BlockList) -> None:
        """Give a list back."""
        blocks.release()
        assert not blocks

    @rule(blocks=consumes(lists))
    def forget(self, blocks: BlockList) -> None:
        """Drop a list, perhaps the last of its batch."""
        del blocks

    @rule(array=consumes(arrays))
    def drop(self, array: Any) -> None:
        """Drop an array."""
        del array

    @rule()
    def reset(self) -> None:
        """Forget all blocks."""
        self.manager.reset()

    @invariant()
    def every_slot_is_in_one_place(self) -> None:
        """Free, mutable, active, inactive, quarantined: all slots there are."""
        assert sum(states(self.manager).values()) == BLOCKS

    def teardown(self) -> None:
        """End."""
        self.manager.close()


TestPool = Pool.TestCase
TestPool.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
