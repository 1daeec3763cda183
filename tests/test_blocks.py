"""Blocks, layers and lists as sequences, and blocks that are filled with tokens."""

import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dynamo_llm
from dynamo_llm import (
    ArgumentError,
    Block,
    BlockList,
    BlockManager,
    BlockManagerError,
    BlockPool,
    DType,
    hash_tokens,
)

PAGE = 4


@pytest.fixture(scope="module")
def manager() -> Iterator[BlockManager]:
    """Thirty-two small blocks on the device; each test gives back what it takes."""
    with BlockManager(3, PAGE, 8, device_blocks=32, host_blocks=0) as manager:
        yield manager
        gc.collect()
        assert pool(manager).available_blocks() == 32


def pool(manager: BlockManager) -> BlockPool:
    """Its device tier."""
    device = manager.get_device_pool()
    assert isinstance(device, BlockPool)
    return device


# --- sequences ---


@settings(deadline=None)
@given(n=st.integers(0, 9), cut=st.slices(9), again=st.slices(9), index=st.integers(-12, 12))
def test_a_block_list_is_a_sequence(n: int, cut: slice, again: slice, index: int) -> None:
    with BlockManager(1, PAGE, 8, device_blocks=9, host_blocks=0) as manager:
        blocks = manager.allocate_blocks(n)
        ids = blocks.block_ids
        assert len(blocks) == len(ids) == n
        assert bool(blocks) == (n > 0)
        assert [block.block_id for block in blocks] == ids
        assert [block.block_id for block in blocks.to_list()] == ids
        assert blocks[cut].block_ids == ids[cut]
        assert blocks[cut][again].block_ids == ids[cut][again]
        assert len(blocks[cut]) == len(ids[cut])
        if -n <= index < n:
            assert blocks[index].block_id == ids[index]
        else:
            with pytest.raises(IndexError, match="BlockList index"):
                blocks[index]
        part = set(ids[cut])
        blocks[cut].release()
        assert [bool(block) for block in blocks] == [block_id not in part for block_id in ids]
        assert pool(manager).available_blocks() == 9 - n + len(part)
        blocks.release()
        assert pool(manager).available_blocks() == 9


def test_a_block_is_a_sequence_of_layers(manager: BlockManager) -> None:
    with manager.allocate_blocks(1) as blocks:
        block = blocks[0]
        assert len(block) == 3
        assert block.shape == (3, 2, PAGE, 8)
        assert block.dtype == DType.FP16
        assert block.device_id == 0
        assert [layer.shape for layer in block] == [(2, PAGE, 8)] * 3
        assert [layer.dtype for layer in block.to_list()] == [DType.FP16] * 3
        assert block[-1].device_id == 0
        for index in (3, -4, 2**70):
            with pytest.raises(IndexError, match="Block index"):
                block[index]
        for wrong in (1.5, "a", None):
            with pytest.raises(TypeError, match="Block index"):
                block[wrong]  # type: ignore[index]


def test_validity_is_truth(manager: BlockManager) -> None:
    blocks = manager.allocate_blocks(2)
    block, layer = blocks[0], blocks[0][0]
    assert block
    assert layer
    blocks.release()
    assert not block
    assert not layer
    assert not blocks
    assert len(blocks) == 2
    for use in (
        lambda: block.block_id,
        lambda: blocks.block_ids,
        lambda: block.sequence_hash(),
        lambda: block.__dlpack__(),
        lambda: layer.__dlpack__(),
        lambda: blocks.__dlpack__(),
        lambda: block.init_sequence(),
    ):
        with pytest.raises(BlockManagerError, match="no longer valid"):
            use()
    blocks.release()
    assert "no longer valid" in repr(block)
    assert "no longer valid" in repr(blocks)


def test_a_block_outlives_its_list_object(manager: BlockManager) -> None:
    block = manager.allocate_blocks(3)[1]
    gc.collect()
    assert block
    assert pool(manager).available_blocks() == 32 - 3
    del block
    assert pool(manager).available_blocks() == 32


def test_representations_show_state(manager: BlockManager) -> None:
    blocks = manager.allocate_blocks(1)
    assert "writable" in repr(blocks)
    assert "writable" in repr(blocks[0])
    assert "fp16" in repr(blocks[0][0])
    hashes = hash_tokens(range(PAGE), PAGE)
    blocks = pool(manager).register_blocks(blocks, hashes)
    assert str(hashes[0]) in repr(blocks[0])
    blocks.release()


@pytest.mark.parametrize("name", ["Block", "BlockList", "BlockPool", "Layer", "Match", "Transfer"])
def test_handles_are_made_by_verbs_alone(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(dynamo_llm, name)()


def test_handles_are_not_pickled(manager: BlockManager) -> None:
    with manager.allocate_blocks(1) as blocks:
        for handle in (manager, pool(manager), blocks, blocks[0], blocks[0][0]):
            with pytest.raises(TypeError):
                pickle.dumps(handle)


# --- DType ---


def test_dtypes() -> None:
    names = [name for name in dir(DType) if name.isupper()]
    assert len(names) == 14
    for name in names:
        dtype = getattr(DType, name)
        assert DType(name) == DType(dtype.name) == dtype
        assert hash(DType(name)) == hash(dtype)
        assert repr(dtype) == f"DType.{name}"
        assert pickle.loads(pickle.dumps(dtype)) == dtype  # noqa: S301
        assert dtype.size_bytes in (1, 2, 4, 8)
    assert DType.FP16 != DType.BF16
    assert DType.FP16 != "fp16"
    with pytest.raises(dynamo_llm.ConfigError, match="fp17"):
        DType("fp17")


# --- blocks filled with tokens ---


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5 * PAGE),
    salt=st.sampled_from([None, "tenant"]),
)
def test_filled_blocks_have_the_hashes_of_their_tokens(tokens: list[int], salt: str | None) -> None:
    expected = hash_tokens(tokens, PAGE, salt)
    with BlockManager(1, PAGE, 8, device_blocks=8, host_blocks=0) as manager:
        blocks = manager.allocate_blocks(len(expected))
        for nth, block in enumerate(blocks):
            if nth == 0:
                block.init_sequence(salt)
            else:
                block.continue_sequence(blocks[nth - 1])
            page = tokens[nth * PAGE : (nth + 1) * PAGE]
            block.add_tokens(page[:-1])
            block.add_token(page[-1])
            assert block.tokens == page
            assert block.sequence_hash() is None
            assert block.commit() == expected[nth]
            assert block.is_complete
        blocks = pool(manager).register_blocks(blocks)
        assert [block.sequence_hash() for block in blocks] == list(expected)
        with pool(manager).match_sequence_hashes(expected) as found:
            assert found.block_ids == blocks.block_ids


@settings(deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, 9), max_size=PAGE)),
            st.tuples(st.just("pop"), st.just(None)),
            st.tuples(st.just("pops"), st.integers(0, PAGE + 1)),
        ),
        max_size=12,
    )
)
def test_filling_follows_a_list(steps: list[tuple[str, Any]]) -> None:
    with BlockManager(1, PAGE, 8, device_blocks=1, host_blocks=0) as manager:
        (block,) = manager.allocate_blocks(1)
        block.init_sequence()
        model: list[int] = []
        for step, value in steps:
            if step == "add" and len(model) + len(value) > PAGE:
                with pytest.raises(ArgumentError, match="tokens"):
                    block.add_tokens(value)
            elif step == "add":
                block.add_tokens(value)
                model += value
            elif step == "pop":
                assert block.pop_token() == (model.pop() if model else None)
            else:
                block.pop_tokens(value)
                model = model[: max(0, len(model) - value)]
            assert block.tokens == model
            assert block.remaining == PAGE - len(model)


def test_filling_in_the_wrong_order(manager: BlockManager) -> None:
    with manager.allocate_blocks(2) as blocks:
        first, second = blocks
        assert first.remaining == PAGE
        assert first.tokens == []
        for early in (
            lambda: first.add_token(1),
            lambda: first.pop_token(),
            lambda: first.commit(),
            lambda: second.continue_sequence(first),
        ):
            with pytest.raises(BlockManagerError, match="init_sequence"):
                early()
        first.init_sequence()
        first.add_tokens([1, 2])
        with pytest.raises(BlockManagerError, match="2 more tokens"):
            first.commit()
        with pytest.raises(BlockManagerError, match="2 more tokens"):
            second.continue_sequence(first)
        with pytest.raises(BlockManagerError, match=r"blocks\[0\]"):
            pool(manager).register_blocks(blocks)
        assert blocks
        first.add_tokens([3, 4])
        first.commit()
        for late in (
            lambda: first.add_token(1),
            lambda: first.pop_token(),
            lambda: first.commit(),
            lambda: first.init_sequence(),
        ):
            with pytest.raises(BlockManagerError, match="complete"):
                late()


@pytest.mark.parametrize("token", [-1, 2**32, 2**70])
def test_tokens_that_are_none(manager: BlockManager, token: int) -> None:
    with manager.allocate_blocks(1) as blocks:
        blocks[0].init_sequence()
        with pytest.raises(ArgumentError, match="tokens"):
            blocks[0].add_token(token)
        with pytest.raises(ArgumentError, match="tokens"):
            blocks[0].add_tokens([token])
        with pytest.raises(ArgumentError, match="n = "):
            blocks[0].pop_tokens(-1)
        assert blocks[0].tokens == []


def test_a_block_of_other_tokens_is_not_registered(manager: BlockManager) -> None:
    with manager.allocate_blocks(1) as blocks:
        blocks[0].init_sequence()
        blocks[0].add_tokens(range(PAGE))
        own = blocks[0].commit()
        with pytest.raises(ArgumentError, match=str(own)):
            pool(manager).register_blocks(blocks, [1])
        assert blocks[0].sequence_hash() == own


def test_registered_blocks_are_not_filled(manager: BlockManager) -> None:
    blocks = pool(manager).register_blocks(manager.allocate_blocks(1), [int("77", 16)])
    with blocks, pytest.raises(BlockManagerError, match="registered"):
        blocks[0].init_sequence()


def test_types_of_arguments_are_checked(manager: BlockManager) -> None:
    with manager.allocate_blocks(1) as blocks:
        block: Any = blocks[0]
        wrongs: list[Callable[[], object]] = [
            lambda: block.continue_sequence(7),
            lambda: block.add_token("a"),
            lambda: block.add_tokens("abc"),
            lambda: block.pop_tokens(1.5),
            lambda: block.init_sequence(7),
        ]
        for wrong in wrongs:
            with pytest.raises(TypeError):
                wrong()
        with pytest.raises(AttributeError):
            block.tokens = [1]


def test_names_of_types() -> None:
    assert Block.__module__ == BlockList.__module__ == "dynamo_llm"
