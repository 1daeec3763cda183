"""The package as an import: what it offers, what it costs, what its parts promise together."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dynamo_llm
from dynamo_llm import BlockManager, BlockPool, ConfigError, hash_tokens
from support import ROOT, environment

PAGE = 16


@pytest.fixture
def manager() -> Iterator[BlockManager]:
    """Eight small blocks on the device, thirty-two on the host."""
    with BlockManager(2, PAGE, 64, device_blocks=8, host_blocks=32) as manager:
        yield manager


@pytest.fixture
def device(manager: BlockManager) -> BlockPool:
    """The device tier of `manager`."""
    pool = manager.get_device_pool()
    assert isinstance(pool, BlockPool)
    return pool


# --- the import ---


def test_import_is_light() -> None:
    heavy = ("jax", "matplotlib", "numpy", "rich", "torch", "dynamo_llm.cli")
    script = f"import dynamo_llm, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_public_names_are_there_and_sorted() -> None:
    assert dynamo_llm.__all__ == sorted(dynamo_llm.__all__)
    assert all(hasattr(dynamo_llm, name) for name in dynamo_llm.__all__)


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert dynamo_llm.__version__ == version("dynamo-llm")


def test_errors_are_one_family() -> None:
    assert issubclass(dynamo_llm.ConfigError, dynamo_llm.DynamoError)
    assert issubclass(dynamo_llm.ConfigError, ValueError)
    assert issubclass(dynamo_llm.BlockManagerError, dynamo_llm.DynamoError)
    assert issubclass(dynamo_llm.StorageError, dynamo_llm.DynamoError)


# --- hashes ---


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=70),
    page=st.integers(1, 20),
    cut=st.integers(0, 70),
)
def test_hashes_depend_on_the_prefix_alone(tokens: list[int], page: int, cut: int) -> None:
    whole = hash_tokens(tokens, page)
    assert len(whole) == len(tokens) // page
    assert list(hash_tokens(tokens[:cut], page)) == list(whole)[: min(cut, len(tokens)) // page]
    assert list(hash_tokens(np.array(tokens, dtype=np.uint32), page)) == list(whole)


def test_kvbm_scheme_gives_the_known_values() -> None:
    def values(salt: str | None = None, adapter: str | None = None) -> list[int]:
        hashes = hash_tokens(range(32), 16, salt, adapter=adapter, scheme="kvbm")
        return [int(value) for value in hashes]

    assert values() == [9443242342507244185, 14531308934350064430]
    assert values(adapter="x") == [6745125628378340534, 9287674654373552010]
    assert values(salt="s1") == [17690832973096234328, 3813010993998970242]
    assert values("s1", "x") == [11788865432679589838, 15339496340718934800]


def test_salt_and_adapter_separate() -> None:
    tokens = list(range(16))
    named = [
        hash_tokens(tokens, 16),
        hash_tokens(tokens, 16, "x"),
        hash_tokens(tokens, 16, adapter="x"),
        hash_tokens(tokens, 16, media=[(0, b"x")]),
        hash_tokens(tokens, 16, scheme="xxh3"),
    ]
    assert len({hashes[0] for hashes in named}) == len(named)


def test_a_hash_is_a_number_bytes_and_text() -> None:
    (one,) = hash_tokens(range(16), 16)
    assert bytes(one) == int(one).to_bytes(16, "little")
    assert str(one) == f"{int(one):032x}"
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert {one: "found"}[dynamo_llm.SequenceHash(int(one))] == "found"


@pytest.mark.parametrize("tokens", [[-1], [2**32], ["a"], [1.5], 7, None])
def test_tokens_that_are_none(tokens: object) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        hash_tokens(tokens, 1)  # type: ignore[arg-type]


def test_page_size_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size"):
        hash_tokens([1], 0)


# --- blocks ---


def test_blocks_are_arrays(manager: BlockManager) -> None:
    with manager.allocate_blocks(2) as blocks:
        array = np.from_dlpack(blocks[0])
        assert array.shape == blocks[0].shape == (2, 2, PAGE, 64)
        assert array.dtype == np.float16
        assert not array.any()
        array[:] = 3
        assert (np.from_dlpack(blocks[0]) == 3).all()
        assert not np.from_dlpack(blocks[1]).any()


def test_registered_blocks_are_read_only(manager: BlockManager, device: BlockPool) -> None:
    hashes = hash_tokens(range(PAGE), PAGE)
    blocks = device.register_blocks(manager.allocate_blocks(1), hashes)
    assert blocks[0].sequence_hash() == hashes[0]
    array = np.from_dlpack(blocks[0])
    assert not array.flags.writeable
    with pytest.raises(BufferError):
        blocks[0].__dlpack__()


def test_an_export_keeps_its_slot(manager: BlockManager, device: BlockPool) -> None:
    blocks = manager.allocate_blocks(1)
    array = np.from_dlpack(blocks[0])
    blocks.release()
    assert device.available_blocks() == 7
    array[:] = 1
    del array
    assert device.available_blocks() == 8


def test_allocation_is_all_or_nothing(manager: BlockManager, device: BlockPool) -> None:
    with manager.allocate_blocks(6) as held:
        assert len(set(held.block_ids)) == 6
        with pytest.raises(dynamo_llm.BlockManagerError, match=r"3.*2"):
            manager.allocate_blocks(3)
        assert device.available_blocks() == 2
        assert device.usage() == pytest.approx(6 / 8)
    assert device.available_blocks() == device.total_blocks() == 8


def test_match_is_the_longest_prefix(manager: BlockManager, device: BlockPool) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    device.register_blocks(manager.allocate_blocks(2), hashes[:2]).release()
    for asked in (hashes, list(hashes), [bytes(h) for h in hashes], [int(h) for h in hashes]):
        with device.match_sequence_hashes(asked) as found:
            assert len(found) == 2
    with device.match_sequence_hashes(hashes[1:]) as found:
        assert len(found) == 1
    with device.match_sequence_hashes(hashes[2:]) as found:
        assert len(found) == 0


def test_host_brings_back_what_the_device_lost(manager: BlockManager, device: BlockPool) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    blocks = manager.allocate_blocks(4)
    for number, block in enumerate(blocks, start=1):
        np.from_dlpack(block)[:] = number
    blocks = device.register_blocks(blocks, hashes)
    assert manager.offload(blocks, to="host").result(timeout=10) == ["ok"] * 4
    blocks.release()
    with manager.allocate_blocks(8) as others:
        for block in others:
            np.from_dlpack(block)[:] = 99

    found = manager.lookup(hashes)
    assert len(found) == 4
    assert found.counts["host"] == 4
    with manager.onboard(found) as back:
        values = [np.unique(np.from_dlpack(block)).tolist() for block in back]
        assert values == [[1.0], [2.0], [3.0], [4.0]]


def test_reset_forgets_everything(manager: BlockManager, device: BlockPool) -> None:
    hashes = hash_tokens(range(2 * PAGE), PAGE)
    device.register_blocks(manager.allocate_blocks(2), hashes).release()
    manager.reset()
    with manager.lookup(hashes) as found:
        assert len(found) == 0


def test_closed_manager_refuses(manager: BlockManager) -> None:
    manager.close()
    manager.close()
    with pytest.raises(dynamo_llm.BlockManagerError):
        manager.allocate_blocks(1)


@pytest.mark.parametrize(
    "field", ["num_layers", "page_size", "inner_dim", "outer_dim", "device_blocks"]
)
@pytest.mark.parametrize("value", [0, 2**63 - 1])
def test_impossible_dimensions_name_the_field(field: str, value: int) -> None:
    if (field, value) == ("device_blocks", 0):
        pytest.skip("a tier of 0 blocks is off, which is possible")
    fields: dict[str, Any] = {"num_layers": 2, "page_size": 16, "inner_dim": 64, field: value}
    with pytest.raises(dynamo_llm.DynamoError, match=field) as caught:
        BlockManager(**fields)
    assert isinstance(caught.value, ConfigError | dynamo_llm.StorageError)


def test_unknown_eviction_is_named() -> None:
    with pytest.raises(ConfigError, match=r"eviction.*random"):
        BlockManager(2, 16, 64, eviction="random")  # type: ignore[arg-type]


def test_two_managers_are_strangers(manager: BlockManager, device: BlockPool) -> None:
    hashes = hash_tokens(range(PAGE), PAGE)
    device.register_blocks(manager.allocate_blocks(1), hashes).release()
    with BlockManager(2, PAGE, 64, device_blocks=8, host_blocks=0) as other:
        assert other.get_host_pool() is None
        assert len(other.lookup(hashes)) == 0


def test_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "basic.py")],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("every byte is back\n")


def test_forked_child_refuses(manager: BlockManager) -> None:
    child = os.fork()
    if child == 0:  # nothing of pytest may run in here
        try:
            manager.allocate_blocks(1)
            status = 1
        except dynamo_llm.BlockManagerError:
            status = 0
        except BaseException:
            status = 2
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    manager.allocate_blocks(1).release()
