"""Every public callable under every kind of nonsense: an exception that teaches, and nothing worse.

A table has one valid call of each callable. Each of its arguments in turn is replaced by each of
the values below; the call may work or raise what the package documents, it may not panic, hang or
end the process, and afterwards every slot is where it was. A second table has what must be refused,
and in which words.
"""

import asyncio
import contextlib
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import dynamo_llm
from dynamo_llm import (
    Block,
    BlockList,
    BlockManager,
    BlockManagerError,
    BlockPool,
    DType,
    DynamoError,
    HashList,
    Layer,
    Match,
    SequenceHash,
    Transfer,
    hash_tokens,
)

PAGE = 4


class Foreign:
    """Like nothing that the package knows."""

    def __repr__(self) -> str:
        return "<foreign>"


class Liar:
    """Says that it has a length, items, an index and a tensor, and raises at each."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, _: object) -> object:
        raise ZeroDivisionError

    def __index__(self) -> int:
        raise ZeroDivisionError

    def __dlpack__(self, **_: object) -> object:
        raise ZeroDivisionError

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


LOOP: list[Any] = []
LOOP.append(LOOP)

HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**50,
    2**63,
    2**64,
    2**70,
    -(2**70),
    10**5000,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "fp16",
    "\0",
    "\udcff",
    "x" * 10_000,
    b"",
    b"sixteen bytes ab",
    b"\xff" * 17,
    bytearray(16),
    (),
    [],
    [None],
    [-1],
    [1.5],
    [2**70],
    [b"short"],
    [[1]],
    LOOP,
    {},
    {1: 2},
    {1, 2},
    range(3),
    slice(None),
    object(),
    Foreign(),
    Liar(),
    [Liar()],
    int,
    len,
    iter([1, 2]),
    np.zeros(0),
    np.zeros((2, 2), np.int64),
    np.full(3, -1, np.int8),
    np.float32(1.5),
    np.int64(3),
    memoryview(b"abcd").cast("I"),
    DType.FP16,
]

RAISED = (DynamoError, TypeError, IndexError, BufferError, ZeroDivisionError, UnicodeEncodeError)
"""What a call may raise; the last two are raised by the values themselves."""


class World:
    """A manager with something in every tier, and one of each handle."""

    def __init__(self) -> None:
        self.manager = BlockManager(2, PAGE, 8, device_blocks=16, host_blocks=32)
        device = self.manager.get_device_pool()
        assert device is not None
        self.pool = device
        self.hashes = hash_tokens(range(4 * PAGE), PAGE)
        self.writable = self.manager.allocate_blocks(4)
        self.registered = device.register_blocks(self.manager.allocate_blocks(4), self.hashes)
        self.transfer = self.manager.offload(self.registered)
        self.transfer.result(10)
        self.match = self.manager.lookup(self.hashes)
        self.block = self.writable[0]

    def slots(self) -> dict[str, int]:
        """Slots of the device tier by state."""
        figures = self.manager.status()["tiers"]["device"]
        states = ("free", "mutable", "active", "inactive", "quarantined")
        return {state: figures[state] for state in states if state in figures}

    def close(self) -> None:
        """End it without waiting."""
        self.manager.close(0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def fresh_block(world: World) -> Block:
    """A block that a sequence was begun in, at most one page of it filled."""
    block = world.pool.allocate_blocks(1)[0]
    block.init_sequence()
    block.add_token(1)
    return block


Call = tuple[Callable[[World], Callable[..., Any]], dict[str, Any]]

CALLS: dict[str, Call] = {
    "BlockManager": (
        lambda _: BlockManager,
        {
            "num_layers": 1,
            "page_size": 1,
            "inner_dim": 1,
            "dtype": "fp16",
            "device_id": 0,
            "outer_dim": 1,
            "device_blocks": 1,
            "host_blocks": 1,
            "disk": None,
            "remote": None,
            "eviction": "lru",
            "offload_policy": "manual",
            "model": "m",
            "revision": "r",
            "adapter": "a",
            "worker_id": 0,
            "prefault": False,
            "zero_on_allocate": False,
            "strict": False,
            "device_tensors": None,
            "axes": None,
            "memory_order": None,
        },
    ),
    "BlockManager.from_config": (
        lambda _: BlockManager.from_config,
        {
            "config": {"model": {"num_layers": 1, "page_size": 1, "inner_dim": 1}},
            "device_id": 0,
            "zero_on_allocate": False,
            "device_tensors": None,
            "axes": None,
            "memory_order": None,
        },
    ),
    "BlockManager.from_env": (
        lambda _: BlockManager.from_env,
        {
            "device_id": 0,
            "zero_on_allocate": False,
            "device_tensors": None,
            "axes": None,
            "memory_order": None,
        },
    ),
    "BlockManager.allocate_blocks": (lambda w: w.manager.allocate_blocks, {"n": 1}),
    "BlockManager.get_device_pool": (lambda w: w.manager.get_device_pool, {}),
    "BlockManager.get_host_pool": (lambda w: w.manager.get_host_pool, {}),
    "BlockManager.get_disk_pool": (lambda w: w.manager.get_disk_pool, {}),
    "BlockManager.lookup": (lambda w: w.manager.lookup, {"hashes": [1]}),
    "BlockManager.onboard": (
        lambda w: w.manager.onboard,
        {"source": [1], "skip": 0, "into": None, "deadline": None},
    ),
    "BlockManager.offload": (lambda w: w.manager.offload, {"blocks": [], "to": "host"}),
    "BlockManager.reset": (lambda w: w.manager.reset, {}),
    "BlockManager.set_weights_version": (
        lambda w: w.manager.set_weights_version,
        {"version": "v"},
    ),
    "BlockManager.status": (lambda w: w.manager.status, {}),
    "BlockManager.metrics": (lambda w: w.manager.metrics, {}),
    "BlockManager.close": (lambda _: World().manager.close, {"timeout": 0}),
    "BlockPool.total_blocks": (lambda w: w.pool.total_blocks, {}),
    "BlockPool.available_blocks": (lambda w: w.pool.available_blocks, {}),
    "BlockPool.usage": (lambda w: w.pool.usage, {}),
    "BlockPool.allocate_blocks": (lambda w: w.pool.allocate_blocks, {"n": 1}),
    "BlockPool.register_blocks": (
        lambda w: w.pool.register_blocks,
        {"blocks": [], "hashes": [], "allow_aliases": False},
    ),
    "BlockPool.match_sequence_hashes": (lambda w: w.pool.match_sequence_hashes, {"hashes": [1]}),
    "BlockList.release": (lambda w: w.pool.allocate_blocks(1).release, {}),
    "BlockList.to_list": (lambda w: w.writable.to_list, {}),
    "BlockList.view_uint8": (lambda w: w.writable.view_uint8, {}),
    "BlockList.__getitem__": (lambda w: w.writable.__getitem__, {"key": 0}),
    "BlockList.__dlpack__": (
        lambda w: w.writable.__dlpack__,
        {"stream": None, "max_version": None, "dl_device": None, "copy": None},
    ),
    "Block.sequence_hash": (lambda w: w.block.sequence_hash, {}),
    "Block.init_sequence": (
        lambda w: w.pool.allocate_blocks(1)[0].init_sequence,
        {"salt": None, "adapter": None, "media": None, "scheme": "blake3"},
    ),
    "Block.continue_sequence": (
        lambda w: w.pool.allocate_blocks(1)[0].continue_sequence,
        {"previous": None},
    ),
    "Block.add_token": (lambda w: fresh_block(w).add_token, {"token": 1}),
    "Block.add_tokens": (lambda w: fresh_block(w).add_tokens, {"tokens": [1]}),
    "Block.pop_token": (lambda w: fresh_block(w).pop_token, {}),
    "Block.pop_tokens": (lambda w: fresh_block(w).pop_tokens, {"n": 1}),
    "Block.commit": (lambda w: fresh_block(w).commit, {}),
    "Block.view_uint8": (lambda w: w.block.view_uint8, {}),
    "Block.to_list": (lambda w: w.block.to_list, {}),
    "Block.__getitem__": (lambda w: w.block.__getitem__, {"key": 0}),
    "Block.__dlpack__": (
        lambda w: w.block.__dlpack__,
        {"stream": None, "max_version": None, "dl_device": None, "copy": None},
    ),
    "Layer.view_uint8": (lambda w: w.block[0].view_uint8, {}),
    "Layer.__dlpack__": (
        lambda w: w.block[0].__dlpack__,
        {"stream": None, "max_version": None, "dl_device": None, "copy": None},
    ),
    "Match.release": (lambda w: w.manager.lookup([1]).release, {}),
    "Transfer.result": (lambda w: w.transfer.result, {"timeout": 0}),
    "Transfer.done": (lambda w: w.transfer.done, {}),
    "Transfer.cancel": (lambda w: w.transfer.cancel, {}),
    "DType": (lambda _: DType, {"name": "fp16"}),
    "SequenceHash": (lambda _: SequenceHash, {"value": 1}),
    "SequenceHash.from_engine_hash": (
        lambda _: SequenceHash.from_engine_hash,
        {"value": b"8 bytes."},
    ),
    "HashList": (lambda _: HashList, {"hashes": [1]}),
    "HashList.from_bytes": (lambda _: HashList.from_bytes, {"data": bytes(16)}),
    "HashList.__getitem__": (lambda w: w.hashes.__getitem__, {"key": 0}),
    "HashList.__contains__": (lambda w: w.hashes.__contains__, {"item": 0}),
    "HashList.__eq__": (lambda w: w.hashes.__eq__, {"other": 0}),
    "hash_tokens": (
        lambda _: hash_tokens,
        {
            "tokens": range(8),
            "page_size": 4,
            "salt": None,
            "adapter": None,
            "media": None,
            "scheme": "blake3",
        },
    ),
}

POSITIONAL = {"__getitem__", "__contains__", "__eq__"}


def public() -> Iterator[str]:
    """The public callables of the package; what ends in `_async` is the same with an await."""
    for name in dynamo_llm.__all__:
        thing = getattr(dynamo_llm, name)
        if isinstance(thing, type):
            if issubclass(thing, BaseException):
                continue
            if name not in ("Block", "BlockList", "BlockPool", "Layer", "Match", "Transfer"):
                yield name
            for method in vars(thing):
                if not method.startswith("_") and callable(getattr(thing, method)):
                    yield f"{name}.{method}"
        elif callable(thing):
            yield name


def test_the_table_is_complete() -> None:
    names = {name.removesuffix("_async") for name in public()}
    assert names == {
        name for name in CALLS if name.split(".")[-1] not in {*POSITIONAL, "__dlpack__"}
    }
    for name, (target, arguments) in CALLS.items():
        if name.split(".")[-1] in POSITIONAL:
            continue
        world = World()
        assert set(inspect.signature(target(world)).parameters) == set(arguments), name
        world.close()


def values(world: World) -> list[Any]:
    """The values above, and handles that are used up, foreign, or of another kind."""
    other = World()
    gone = world.pool.allocate_blocks(2)
    gone.release()
    used = world.manager.lookup(world.hashes)
    used.release()
    handles = [
        gone,
        list(gone),
        gone[0],
        used,
        world.match,
        world.registered,
        world.registered[0],
        world.writable,
        [*world.writable[:1], *world.registered[:1]],
        [world.writable[0], world.writable[0]],
        other.writable,
        other.hashes,
        other.registered,
        world.pool,
        world.manager,
        world.transfer,
        world.hashes,
        world.hashes[0],
        world.block[0],
        Block,
        DType,
    ]
    other.close()
    return HOSTILE + handles


def said(error: Exception) -> str:
    """Its message, and the notes below it."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def show(value: object) -> str:
    """A value as it may stand in a line; some have no `repr`."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return type(value).__name__


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = call(*args, **kwargs)
    if inspect.isawaitable(result):

        async def wait() -> Any:
            return await result

        return asyncio.run(wait())
    return result


def undo(result: object) -> None:
    """Lets go of what a call that worked has made."""
    if isinstance(result, BlockManager):
        result.close(0)
    elif isinstance(result, BlockList | Match):
        result.release()


# What names what it refuses by what it is, not by the argument's own name.
SAID_AS = {
    "source": ("hashes", "match", "device"),
    "previous": ("previous", "block"),
    "value": ("value", "hash", "bytes"),
    "data": ("data", "bytes"),
    "key": ("index", "layer"),
    "token": ("token",),
    # A list of blocks is a tensor, too.
    "tokens": ("tokens", "block"),
    "name": ("dtype", "name"),
    "blocks": ("block",),
    "into": ("into", "block"),
    "model": ("model", "name"),
    "n": ("n ", "n=", "'n'", "block"),
    "config": ("config", ".toml", "model", "cannot be read"),
    "axes": ("axes", "axis"),
    "memory_order": ("memory_order", "axis"),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_nonsense_does_worse_than_raise(name: str, world: World) -> None:
    target, valid = CALLS[name]
    positional = name.split(".")[-1] in POSITIONAL
    before, untaught = world.slots(), list[str]()
    for argument in valid:
        for value in values(world):
            arguments = {**valid, argument: value}
            try:
                if positional:
                    target(world)(value)
                else:
                    undo(attempt(target(world), **arguments))
            except RAISED as error:
                text, words = said(error), SAID_AS.get(argument, (argument,))
                # A path is shown as it is.
                limit = 25_000 if argument == "config" else 2000
                own = isinstance(error, ZeroDivisionError | UnicodeEncodeError)
                if (not own and not any(word in text for word in words)) or len(text) > limit:
                    untaught.append(f"{name}({argument}={show(value)}): {text}")
    assert untaught == []
    gc.collect()
    forgetting = ("BlockManager.reset", "BlockManager.set_weights_version")
    if name not in (*forgetting, "BlockManager.onboard", "BlockPool.register_blocks"):
        assert world.slots() == before


@pytest.mark.parametrize("name", [name for name in CALLS if name.split(".")[-1] not in POSITIONAL])
def test_a_misspelt_keyword_is_refused_by_name(name: str, world: World) -> None:
    target, valid = CALLS[name]
    with pytest.raises(TypeError, match="argument"):
        target(world)(**valid, misspelt=1)


@pytest.mark.parametrize("name", [name for name in public() if name.endswith("_async")] or ["none"])
def test_twins_refuse_what_the_verbs_refuse(name: str, world: World) -> None:
    if name == "none":
        pytest.skip("there are no twins to await")
    cls, method = name.split(".")
    owner: Any = {"BlockManager": world.manager, "BlockPool": world.pool}.get(cls, world.transfer)
    valid = CALLS[name.removesuffix("_async")][1]
    for argument in valid:
        for value in values(world):
            with contextlib.suppress(*RAISED):
                undo(attempt(getattr(owner, method), **{**valid, argument: value}))
    with pytest.raises(TypeError, match="argument"):
        getattr(owner, method)(**valid, misspelt=1)


# --- what must be refused, and how ---


def mistyped(value: Any) -> Any:
    """What a type checker would have found."""
    return value


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: w.manager.allocate_blocks(-1), r"n = -1.*0 to"),
        (lambda w: w.manager.allocate_blocks(2**50), rf"{2**50}.*available"),
        (lambda w: w.manager.allocate_blocks(2**70), rf"n = {2**70}.*0 to"),
        (lambda w: w.manager.allocate_blocks(1.5), r"n = 1.5 \(float\).*whole number"),
        (lambda _: BlockManager(2, 4, 8, device_blocks=-1), r"device_blocks = -1"),
        (
            lambda _: BlockManager(2, 4, 8, device_blocks=2**50),
            rf"device_blocks = {2**50}.*at most",
        ),
        (lambda _: BlockManager(2, 4, 8, device_blocks=2**70), rf"device_blocks = {2**70}.*0 to"),
        (lambda _: BlockManager(0, 4, 8), r"num_layers = 0.*from 1"),
        (lambda _: hash_tokens(mistyped([1.5]), 1), r"tokens\[0\] = 1.5"),
        (lambda _: hash_tokens([1, -1], 1), r"tokens\[1\] = -1.*0 to"),
        (lambda _: hash_tokens([1, 2**32], 1), rf"tokens\[1\] = {2**32}.*0 to"),
        (lambda _: hash_tokens(mistyped((1, "2")), 1), r"tokens\[1\] = '2'"),
        (lambda _: hash_tokens([1], -1), r"page_size = -1"),
        (lambda _: hash_tokens([1], 0), r"page_size.*0"),
        (lambda w: w.manager.lookup([b"short"]), r"hashes\[0\]: 5 bytes.*16"),
        (lambda w: w.manager.lookup([1, -1]), r"hashes\[1\] = -1.*0 to 2\*\*128"),
        (lambda w: w.manager.lookup([2**128]), r"hashes\[0\] = .*2\*\*128"),
        (lambda w: w.manager.lookup(mistyped([1.5])), r"hashes\[0\] = 1.5.*give"),
        (lambda w: w.manager.lookup("abc"), r"hashes = 'abc'.*sequence"),
        (lambda w: w.writable[4], r"index 4 is out of range: there are 4"),
        (lambda w: w.writable[-5], r"index -5"),
        (lambda w: w.writable[2**70], rf"index {2**70}"),
        (lambda w: w.block[2], r"index 2 .*there are 2"),
        (lambda w: w.hashes[4], r"index 4"),
        (lambda w: w.manager.onboard(w.hashes, skip=-1), r"skip = -1"),
        (lambda w: w.manager.onboard(w.hashes, deadline=-1), r"deadline = -1"),
        (lambda w: w.manager.onboard(w.hashes, deadline="soon"), r"deadline = 'soon'"),
        (lambda w: w.transfer.result(-1), r"timeout = -1"),
        (lambda w: w.manager.offload(w.writable), r"block.*register"),
        (lambda w: w.manager.offload(w.registered, to="moon"), r"to = \"moon\".*host"),
        (lambda w: w.manager.offload([Foreign()]), r"blocks.*foreign"),
        (lambda w: w.pool.register_blocks(w.writable, [1]), r"hashes: 1 for 4 blocks"),
        (lambda w: w.block.__dlpack__(stream="fast"), r"stream = 'fast'"),
        (lambda w: w.block.__dlpack__(max_version=1), r"max_version = 1"),
        (lambda w: w.block.__dlpack__(dl_device=(2, 0)), r"dl_device = \(2, 0\)"),
    ],
)
def test_what_is_refused_is_named_with_value_and_remedy(
    call: Callable[[World], object], words: str, world: World
) -> None:
    before = world.slots()
    with pytest.raises((DynamoError, TypeError, IndexError, BufferError), match=words):
        call(world)
    assert world.slots() == before


# --- after the end, twice, and elsewhere ---


def verbs(world: World) -> list[Callable[[], object]]:
    """Every verb of the world's own objects, with its valid arguments."""
    own = ("BlockManager.", "BlockPool.", "BlockList.", "Block.", "Layer.", "Match.", "Transfer.")
    made = ("from_config", "from_env", "close", *POSITIONAL)

    def call(target: Callable[[World], Callable[..., Any]], valid: dict[str, Any]) -> object:
        return target(world)(**valid)

    return [
        partial(call, target, valid)
        for name, (target, valid) in CALLS.items()
        if name.startswith(own) and name.split(".")[1] not in made
    ]


def test_after_close_and_release_every_verb_answers_or_refuses(world: World) -> None:
    calls = verbs(world)
    for handle in (world.writable, world.registered, world.match):
        handle.release()
        handle.release()
    for call in calls:
        with contextlib.suppress(*RAISED):
            call()
    world.manager.close()
    for call in calls:
        with contextlib.suppress(*RAISED):
            call()
    assert not world.block
    with pytest.raises(BlockManagerError, match=r"released|no longer"):
        np.from_dlpack(world.block)


def test_everything_may_be_released_twice_and_on_another_thread(world: World) -> None:
    free = world.slots()["free"]
    held = world.pool.allocate_blocks(2)
    failed: list[BaseException] = []

    def let_go() -> None:
        try:
            for _ in range(100):
                for handle in (held, world.match, world.writable, world.registered):
                    handle.release()
                world.transfer.cancel()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=let_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []
    slots = world.slots()
    assert slots["mutable"] == slots["active"] == 0
    assert slots["free"] == free + 4
    assert world.pool.available_blocks() == 16


@pytest.mark.parametrize("cls", [Block, BlockList, BlockPool, Layer, Match, Transfer])
def test_handles_are_made_by_verbs_alone(cls: Any) -> None:
    for arguments in ((), (1,), (None, None)):
        with pytest.raises(TypeError):
            cls(*arguments)
    with pytest.raises(TypeError):
        object.__new__(cls)
