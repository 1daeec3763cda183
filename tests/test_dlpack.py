"""Blocks as tensors: what consumers see, what they may do, and what they keep alive."""

import ctypes
import gc
import importlib.util
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_llm import BlockList, BlockManager, BlockManagerError, BlockPool, DType, hash_tokens
from support import environment

PAGE = 4
VERSIONED = (1, 0)

# --- the structures, as a consumer in C sees them ---

LEGACY_NAME, VERSIONED_NAME = b"dltensor", b"dltensor_versioned"


class DLTensor(ctypes.Structure):
    """`DLTensor` of `dlpack.h`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class ManagedVersioned(ctypes.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_USED = ctypes.c_char_p(b"used_dltensor_versioned")
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # releases the interpreter lock around the call


def look(capsule: Any) -> tuple[DLTensor, ManagedVersioned | None]:
    """The tensor in a capsule, and its versioned frame."""
    if f'"{VERSIONED_NAME.decode()}"' in repr(capsule):
        versioned = ManagedVersioned.from_address(_pointer(capsule, VERSIONED_NAME))
        return versioned.tensor, versioned
    return Managed.from_address(_pointer(capsule, LEGACY_NAME)).tensor, None


def consume(capsule: Any) -> Callable[[], None]:
    """Take the tensor out of a versioned capsule as a library in C does; returns its deleter."""
    address = _pointer(capsule, VERSIONED_NAME)
    assert _rename(capsule, _USED) == 0
    deleter = _DELETER(ManagedVersioned.from_address(address).deleter)
    return lambda: deleter(address)


# --- managers ---


@pytest.fixture
def manager() -> Iterator[BlockManager]:
    """Eight small blocks on the device."""
    with BlockManager(3, PAGE, 8, device_blocks=8, host_blocks=0) as manager:
        yield manager


@pytest.fixture
def device(manager: BlockManager) -> BlockPool:
    """The device tier of `manager`."""
    return pool(manager)


def pool(manager: BlockManager) -> BlockPool:
    """A manager's device tier."""
    device = manager.get_device_pool()
    assert isinstance(device, BlockPool)
    return device


def registered(manager: BlockManager, n: int = 1) -> BlockList:
    """Blocks that are registered."""
    hashes = hash_tokens(range(n * PAGE), PAGE)
    return pool(manager).register_blocks(manager.allocate_blocks(n), hashes)


DTYPES = {
    DType.FP16: ((2, 16), "float16"),
    DType.BF16: ((4, 16), None),
    DType.FP32: ((2, 32), "float32"),
    DType.FP64: ((2, 64), "float64"),
    DType.FP8_E4M3: ((10, 8), None),
    DType.FP8_E5M2: ((12, 8), None),
    DType.INT8: ((0, 8), "int8"),
    DType.INT16: ((0, 16), "int16"),
    DType.INT32: ((0, 32), "int32"),
    DType.INT64: ((0, 64), "int64"),
    DType.UINT8: ((1, 8), "uint8"),
    DType.UINT16: ((1, 16), "uint16"),
    DType.UINT32: ((1, 32), "uint32"),
    DType.UINT64: ((1, 64), "uint64"),
}

# --- what consumers see ---


@settings(deadline=None)
@given(
    dims=st.tuples(*[st.integers(1, 4)] * 2, st.integers(1, 5)),
    outer=st.integers(1, 2),
    dtype=st.sampled_from([dtype for dtype, (_, name) in DTYPES.items() if name]),
    layout=st.sampled_from(["fully_contiguous", "paged", "layer_separate"]),
    blocks=st.integers(1, 4),
    data=st.data(),
)
def test_numpy_sees_every_block_and_layer_where_it_lies(
    dims: tuple[int, int, int], outer: int, dtype: DType, layout: str, blocks: int, data: Any
) -> None:
    layers, page, inner = dims
    config = {
        "model": {
            "num_layers": layers,
            "outer_dim": outer,
            "page_size": page,
            "inner_dim": inner,
            "dtype": dtype,
        },
        "device": {"blocks": blocks, "layout": layout},
        "host": {"blocks": 0},
    }
    with BlockManager.from_config(config) as manager:
        held = manager.allocate_blocks(blocks)
        shape = (layers, outer, page, inner)
        expected = {}
        for nth, block in enumerate(held):
            assert block.shape == shape
            expected[nth] = np.arange(np.prod(shape)).reshape(shape).astype(DTYPES[dtype][1]) + nth
            for layer, values in zip(block, expected[nth], strict=True):
                view = np.from_dlpack(layer)
                assert view.dtype == DTYPES[dtype][1]
                assert view.shape == layer.shape == shape[1:]
                view[...] = values
        for nth in data.draw(st.permutations(range(blocks))):
            block = held[nth]
            if layout == "layer_separate" and layers > 1:
                with pytest.raises(BufferError, match="storages of their own"):
                    np.from_dlpack(block)
            else:
                view = np.from_dlpack(block)
                assert view.flags.c_contiguous
                assert np.array_equal(view, expected[nth])
            assert np.array_equal(np.from_dlpack(block, copy=True), expected[nth])
            raw = np.from_dlpack(block.view_uint8(), copy=True)
            assert raw.tobytes() == expected[nth].tobytes()
        if layout != "layer_separate" or layers == 1:
            whole = np.from_dlpack(held)
            assert whole.shape == held.shape == (blocks, *shape)
            for nth in range(blocks):
                assert np.array_equal(whole[nth], expected[nth])
        del view


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_codes_of_types_and_bytes_for_all(dtype: DType) -> None:
    (code, name) = DTYPES[dtype]
    with BlockManager(2, PAGE, 8, dtype, device_blocks=1, host_blocks=0) as manager:
        (block,) = manager.allocate_blocks(1)
        tensor, _ = look(block.__dlpack__(max_version=VERSIONED))
        assert (tensor.code, tensor.bits, tensor.lanes) == (*code, 1)
        raw = np.from_dlpack(block.view_uint8())
        assert raw.dtype == np.uint8
        assert raw.shape == (2, 2, PAGE, 8 * dtype.size_bytes) == block.view_uint8().shape
        assert block.view_uint8().dtype == DType.UINT8
        assert np.from_dlpack(block[1].view_uint8()).shape == raw.shape[1:]
        if name is None:
            with pytest.raises((BufferError, RuntimeError)):
                np.from_dlpack(block)
        else:
            assert np.from_dlpack(block).dtype == name


def test_the_structure_is_complete(manager: BlockManager) -> None:
    blocks = manager.allocate_blocks(3)
    for nth, block in enumerate(blocks):
        for terms in (
            {},
            {"max_version": (0, 8)},
            {"max_version": (1, 0)},
            {"max_version": (9, 9)},
        ):
            capsule = block.__dlpack__(**terms)  # type: ignore[arg-type]
            tensor, versioned = look(capsule)
            assert (versioned is None) == (terms.get("max_version", (0, 0)) < (1, 0))
            assert tensor.shape[:4] == [3, 2, PAGE, 8]
            assert tensor.strides[:4] == [2 * PAGE * 8, PAGE * 8, 8, 1]
            assert (tensor.device_type, tensor.device_id, tensor.byte_offset) == (1, 0, 0)
            assert block.__dlpack_device__() == (1, 0)
            if versioned:
                assert (versioned.major, versioned.flags) == (1, 0)
        base = look(blocks[0].__dlpack__(max_version=VERSIONED))[0].data
        layer = look(block[1].__dlpack__(max_version=VERSIONED))[0]
        assert layer.data == base + nth * 3 * 2 * PAGE * 8 * 2 + 2 * PAGE * 8 * 2
        assert layer.strides[:3] == [PAGE * 8, 8, 1]
        assert layer.byte_offset == 0


@pytest.mark.parametrize("layout", ["fully_contiguous", "paged", "layer_separate"])
def test_an_axis_of_one_has_no_stride_of_its_own(layout: str) -> None:
    model = {"num_layers": 1, "outer_dim": 1, "page_size": 1, "inner_dim": 77, "dtype": "int8"}
    config = {"model": model, "device": {"blocks": 4, "layout": layout}, "host": {"blocks": 0}}
    with BlockManager.from_config(config) as manager:
        blocks = manager.allocate_blocks(4)
        for one in (blocks[1:2], blocks[::-1][::4], blocks[2], blocks[2][0]):
            tensor, _ = look(one.__dlpack__(max_version=VERSIONED))
            assert tensor.strides[: tensor.ndim] == [77] * (tensor.ndim - 1) + [1]
            assert np.from_dlpack(one).flags.c_contiguous


def test_lists_that_are_one_tensor_and_others(manager: BlockManager) -> None:
    blocks = manager.allocate_blocks(8)
    assert blocks.block_ids == list(range(8))
    for nth, block in enumerate(blocks):
        np.from_dlpack(block)[:] = nth
    for part in (blocks, blocks[2:5], blocks[::3], blocks[3:3], blocks[7:]):
        values = np.from_dlpack(part)
        assert values.shape == part.shape
        assert [value[0, 0, 0, 0] for value in values] == part.block_ids
    with pytest.raises(BufferError, match="ascending"):
        np.from_dlpack(blocks[::-1])
    copied = np.from_dlpack(blocks[::-1], copy=True)
    assert [value.max() for value in copied] == list(range(7, -1, -1))
    del values
    uneven = pool(manager).register_blocks([blocks[0], blocks[1], blocks[5]], [1, 2, 3])
    with pytest.raises(BufferError, match="evenly"):
        np.from_dlpack(uneven)
    assert np.from_dlpack(uneven, copy=True).shape == uneven.shape


def test_nothing_at_all_is_a_tensor_too(manager: BlockManager) -> None:
    for empty in (manager.allocate_blocks(0), registered(manager)[1:]):
        tensor, _ = look(empty.__dlpack__(max_version=VERSIONED))
        assert tensor.data is None
        assert tensor.shape[0] == 0
        assert np.from_dlpack(empty).shape == (0, 3, 2, PAGE, 8)
        assert np.from_dlpack(empty, copy=True).size == 0


# --- what consumers may do ---


def test_a_writable_block_is_shared_both_ways(manager: BlockManager) -> None:
    (block,) = manager.allocate_blocks(1)
    one, other = np.from_dlpack(block), np.from_dlpack(block)
    assert one.flags.writeable
    one[:] = 5
    assert (other == 5).all()


def test_a_registered_block_is_read_only(manager: BlockManager) -> None:
    (block,) = registered(manager)
    _, versioned = look(block.__dlpack__(max_version=VERSIONED))
    assert versioned is not None
    assert versioned.flags == 1
    assert not np.from_dlpack(block).flags.writeable
    assert not np.from_dlpack(block[0]).flags.writeable
    for old in ({}, {"max_version": (0, 8)}):
        with pytest.raises(BufferError, match="copy=True"):
            block.__dlpack__(**old)  # type: ignore[arg-type]
    tensor, _ = look(block.__dlpack__(copy=True))
    assert tensor.shape[0] == 3


def test_a_copy_is_ones_own(manager: BlockManager, device: BlockPool) -> None:
    blocks = registered(manager)
    _, versioned = look(blocks[0].__dlpack__(max_version=VERSIONED, copy=True))
    assert versioned is not None
    assert versioned.flags == 2
    copied = np.from_dlpack(blocks[0], copy=True)
    assert copied.ctypes.data % 64 == 0
    copied[:] = 9
    assert not np.from_dlpack(blocks[0]).any()
    blocks.release()
    assert device.available_blocks() == 8


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"stream": 0}, BufferError),
        ({"stream": 1}, BufferError),
        ({"stream": -1}, BufferError),
        ({"stream": 2**70}, BufferError),
        ({"stream": "default"}, TypeError),
        ({"dl_device": (2, 0)}, BufferError),
        ({"dl_device": (1, 1)}, BufferError),
        ({"dl_device": (2**70, -(2**70))}, BufferError),
        ({"dl_device": "cpu"}, TypeError),
        ({"dl_device": (1,)}, TypeError),
        ({"max_version": 1}, TypeError),
        ({"max_version": ("1", "0")}, TypeError),
        ({"max_version": (1, 0, 0)}, TypeError),
        ({"copy": "yes"}, TypeError),
    ],
)
def test_terms_that_cannot_be_met(
    manager: BlockManager, device: BlockPool, terms: dict[str, Any], error: type[Exception]
) -> None:
    blocks = manager.allocate_blocks(1)
    for tensor in (blocks, blocks[0], blocks[0][0]):
        with pytest.raises(error, match=next(iter(terms))):
            tensor.__dlpack__(**terms)
    blocks.release()
    assert device.available_blocks() == 8


@pytest.mark.parametrize(
    "terms",
    [
        {"stream": None, "dl_device": (1, 0), "copy": None},
        {"copy": False},
        {"max_version": (2**70, 0)},
        {"max_version": (-1, 0)},
    ],
)
def test_terms_that_can(manager: BlockManager, terms: dict[str, Any]) -> None:
    with manager.allocate_blocks(1) as blocks:
        assert look(blocks[0].__dlpack__(**terms))[0].ndim == 4


CONSUMERS = {
    "jax": """
        from jax.dlpack import from_dlpack
        assert from_dlpack(block).tolist() == expected
        assert from_dlpack(block[1]).tolist() == expected[1]
        shared = manager.get_device_pool().register_blocks(manager.allocate_blocks(1), [1])
        assert not np.from_dlpack(shared[0]).any()
    """,
    "torch": """
        import torch
        tensor = torch.from_dlpack(block)
        assert tensor.tolist() == expected
        assert tensor.is_contiguous()
        assert torch.from_dlpack(block[1]).tolist() == expected[1]
        assert torch.from_dlpack(block.__dlpack__()).tolist() == expected
        tensor[0, 0, 0, 0] = 99
        assert np.from_dlpack(block)[0, 0, 0, 0] == 99
    """,
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_other_consumers_see_the_same(consumer: str) -> None:
    if importlib.util.find_spec(consumer) is None:
        pytest.skip(f"{consumer} is not installed")
    # In a process of its own: these libraries start threads, which other tests would fork.
    script = """
import numpy as np
from dynamo_llm import BlockManager
manager = BlockManager(3, 4, 8, device_blocks=8, host_blocks=0)
block = manager.allocate_blocks(2)[1]
np.from_dlpack(block)[:] = np.arange(192).reshape(3, 2, 4, 8)
expected = np.from_dlpack(block).tolist()
"""
    script += textwrap.dedent(CONSUMERS[consumer])
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True)


# --- what consumers keep alive ---


@settings(deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["block", "layer", "bytes", "copy"]), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    register=st.booleans(),
)
def test_a_slot_returns_with_its_last_handle_and_export(
    kinds: list[str], order: Any, register: bool
) -> None:
    exports: dict[str, Callable[[Any], Any]] = {
        "block": np.from_dlpack,
        "layer": lambda block: np.from_dlpack(block[0]),
        "bytes": lambda block: np.from_dlpack(block.view_uint8()),
        "copy": lambda block: np.from_dlpack(block, copy=True),
    }
    n = len(kinds)
    with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=0) as manager:
        blocks = registered(manager, n) if register else manager.allocate_blocks(n)
        held: list[Any] = [[kind, exports[kind](blocks[nth])] for nth, kind in enumerate(kinds)]
        held.append(["list", blocks])
        del blocks
        order.shuffle(held)
        left = [kind for kind, _ in held]
        while held:
            kind, dropped = held.pop()
            if kind == "list" and order.random() < 0.5:
                dropped.release()
            del dropped
            left.pop()
            keeping = sum(other != "copy" for other in left)
            assert pool(manager).available_blocks() == 8 - (n if "list" in left else keeping)


def test_an_export_outlives_release_close_and_manager() -> None:
    manager = BlockManager(1, PAGE, 8, device_blocks=2, host_blocks=0)
    blocks = manager.allocate_blocks(1)
    array = np.from_dlpack(blocks[0])
    array[:] = 3
    blocks.release()
    manager.close()
    del manager, blocks
    gc.collect()
    assert (array == 3).all()
    array[:] = 4


def test_a_capsule_that_nobody_consumed_gives_its_slot_back(
    manager: BlockManager, device: BlockPool
) -> None:
    for _ in range(1000):
        blocks = manager.allocate_blocks(8)
        capsules = [block.__dlpack__() for block in blocks[:4]]
        capsules += [block.__dlpack__(max_version=VERSIONED) for block in blocks[4:]]
        blocks.release()
        assert device.available_blocks() == 0
        del capsules
        assert device.available_blocks() == 8


def test_a_deleter_may_run_on_any_thread_without_the_interpreter(
    manager: BlockManager, device: BlockPool
) -> None:
    blocks = manager.allocate_blocks(8)
    deleters = [consume(block.__dlpack__(max_version=VERSIONED)) for block in blocks]
    blocks.release()
    assert device.available_blocks() == 0
    threads = [threading.Thread(target=delete) for delete in deleters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.available_blocks() == 8


def test_registering_an_exported_block_takes_a_word(
    manager: BlockManager, device: BlockPool
) -> None:
    blocks = manager.allocate_blocks(2)
    array = np.from_dlpack(blocks[1])
    with pytest.raises(BlockManagerError, match="allow_aliases"):
        device.register_blocks(blocks, [1, 2])
    assert blocks
    assert device.available_blocks() == 6
    shared = device.register_blocks(blocks, [1, 2], allow_aliases=True)
    assert not blocks
    array[:] = 7
    assert (np.from_dlpack(shared[1]) == 7).all()
    shared.release()
    assert device.available_blocks() == 7
    device.match_sequence_hashes([1, 2]).release()
    del array
    assert device.available_blocks() == 8
    assert len(device.match_sequence_hashes([1, 2])) == 2


def test_a_copy_is_no_alias(manager: BlockManager, device: BlockPool) -> None:
    blocks = manager.allocate_blocks(1)
    array = np.from_dlpack(blocks[0], copy=True)
    device.register_blocks(blocks, [1]).release()
    array[:] = 1
