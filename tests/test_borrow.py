"""The device tier in tensors that somebody else allocated: an engine's own cache."""

import gc
import importlib.util
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_llm import (
    BlockList,
    BlockManager,
    BlockPool,
    ConfigError,
    DType,
    StorageError,
    hash_tokens,
)
from support import environment

LAYERS, BLOCKS, PAGE, HEADS, SIZE = 2, 6, 4, 2, 8
SHAPE: dict[str, Any] = {"num_layers": LAYERS, "page_size": PAGE, "inner_dim": HEADS * SIZE}

Array = npt.NDArray[Any]


def numbered(*shape: int) -> Array:
    """An array in which every element is another."""
    return np.arange(np.prod(shape), dtype=np.float16).reshape(shape)


def pool(manager: BlockManager) -> BlockPool:
    device = manager.get_device_pool()
    assert device is not None
    return device


# Each makes the tensors, says what their dimensions are, and views one block of them as
# (layer, outer, token, head, element).


def token_major() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    whole = numbered(LAYERS, 2, BLOCKS, PAGE, HEADS, SIZE)
    axes = ("layer", "outer", "block", "token", "head", "element")
    return whole, {"axes": axes}, lambda block: whole[:, :, block]


def head_major() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    stored = [numbered(2, BLOCKS, HEADS, PAGE, SIZE) + layer for layer in range(LAYERS)]
    views = [layer.transpose(0, 1, 3, 2, 4) for layer in stored]
    axes = ("outer", "block", "token", "head", "element")
    return views, {"axes": axes}, lambda block: np.stack([view[:, block] for view in views])


def heads_by_memory_order() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    tensors, _, look = head_major()
    return tensors, {"memory_order": ("outer", "block", "head", "token", "element")}, look


def pairs() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    keys = [numbered(BLOCKS, PAGE, HEADS, SIZE) + layer for layer in range(LAYERS)]
    values = [key + 100 for key in keys]
    axes = ("block", "token", "head", "element")
    return (
        list(zip(keys, values, strict=True)),
        {"axes": axes},
        lambda block: np.stack(
            [np.stack([k[block], v[block]]) for k, v in zip(keys, values, strict=True)]
        ),
    )


def interleaved() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    """Layers as views of one buffer, a layer's blocks between another's."""
    whole = numbered(BLOCKS, LAYERS, 2, PAGE, HEADS, SIZE)
    tensors = [whole[:, layer] for layer in range(LAYERS)]
    return tensors, {"axes": ("block", "outer", "token", "head", "element")}, lambda b: whole[b]


def by_sizes_alone() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    whole = numbered(BLOCKS, LAYERS, 2, PAGE, HEADS * SIZE)
    tensors = [whole[:, layer] for layer in range(LAYERS)]
    return tensors, {}, lambda b: whole[b].reshape(LAYERS, 2, PAGE, HEADS, SIZE)


def opaque() -> tuple[Any, dict[str, Any], Callable[[int], Array]]:
    """Bytes whose inside is the engine's business."""
    stored = [numbered(BLOCKS, 2, PAGE, HEADS, SIZE) + layer for layer in range(LAYERS)]
    raw = [layer.reshape(BLOCKS, 2, -1).view(np.uint8) for layer in stored]
    return raw, {"axes": ("block", "outer", "element")}, lambda b: np.stack([s[b] for s in stored])


MAKERS = [
    token_major,
    head_major,
    heads_by_memory_order,
    pairs,
    interleaved,
    by_sizes_alone,
    opaque,
]


@pytest.mark.parametrize("make", MAKERS)
def test_blocks_come_back_element_for_element(make: Any) -> None:
    tensors, stated, look = make()
    before = [look(block).copy() for block in range(BLOCKS)]
    with BlockManager(**SHAPE, host_blocks=16, device_tensors=tensors, **stated) as manager:
        assert pool(manager).total_blocks() == BLOCKS
        assert manager.status()["tiers"]["device"]["bytes"] >= before[0].nbytes * BLOCKS
        hashes = hash_tokens(range(4 * PAGE), PAGE)
        blocks = pool(manager).register_blocks(manager.allocate_blocks(4), hashes)
        written = [look(slot).copy() for slot in blocks.block_ids]
        assert all(
            (old == before[slot]).all() for old, slot in zip(written, blocks.block_ids, strict=True)
        )
        assert manager.offload(blocks).result(10) == ["ok"] * 4
        blocks.release()
        # Others take the slots, and the engine writes into them.
        with manager.allocate_blocks(BLOCKS) as others:
            for slot in others.block_ids:
                for tensor in np_of(tensors):
                    tensor[...] = 0
                assert not look(slot).any()
        with manager.onboard(hashes) as back:
            assert len(back) == 4
            for slot, bytes_ in zip(back.block_ids, written, strict=True):
                assert (look(slot) == bytes_).all()


def np_of(tensors: Any) -> list[Array]:
    """The arrays among tensors, whatever they are grouped in."""
    if isinstance(tensors, np.ndarray):
        return [tensors]
    return [array for item in tensors for array in np_of(item)]


@settings(deadline=None, max_examples=60)
@given(
    order=st.permutations(["layer", "block", "outer", "token", "head", "element"]),
    gap=st.integers(0, 2),
    heads=st.integers(1, 3),
)
def test_any_order_of_axes_in_memory(order: list[str], gap: int, heads: int) -> None:
    sizes = {"layer": 2, "block": 3, "outer": 2, "token": 4, "head": heads, "element": 5}
    stored = np.zeros([sizes[a] + (gap if a == order[0] else 0) for a in order], np.float32)
    view = stored[: sizes[order[0]]]
    axes: Any = tuple(order)
    with BlockManager(
        2, 4, heads * 5, "fp32", host_blocks=3, device_tensors=view, axes=axes
    ) as manager:
        at = order.index("block")
        filled = np.random.default_rng(0).random(view.shape, np.float32)
        view[...] = filled
        blocks = pool(manager).register_blocks(manager.allocate_blocks(3), [1, 2, 3])
        assert manager.offload(blocks).result(10) == ["ok"] * 3
        slots = blocks.block_ids
        blocks.release()
        manager.allocate_blocks(3).release()
        view[...] = 0
        with manager.onboard([1, 2, 3]) as back:
            for old, new in zip(slots, back.block_ids, strict=True):
                assert (view.take(new, at) == filled.take(old, at)).all()
        assert not stored[sizes[order[0]] :].any()


def test_a_tensor_of_tokens_in_turn_is_exported_too() -> None:
    whole = numbered(BLOCKS, LAYERS, 2, PAGE, HEADS * SIZE)
    axes: Any = ("block", "layer", "outer", "token", "element")
    with BlockManager(**SHAPE, host_blocks=0, device_tensors=whole, axes=axes) as manager:
        blocks = manager.allocate_blocks(2)
        for block in blocks:
            array = np.from_dlpack(block)
            assert np.shares_memory(array, whole)
            assert (array == whole[block.block_id]).all()
            array[:] = 7
            assert (whole[block.block_id] == 7).all()


def test_what_is_packed_otherwise_is_not_shown_as_if_it_were_not() -> None:
    tensors, stated, _ = head_major()
    with BlockManager(**SHAPE, host_blocks=16, device_tensors=tensors, **stated) as manager:
        blocks = pool(manager).register_blocks(manager.allocate_blocks(1), [1])
        for shown in (blocks[0], blocks[0][0], blocks[0].view_uint8()):
            with pytest.raises(BufferError, match=r"head:2,token:4,element:8.*block_id"):
                np.from_dlpack(shown)
            with pytest.raises(BufferError, match="head:2"):
                shown.__dlpack__(copy=True)
        assert manager.offload(blocks).result(10) == ["ok"]
        host = manager.get_host_pool()
        assert host is not None
        with (
            host.match_sequence_hashes([1]) as below,
            pytest.raises(BufferError, match="head:2,token:4,element:8"),
        ):
            np.from_dlpack(below[0])


def comes_back(tensor: Array, model: dict[str, Any], **stated: Any) -> str:
    """Round trip of three blocks in (outer, block, ...); returns how the tier is packed."""
    with BlockManager(**model, host_blocks=3, device_tensors=tensor, **stated) as manager:
        before = tensor.copy()
        blocks = pool(manager).register_blocks(manager.allocate_blocks(3), [1, 2, 3])
        slots = blocks.block_ids
        assert manager.offload(blocks).result(10) == ["ok"] * 3
        blocks.release()
        manager.allocate_blocks(3).release()
        tensor[...] = 0
        with manager.onboard([1, 2, 3]) as back:
            for old, new in zip(slots, back.block_ids, strict=True):
                assert (tensor[:, new] == before[:, old]).all()
        tensor[...] = before
        layout: str = manager.status()["tiers"]["device"]["layout"]
        return layout.partition("packed ")[2]


@pytest.mark.parametrize("heads", [2, 16])
def test_heads_and_tokens_are_told_apart_by_what_is_stated_alone(heads: int) -> None:
    """Shapes are the same for both packings, and with as many heads as tokens all sizes are."""
    page, size = 16, 32
    model: dict[str, Any] = {"num_layers": 1, "page_size": page, "inner_dim": heads * size}
    tokens_first = ("outer", "block", "token", "head", "element")
    heads_first = ("outer", "block", "head", "token", "element")
    stored = numbered(2, 3, heads, page, size)
    view = stored.transpose(0, 1, 3, 2, 4)
    with pytest.raises(ConfigError, match="axes"):
        BlockManager(**model, host_blocks=0, device_tensors=view)
    outside = f"head:{heads},token:{page},element:{size}"
    assert comes_back(view, model, axes=tokens_first) == outside
    assert comes_back(stored, model, axes=heads_first) == outside
    assert comes_back(view, model, memory_order=heads_first) == outside
    inside = f"token:{page},head:{heads},element:{size}"
    assert comes_back(np.ascontiguousarray(view), model, axes=tokens_first) == inside


def flat(*shape: int, dtype: Any = np.float16) -> Array:
    return np.zeros(shape, dtype)


READ_ONLY = flat(BLOCKS, LAYERS, 2, PAGE, 16)
READ_ONLY.flags.writeable = False
FULL: Any = ("block", "layer", "outer", "token", "element")


@pytest.mark.parametrize(
    ("tensors", "more", "words"),
    [
        # As many blocks as tokens, or heads as tokens: two readings.
        ([flat(PAGE, 2, PAGE, 16)] * 2, {}, "axes"),
        (flat(PAGE, LAYERS, 2, PAGE, 16), {}, r"reads as .* and as .* state `axes`"),
        (
            [flat(BLOCKS, 2, PAGE, PAGE, PAGE), flat(BLOCKS, 2, PAGE, PAGE, PAGE)],
            {},
            r"agrees with what is stated.*axes=",
        ),
        (READ_ONLY, {"axes": FULL}, "device_tensors: read-only.*writable"),
        (flat(BLOCKS, 3, 2, PAGE, 16), {"axes": FULL}, "3 are described.*2 of num_layers"),
        (flat(BLOCKS, 2, 1, PAGE, 16), {"axes": FULL}, "outer_dim"),
        (flat(BLOCKS, 2, 2, 8, 16), {"axes": FULL}, "page_size"),
        (flat(BLOCKS, 2, 2, PAGE, 8), {"axes": FULL}, "bytes of a layer"),
        (flat(BLOCKS, 2, 2, PAGE, 16), {"axes": FULL, "device_blocks": 5}, "device_blocks = 5.* 6"),
        (flat(0, 2, 2, PAGE, 16), {"axes": FULL}, "device_tensors: without elements"),
        (flat(BLOCKS, 2, 2, PAGE, 16, dtype=np.float32), {"axes": FULL}, "elements of type code"),
        (flat(BLOCKS, 2, 2, PAGE, 16)[::-1], {"axes": FULL}, "stride -256 .* forward"),
        (
            np.lib.stride_tricks.as_strided(flat(9), (BLOCKS, 2, 2, PAGE, 16), (0, 0, 0, 0, 2)),
            {"axes": FULL},
            "stride 0 in dimension 0",
        ),
        ([flat(BLOCKS, 2, PAGE, 16)], {"axes": FULL[:1] + FULL[2:]}, "num_layers"),
        ([flat(BLOCKS, 2, PAGE, 16)] * 2, {"axes": FULL}, "axes: 5 for a tensor of 4"),
        ([flat(BLOCKS, 2, PAGE, 16)] * 2, {"axes": ("block", "outer", "token", "elem")}, "'?elem"),
        ([flat(BLOCKS, 2, PAGE, 16)] * 2, {"axes": ("block",) * 4}, "twice"),
        (
            [flat(BLOCKS, 2, PAGE, 16)] * 2,
            {"axes": ("layer", "outer", "token", "element")},
            "block",
        ),
        (
            [flat(BLOCKS, 2, PAGE, 16)] * 2,
            {"axes": ("block", "outer", "token", "element")},
            "overlap",
        ),
        (
            [flat(BLOCKS, 2, PAGE, 16), flat(BLOCKS, 2, PAGE, 16).transpose(0, 1, 3, 2)],
            {"axes": ("block", "outer", "token", "element")},
            "layer 1 has shape",
        ),
        ([(flat(BLOCKS, PAGE, 16),) * 3] * 2, {}, "3 tensors; give K and V"),
        ([], {}, "device_tensors: none"),
        (None, {"axes": FULL}, "axes = .*device_tensors"),
    ],
)
def test_tensors_that_are_not_taken(tensors: Any, more: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BlockManager(**SHAPE, host_blocks=0, device_tensors=tensors, **more)


@pytest.mark.parametrize(
    "arguments",
    [
        {"device_tensors": 7},
        {"device_tensors": "tensors"},
        {"device_tensors": {"layer.0": flat(BLOCKS, 2, PAGE, 16)}},
        {"device_tensors": [7]},
        {"device_tensors": [None, None]},
        {"device_tensors": flat(1), "axes": "block"},
        {"device_tensors": flat(1), "axes": 7},
        {"device_tensors": flat(1), "axes": [7]},
        {"device_tensors": flat(1), "memory_order": "block"},
    ],
)
def test_what_is_no_tensor_or_axis_is_a_type_error(arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"device_tensors|axes|memory_order"):
        BlockManager(**SHAPE, host_blocks=0, **arguments)


def test_one_tensor_serves_one_manager() -> None:
    whole = flat(BLOCKS, LAYERS, 2, PAGE, 16)
    with BlockManager(**SHAPE, host_blocks=0, device_tensors=whole, axes=FULL) as manager:
        with pytest.raises(StorageError, match="other blocks lie in it"):
            BlockManager(**SHAPE, host_blocks=0, device_tensors=whole[2:], axes=FULL)
        assert len(manager.allocate_blocks(BLOCKS)) == BLOCKS
    del manager
    gc.collect()
    BlockManager(**SHAPE, host_blocks=0, device_tensors=whole, axes=FULL).close()


@pytest.mark.parametrize(
    ("dtype", "held"),
    [("bf16", np.uint16), ("bf16", np.int16), ("fp8_e4m3", np.uint8), ("fp16", np.float16)],
)
def test_types_that_a_library_does_not_know_come_as_integers(dtype: Any, held: Any) -> None:
    whole = flat(BLOCKS, LAYERS, 2, PAGE, 16, dtype=held)
    with BlockManager(
        **SHAPE, dtype=dtype, host_blocks=0, device_tensors=whole, axes=FULL
    ) as manager:
        block = manager.allocate_blocks(1)[0]
        assert block.dtype == DType(dtype)
        np.from_dlpack(block.view_uint8())[:] = 0xFF
        assert (whole[block.block_id].view(np.uint8) == 0xFF).all()


def test_files_and_the_environment_have_tensors_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = {"num_layers": LAYERS, "page_size": PAGE, "inner_dim": 16}
    whole = flat(BLOCKS, LAYERS, 2, PAGE, 16)
    config = {"model": model, "host": {"blocks": 0}}
    with BlockManager.from_config(config, device_tensors=whole, axes=FULL) as manager:
        assert pool(manager).total_blocks() == BLOCKS
    del manager
    for name, value in model.items():
        monkeypatch.setenv(f"DYNAMO_LLM_MODEL_{name.upper()}", str(value))
    monkeypatch.setenv("DYNAMO_LLM_HOST_BLOCKS", "0")
    with BlockManager.from_env(device_tensors=whole, axes=FULL) as manager:
        assert pool(manager).total_blocks() == BLOCKS


# --- who keeps what, and where it is given back ---


class Cache(np.ndarray[Any, Any]):
    """An array whose end can be watched: on which thread, and when."""

    ends: "list[int]"

    def __array_finalize__(self, _: object) -> None:
        self.ends = []


def lent() -> tuple[Any, "weakref.ref[Cache]", list[int]]:
    cache = np.zeros((BLOCKS, LAYERS, 2, PAGE, 16), np.float16).view(Cache)
    ends: list[int] = []
    weakref.finalize(cache, lambda: ends.append(threading.get_ident()))
    return cache, weakref.ref(cache), ends


def borrower(cache: Any, **more: Any) -> BlockManager:
    return BlockManager(**SHAPE, host_blocks=16, device_tensors=cache, axes=FULL, **more)


def call() -> None:
    """Any call into the library: it gives back what was let go by then."""
    BlockManager(1, 1, 1, device_blocks=1, host_blocks=0).close()


def test_tensors_are_kept_as_long_as_anything_needs_them() -> None:
    cache, alive, ends = lent()
    manager = borrower(cache)
    del cache
    gc.collect()
    blocks = manager.allocate_blocks(2)
    array = np.from_dlpack(blocks[1])
    del manager
    gc.collect()
    assert alive() is not None
    blocks.release()
    del blocks
    gc.collect()
    array[:] = 3
    assert alive() is not None
    del array
    call()
    assert alive() is None
    assert ends == [threading.get_ident()]


def test_dropping_the_last_owner_gives_them_back_at_once() -> None:
    cache, alive, ends = lent()
    manager = borrower(cache)
    manager.close()
    del cache
    assert alive() is not None
    del manager
    assert alive() is None
    assert len(ends) == 1


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_any_order_of_dropping(order: tuple[int, int, int]) -> None:
    cache, alive, _ = lent()
    manager = borrower(cache)
    del cache
    blocks: BlockList | None = pool(manager).register_blocks(manager.allocate_blocks(2), [1, 2])
    assert blocks is not None
    held: list[Any] = [manager, np.from_dlpack(blocks[0]), blocks]
    del manager, blocks
    for nth, index in enumerate(order):
        held[index] = None
        call()
        assert (alive() is None) == (nth == 2)


def test_a_refused_manager_gives_them_back() -> None:
    cache, alive, _ = lent()
    with pytest.raises(ConfigError, match="num_layers"):
        BlockManager(3, PAGE, 16, host_blocks=0, device_tensors=cache, axes=FULL)
    del cache
    gc.collect()
    assert alive() is None


def test_a_manager_in_a_cycle_is_collected() -> None:
    cache, alive, _ = lent()
    cycle: list[Any] = [borrower(cache)]
    cycle.append(cycle)
    del cache, cycle
    assert alive() is not None
    gc.collect()
    assert alive() is None


def test_the_end_may_come_on_another_thread() -> None:
    cache, alive, ends = lent()
    held = [borrower(cache)]
    del cache
    blocks = held[0].allocate_blocks(1)
    held.clear()
    thread = threading.Thread(target=blocks.release)
    thread.start()
    thread.join()
    del blocks
    call()
    assert alive() is None
    assert ends == [threading.get_ident()]


def test_a_copy_that_outlives_its_manager_lets_go_on_a_python_thread() -> None:
    """The last owner may be a thread of ours that copied, which never touches Python."""
    for _ in range(20):
        cache, alive, ends = lent()
        manager = borrower(cache)
        del cache
        blocks = pool(manager).register_blocks(manager.allocate_blocks(BLOCKS), range(BLOCKS))
        transfer = manager.offload(blocks)
        blocks.release()
        del blocks, manager
        transfer.cancel()
        del transfer
        while alive() is not None:
            call()
        assert ends == [threading.get_ident()]


CHILD = "import os\nif os.fork(): assert os.waitstatus_to_exitcode(os.wait()[1]) == 0"
CHILD_DROPS = CHILD + "\nelse: del manager, pool, blocks, transfer, array"


@pytest.mark.parametrize(
    "last", ["", "del manager", "sys.exit(0)", "manager.close()", CHILD, CHILD_DROPS]
)
def test_the_process_ends_well_with_lent_tensors(last: str) -> None:
    script = f"""
import sys
import numpy as np
from dynamo_llm import BlockManager
cache = np.zeros((64, 2, 2, 16, 1024), np.float16)
manager = BlockManager(2, 16, 1024, host_blocks=64, device_tensors=cache,
                       axes=("block", "layer", "outer", "token", "element"))
pool = manager.get_device_pool()
blocks = pool.register_blocks(manager.allocate_blocks(64), range(64))
transfer = manager.offload(blocks)
array = np.from_dlpack(blocks[3])
del cache
{last}
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


LIBRARIES = {
    "torch": """
        import torch
        layers = [torch.zeros(2, 8, 2, 4, 16, dtype=torch.bfloat16) for _ in range(3)]
        views = [layer.permute(0, 1, 3, 2, 4) for layer in layers]
        manager = BlockManager(3, 4, 32, "bf16", host_blocks=32, device_tensors=views,
                               axes=("outer", "block", "token", "head", "element"))
        for number, layer in enumerate(layers):
            layer.copy_(torch.rand(layer.shape) + number)
        pool = manager.get_device_pool()
        blocks = pool.register_blocks(manager.allocate_blocks(8), range(8))
        before = [layer.clone() for layer in layers]
        slots = blocks.block_ids
        assert manager.offload(blocks).result(10) == ["ok"] * 8
        blocks.release()
        manager.allocate_blocks(8).release()
        for layer in layers:
            layer.zero_()
        back = manager.onboard(range(8))
        assert len(back) == 8
        for old, new in zip(slots, back.block_ids):
            for layer, was in zip(layers, before):
                assert torch.equal(layer[:, new], was[:, old])
        try:
            BlockManager(3, 4, 32, "bf16", device_tensors=[v.float() for v in views],
                         axes=("outer", "block", "token", "head", "element"))
        except ConfigError as error:
            assert "elements" in str(error)
        else:
            raise AssertionError
        graph = torch.zeros(8, 3, 2, 4, 32, requires_grad=True)
        try:
            BlockManager(3, 4, 32, "fp32", device_tensors=graph,
                         axes=("block", "layer", "outer", "token", "element"))
        except ConfigError as error:
            assert "device_tensors" in str(error)
        else:
            raise AssertionError
    """,
    "jax": """
        import jax.numpy as jnp
        array = jnp.zeros((8, 3, 2, 4, 32), jnp.float16)
        try:
            BlockManager(3, 4, 32, device_tensors=array,
                         axes=("block", "layer", "outer", "token", "element"))
        except ConfigError as error:
            assert "device_tensors" in str(error) and "read-only" in str(error)
        else:
            raise AssertionError("jax arrays never change")
    """,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_tensors_of_other_libraries(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = "from dynamo_llm import BlockManager, ConfigError\n"
    script += textwrap.dedent(LIBRARIES[library])
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True)
