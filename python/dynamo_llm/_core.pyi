"""The compiled core. `dynamo_llm` re-exports what is public; this file is its documentation.

Hashes are taken wherever they go in (`_Hashes`) as a `HashList` or as a sequence of `SequenceHash`,
of 16-byte little-endian `bytes`, or of non-negative ints below 2**128.

Everything may be used from several threads at once. What waits or takes long releases the
interpreter lock, and Ctrl-C ends a wait. After `close()` every verb raises `BlockManagerError`. In
a forked child every verb raises `BlockManagerError` too, and nothing is released there: start
workers with `spawn`, or make the manager after the fork.

A verb that ends in `_async` is the one without, to await in an asyncio event loop, which goes on
meanwhile. It takes, returns and raises the same, and begins when it is awaited or made a task.
Cancelling the await gives up what it waits for.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    final,
    overload,
    type_check_only,
)

from _typeshed import MaybeNone
from typing_extensions import Buffer, CapsuleType

__all__ = [
    "ArgumentError",
    "Block",
    "BlockList",
    "BlockManager",
    "BlockManagerError",
    "BlockPool",
    "ConfigError",
    "DType",
    "DynamoError",
    "HashList",
    "Layer",
    "Match",
    "NotEnoughBlocksError",
    "SequenceHash",
    "StorageError",
    "Transfer",
    "WaitTimeoutError",
    "__version__",
    "disk_inspect",
    "disk_verify",
    "hash_tokens",
    "replay",
    "replay_index",
]

__version__: str

_Hashes: TypeAlias = HashList | Sequence[SequenceHash] | Sequence[bytes] | Sequence[int]
_Blocks: TypeAlias = BlockList | Sequence[Block]
_Eviction: TypeAlias = Literal["lru", "fifo", "arc", "s3fifo"]
_OffloadPolicy: TypeAlias = Literal["write_through", "manual"]
_Scheme: TypeAlias = Literal["blake3", "xxh3", "kvbm"]

@type_check_only
class _Array(Protocol):
    # numpy declares its buffer to type checkers from Python 3.12 on; this it always has.
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@type_check_only
class _Tensor(Protocol):
    # torch and jax: their `__dlpack__` have different keywords.
    @property
    def __dlpack__(self) -> Callable[..., Any]: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

_Tensors: TypeAlias = _Tensor | Sequence[_Tensor] | Sequence[tuple[_Tensor, _Tensor]]
_Axis: TypeAlias = Literal["layer", "block", "outer", "token", "head", "element"]
_Tokens: TypeAlias = Sequence[int] | Buffer | _Array | _Tensor

class DynamoError(Exception):
    """The base of every error of this package."""

class ConfigError(DynamoError, ValueError):
    """A setting is impossible or unknown; the message names field, value and remedy."""

class ArgumentError(DynamoError, ValueError):
    """An argument of a verb is impossible; the message names it, its value and a remedy.

    An argument of the wrong type is a `TypeError`, an index out of range an `IndexError`.
    """

class BlockManagerError(DynamoError, RuntimeError):
    """The manager, a pool or a block cannot do what was asked now.

    A block is used after its release, registered twice or still exported; a tier is off; the
    manager is closed, or belongs to the parent of a forked child.
    """

class NotEnoughBlocksError(BlockManagerError):
    """Fewer blocks are available than were asked for; the message states both numbers."""

class StorageError(DynamoError, MemoryError):
    """Memory cannot be had or reached; states what was requested, available and the limit."""

class WaitTimeoutError(DynamoError, TimeoutError):
    """A wait ended before what it waited for; that goes on."""

@final
class DType:
    """The type of one cache element: `DType.BF16`, or by name `DType("bf16")`. Picklable."""

    FP16: ClassVar[DType]
    BF16: ClassVar[DType]
    FP32: ClassVar[DType]
    FP64: ClassVar[DType]
    FP8_E4M3: ClassVar[DType]
    FP8_E5M2: ClassVar[DType]
    INT8: ClassVar[DType]
    INT16: ClassVar[DType]
    INT32: ClassVar[DType]
    INT64: ClassVar[DType]
    UINT8: ClassVar[DType]
    UINT16: ClassVar[DType]
    UINT32: ClassVar[DType]
    UINT64: ClassVar[DType]

    def __new__(cls, name: str) -> Self:
        """Take a name in either case; plain `fp8` is `fp8_e4m3`.

        Raises:
            ConfigError: No type has this name.
        """

    @property
    def name(self) -> str:
        """The lower-case name, as in configuration files: `fp16`, `fp8_e4m3`."""

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class SequenceHash:
    """128-bit identity of a block: chained over its parent, its tokens and all that changes them.

    `int()` is an unsigned 128-bit number, `bytes()` its 16 bytes little-endian, `str()` 32 hex
    digits, highest first. Equal in every process, Python version and machine; picklable.
    """

    def __new__(cls, value: int | bytes | SequenceHash) -> Self:
        """Take a non-negative int below 2**128 or 16 little-endian bytes.

        Raises:
            ArgumentError: The int does not fit, or the bytes are not 16.
        """

    @staticmethod
    def from_engine_hash(value: bytes) -> SequenceHash:
        """Take an engine's own hash of 8, 16 or 32 bytes.

        It is read as a big-endian number, of which the low 128 bits are kept: of the 64-bit form
        that vLLM publishes, `int(h) & (2**64 - 1)` is what remains.

        Raises:
            ArgumentError: The hash has another length.
        """

    def __int__(self, /) -> int: ...
    def __bytes__(self, /) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class HashList:
    """The hashes of one sequence of tokens: one buffer, a sequence of `SequenceHash`.

    Slices share the buffer. The cheapest way to hand hashes to a pool. `bytes()` is 16 bytes,
    little-endian, for each; `from_bytes` is the way back; picklable.
    """

    def __new__(cls, hashes: _Hashes | None = None) -> Self:
        """Take hashes in any of their forms.

        Raises:
            ArgumentError: One of them is no hash; the message has its position.
        """

    @staticmethod
    def from_bytes(data: bytes) -> HashList:
        """Take 16 little-endian bytes for each hash.

        Raises:
            ArgumentError: The length is no multiple of 16.
        """

    def __len__(self, /) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> SequenceHash: ...
    @overload
    def __getitem__(self, index: slice, /) -> HashList: ...
    def __iter__(self, /) -> Iterator[SequenceHash]: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __bytes__(self, /) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

def hash_tokens(
    tokens: _Tokens,
    page_size: int,
    salt: str | bytes | None = None,
    *,
    adapter: str | None = None,
    media: Sequence[tuple[int, bytes]] | None = None,
    scheme: _Scheme = "blake3",
) -> HashList:
    """Hash token ids page by page, each page chained to the one before it.

    Args:
        tokens: Token ids below 2**32: a sequence of ints, a buffer of integers (numpy array,
            `array.array`), which is the fast way, or a tensor in CPU memory (torch, jax). One
            dimension, any strides.
        page_size: Tokens of one block. A partial last page is dropped.
        salt: Separates tenants: other salt, other hashes. Bytes are taken as UTF-8.
        adapter: Name of the adapter (LoRA) that changes the bytes, if any.
        media: `(position, digest)` of each image or other medium, positions in tokens.
        scheme: `blake3` resists collisions made on purpose; `xxh3` is the fast choice within one
            trust domain; `kvbm` gives the 64-bit values that KVBM computes (no media).

    Raises:
        ArgumentError: `page_size` is 0, a token id does not fit (the message has its position), the
            scheme is not known.
        TypeError: What was given is no sequence or array of whole numbers.
    """

@final
class Layer:
    """One layer of a block: its K and V, as a tensor. Valid as long as its block."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(outer_dim, page_size, inner_dim)`, in elements."""

    @property
    def dtype(self) -> DType:
        """The type of an element."""

    @property
    def device_id(self) -> int:
        """Number of the GPU, where there is one."""

    def view_uint8(self) -> Layer:
        """The same layer as bytes, for consumers that do not know its type.

        The last dimension has `inner_dim * dtype.size_bytes` of them.
        """

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the layer; as `Block.__dlpack__`."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number as DLPack counts them; `(1, 0)` is ordinary memory."""

    def __bool__(self, /) -> bool: ...

@final
class Block:
    """One block: the keys and values of `page_size` tokens over all layers, as a tensor.

    A sequence of its layers. Made by allocating, registering, matching; becomes invalid, and
    false, when its list is released or registered. A registered block is shared and exports
    read-only.

    A writable block may be filled with tokens (`init_sequence` or `continue_sequence`, then
    `add_tokens`, then `commit`); it then has its hash, and `register_blocks` needs none.
    """

    @property
    def block_id(self) -> int:
        """The slot of the block in its tier."""

    @property
    def device_id(self) -> int:
        """Number of the GPU, where there is one."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(num_layers, outer_dim, page_size, inner_dim)`, in elements."""

    @property
    def dtype(self) -> DType:
        """The type of an element."""

    @property
    def tokens(self) -> list[int]:
        """The tokens so far, of a writable block."""

    @property
    def remaining(self) -> int:
        """Tokens that a writable block lacks; a whole page before it has a sequence."""

    @property
    def is_complete(self) -> bool:
        """Whether tokens and bytes are final: committed, or registered."""

    def sequence_hash(self) -> SequenceHash | None:
        """What the block is registered under, or the hash of its committed tokens; else `None`."""

    def init_sequence(
        self,
        salt: str | bytes | None = None,
        *,
        adapter: str | None = None,
        media: Sequence[tuple[int, bytes]] | None = None,
        scheme: _Scheme = "blake3",
    ) -> None:
        """Start a sequence of tokens with this block; the arguments are those of `hash_tokens`.

        Raises:
            BlockManagerError: The block is complete.
        """

    def continue_sequence(self, previous: Block) -> None:
        """Continue the sequence of `previous`, which must be full and not registered yet.

        Raises:
            BlockManagerError: `previous` has no sequence or lacks tokens; this block is complete.
        """

    def add_token(self, token: int) -> None:
        """Add one token.

        Raises:
            ArgumentError: The page is full, or this is no token id.
            BlockManagerError: The block has no sequence, or is complete.
        """

    def add_tokens(self, tokens: _Tokens) -> None:
        """Add tokens, all or none; as `add_token`."""

    def pop_token(self) -> int | None:
        """Take the last token off; `None` when there is none."""

    def pop_tokens(self, n: int) -> None:
        """Take the last `n` tokens off, or all if there are fewer."""

    def commit(self) -> SequenceHash:
        """Declare tokens and bytes final; the block has its hash from now on.

        Raises:
            BlockManagerError: The block lacks tokens, or was committed before.
        """

    def view_uint8(self) -> Block:
        """The same block as bytes, for consumers that do not know its type.

        The last dimension has `inner_dim * dtype.size_bytes` of them.
        """

    def to_list(self) -> list[Layer]:
        """The layers, as a list."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the block to `np.from_dlpack` and its like, without a copy.

        The export keeps the slot: it returns to the pool when the last handle and the last export
        are gone. It may be dropped on any thread. A consumer that ignores the read-only flag (torch
        does) can write into a registered block, which others share: let it not.

        Args:
            stream: `None`; ordinary memory has no streams.
            max_version: The newest DLPack that the consumer knows; `None` gives a capsule without
                version and flags.
            dl_device: Where the tensor is wanted: `None` or `(1, 0)`.
            copy: `True` gives a writable copy that keeps no slot; otherwise nothing is copied.

        Raises:
            BufferError: A registered block was asked for in a capsule without a version, which
                cannot say read-only; the device is another one; no one strided tensor describes the
                block (its layers still work).
            BlockManagerError: The block is no longer valid.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number as DLPack counts them; `(1, 0)` is ordinary memory."""

    def __bool__(self, /) -> bool: ...
    def __len__(self, /) -> int: ...
    def __getitem__(self, layer: int, /) -> Layer: ...
    def __iter__(self, /) -> Iterator[Layer]: ...

@final
class BlockList:
    """Blocks that are held together: a sequence, and a context manager that releases them.

    True while it holds a block. Blocks are made when they are asked for. A slice shares its blocks
    with the list that it was cut from: what releases or registers them through one makes them
    invalid in both. Blocks whose list is forgotten go back by themselves, once nothing refers to
    them.
    """

    @property
    def block_ids(self) -> list[int]:
        """The slots of the blocks, in order."""

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """`(len, num_layers, outer_dim, page_size, inner_dim)`, in elements."""

    @property
    def dtype(self) -> DType:
        """The type of an element."""

    @property
    def device_id(self) -> int:
        """Number of the GPU, where there is one."""

    def release(self) -> None:
        """Give the blocks back, last first, so that a chain loses its end before its beginning.

        Registered blocks stay matchable until they are evicted. A second call does nothing.
        """

    def to_list(self) -> list[Block]:
        """The blocks, as a list."""

    def view_uint8(self) -> BlockList:
        """The same blocks as bytes, for consumers that do not know their type."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the blocks as one tensor; as `Block.__dlpack__`.

        Raises:
            BufferError: The blocks are not evenly spaced in ascending order.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number as DLPack counts them; `(1, 0)` is ordinary memory."""

    def __bool__(self, /) -> bool: ...
    def __len__(self, /) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Block: ...
    @overload
    def __getitem__(self, index: slice, /) -> BlockList: ...
    def __iter__(self, /) -> Iterator[Block]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class BlockPool:
    """The blocks of one tier: who is where. At every instant each slot is in exactly one state."""

    def total_blocks(self) -> int:
        """Slots of the tier."""

    def available_blocks(self) -> int:
        """Slots that an allocation could have now: free, and registered but held by nobody."""

    def usage(self) -> float:
        """`1 - available / total`."""

    def allocate_blocks(self, n: int) -> BlockList:
        """Take `n` writable blocks, evicting unheld ones where none is free: all or nothing.

        Their bytes are zero at the first use of a slot, afterwards what was in it last, unless the
        manager was made with `zero_on_allocate`.

        Raises:
            NotEnoughBlocksError: Fewer than `n` are available; the message states both numbers.
        """

    async def allocate_blocks_async(self, n: int) -> BlockList:
        """`allocate_blocks`, to await; wiping many blocks takes place on another thread."""

    def register_blocks(
        self, blocks: _Blocks, hashes: _Hashes | None = None, *, allow_aliases: bool = False
    ) -> BlockList:
        """Publish filled blocks under their hashes, parent before child.

        `blocks` become invalid; what is returned stands for them. Refused blocks stay what they
        were.

        Args:
            blocks: Writable blocks of this pool.
            hashes: One for each block, in the order of the sequence; `None` takes the hashes of the
                tokens that the blocks were filled with.
            allow_aliases: Register blocks although arrays that can write them are alive. Whoever
                writes then changes what others share.

        Raises:
            ArgumentError: The numbers of blocks and hashes differ, or a hash is another than that
                of the block's own tokens.
            BlockManagerError: A block is not writable, has no hash, or still has a writable export.
        """

    async def register_blocks_async(
        self, blocks: _Blocks, hashes: _Hashes | None = None, *, allow_aliases: bool = False
    ) -> BlockList:
        """`register_blocks`, to await. Once it has begun it is completed."""

    def match_sequence_hashes(self, hashes: _Hashes) -> BlockList:
        """Find and hold the longest prefix of `hashes` that this tier has; perhaps nothing."""

    async def match_sequence_hashes_async(self, hashes: _Hashes) -> BlockList:
        """`match_sequence_hashes`, to await."""

@final
class Match:
    """The longest prefix that was found, held until it is onboarded, released or dropped.

    `len()` is the number of blocks found. Blocks of lower tiers in it are candidates: a hit is what
    arrives verified.
    """

    @property
    def counts(self) -> dict[str, int]:
        """Blocks by the fastest tier that has them: `{"device": 3, "host": 5}`."""

    @property
    def asked(self) -> int:
        """Blocks that were asked for."""

    def release(self) -> None:
        """Let go of the blocks. A second call does nothing."""

    def __len__(self, /) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Transfer:
    """A copy under way. It ends in its own time; dropping this neither waits nor cancels.

    In an asyncio event loop `await transfer` is `result()`. Cancelling the await, by
    `asyncio.timeout` too, cancels the transfer; `asyncio.shield` protects it.
    """

    def result(self, timeout: float | None = None) -> list[str]:
        """Wait for the end and return a status per block, in order: `"ok"`, or what went wrong.

        Args:
            timeout: Seconds to wait; `None` waits until the end, which has a deadline of its own.

        Raises:
            WaitTimeoutError: The copy has not ended yet; it goes on. It is a `TimeoutError`.
        """

    async def result_async(self, timeout: float | None = None) -> list[str]:
        """`result`, to await. Cancelling the await cancels the transfer; `timeout` lets it go on.

        Args:
            timeout: Seconds to wait; `None` waits until the end, which has a deadline of its own.

        Raises:
            WaitTimeoutError: The copy has not ended yet; it goes on. It is a `TimeoutError`.
        """

    def __await__(self) -> Generator[Any, None, list[str]]:
        """Await a status per block; cancelling the await cancels the transfer."""

    def done(self) -> bool:
        """Whether every block has its status."""

    def cancel(self) -> None:
        """Give up what has not arrived. It is over at once; copies under way end in background."""

    def __len__(self, /) -> int: ...

@final
class BlockManager:
    """Blocks in tiers: allocate, register, look up, offload, onboard.

    The device tier is GPU memory; on a machine with no GPU it is ordinary memory, and `status()`
    says so; or it lies in tensors that are there already. Memory is committed when it is first
    touched, and zero until then.
    """

    def __new__(
        cls,
        num_layers: int,
        page_size: int,
        inner_dim: int,
        dtype: DType | str = ...,
        device_id: int = 0,
        *,
        outer_dim: int = 2,
        device_blocks: int | None = None,
        host_blocks: int | None = None,
        disk: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        remote: object = None,
        eviction: _Eviction = "lru",
        offload_policy: _OffloadPolicy = "write_through",
        model: str | None = None,
        revision: str | None = None,
        adapter: str | None = None,
        worker_id: int = 0,
        prefault: bool = False,
        zero_on_allocate: bool = False,
        strict: bool = False,
        device_tensors: _Tensors | None = None,
        axes: Sequence[_Axis] | None = None,
        memory_order: Sequence[_Axis] | None = None,
    ) -> Self:
        """Make a manager.

        One block has `num_layers * outer_dim * page_size * inner_dim` elements. The environment is
        not looked at: see `from_env`.

        Args:
            num_layers: Layers of the model, 1 to 128.
            page_size: Tokens of one block, 1 to 1024.
            inner_dim: Elements of one token in one layer and half: KV heads times head size, 1 to
                32768.
            dtype: Type of an element; FP16 where nothing is said.
            device_id: Number of the GPU, where there is one.
            outer_dim: 2 where K and V lie apart, 1 where one tensor holds both (MLA).
            device_blocks: Blocks of the device tier, 0 for none; `None` takes a default that fits
                the machine.
            host_blocks: Blocks of the host tier, likewise.
            disk: The disk tier, a dict like `{"dir": "/mnt/nvme/cache", "bytes": "500 GiB"}`, with
                the other keys of the settings `disk.*`; a list of drives, each with `dir`, `bytes`
                (or `blocks`) and, if you like, `write_bytes_per_day`; `None` for none.
            remote: The remote tier, which this version does not have: `None`.
            eviction: Which unheld block gives way when a tier is full, in every tier.
            offload_policy: Whether registered blocks go down by themselves, or by `offload` alone.
            model: Name of the model. With `revision` and `adapter` it keeps stored blocks of
                different models apart.
            revision: Revision or digest of the weights.
            adapter: Adapter that is merged into the weights.
            worker_id: Number of this worker in events and figures.
            prefault: Commit all memory now, in parallel, instead of at first touch.
            zero_on_allocate: Wipe a slot also when it is used again, which costs a pass over it.
            strict: Treat warnings about the settings as errors.
            device_tensors: The device tier lies in these tensors (an engine's own cache) instead of
                memory of its own: one for all layers, one for each, or a pair (K, V) for each.
                Writable, in host memory, through DLPack: of `dtype`, or of integers of its width,
                or of bytes. Their blocks are the tier's, so `device_blocks` is not stated. They are
                kept until the last block, copy and manager is gone, and given back on a Python
                thread: when the manager is dropped, at the next call or at the exit.
            axes: What each dimension of a tensor counts: `layer`, `block`, `outer` (K and V),
                `token`, `head`, `element`. Without it the sizes of the model decide, where they
                leave one reading.
            memory_order: The axes by stride, largest first, beside `axes` or instead of them.

        Raises:
            ConfigError: A value is out of range or unknown; every problem is named at once. Or a
                tensor is read-only, elsewhere, of other blocks, or can be read in two ways.
            StorageError: The memory could not be had.
        """

    @classmethod
    def from_config(
        cls,
        config: str | os.PathLike[str] | Mapping[str, Any],
        *,
        device_id: int = 0,
        zero_on_allocate: bool = False,
        device_tensors: _Tensors | None = None,
        axes: Sequence[_Axis] | None = None,
        memory_order: Sequence[_Axis] | None = None,
    ) -> Self:
        """Make a manager from a TOML file, or from a dict of the same shape.

        What no file can hold is an argument, as for the constructor.

        Raises:
            ConfigError: The file cannot be read, or a setting is unknown or impossible.
            StorageError: The memory could not be had.
        """

    @classmethod
    def from_env(
        cls,
        *,
        device_id: int = 0,
        zero_on_allocate: bool = False,
        device_tensors: _Tensors | None = None,
        axes: Sequence[_Axis] | None = None,
        memory_order: Sequence[_Axis] | None = None,
    ) -> Self:
        """Make a manager from the variables `DYNAMO_LLM_*`, over the file in `DYNAMO_LLM_CONFIG`.

        What no variable can hold is an argument, as for the constructor.

        Unknown variables with that prefix are warnings in `findings`.

        Raises:
            ConfigError: A setting is impossible, or the file is.
            StorageError: The memory could not be had.
        """

    @property
    def block_size(self) -> int:
        """Tokens of one block: the `page_size` given."""

    @property
    def findings(self) -> list[dict[str, str]]:
        """What was decided or noticed at the start.

        Each has `severity`, `field`, `value`, `message` and `remedy`.
        """

    def allocate_blocks(self, n: int) -> BlockList:
        """Take `n` writable blocks of the device tier; see `BlockPool.allocate_blocks`."""

    async def allocate_blocks_async(self, n: int) -> BlockList:
        """`allocate_blocks`, to await; wiping many blocks takes place on another thread."""

    def get_device_pool(self) -> BlockPool | MaybeNone:
        """The device tier; `None` where it is off."""

    def get_host_pool(self) -> BlockPool | MaybeNone:
        """The host tier; `None` where it is off."""

    def get_disk_pool(self) -> BlockPool | MaybeNone:
        """The disk tier; `None` where it is off."""

    def lookup(self, hashes: _Hashes) -> Match:
        """Find and hold the longest prefix of `hashes` over all tiers; perhaps nothing."""

    async def lookup_async(self, hashes: _Hashes) -> Match:
        """`lookup`, to await."""

    def onboard(
        self,
        source: Match | _Hashes,
        *,
        skip: int = 0,
        into: _Blocks | None = None,
        deadline: float | None = None,
    ) -> BlockList:
        """Bring a prefix up to the device tier, verified, and return what arrived.

        A block that fails its verification, or has no room on the device, ends the prefix: it is a
        miss, never handed out. Why blocks failed is counted in `status()["edges"]`.

        Args:
            source: A `Match`, which is used up, or hashes to look up.
            skip: Blocks at the start that the caller has already: neither copied nor returned.
            into: Writable device blocks to copy into, in order. Those that are used become invalid,
                the others stay.
            deadline: Seconds from now after which to return what has arrived; `None` takes the
                configured one.

        Raises:
            BlockManagerError: The match was used up or released; there is no device tier.
        """

    async def onboard_async(
        self,
        source: Match | _Hashes,
        *,
        skip: int = 0,
        into: _Blocks | None = None,
        deadline: float | None = None,
    ) -> BlockList:
        """`onboard`, to await. Cancelling the await gives up what has not arrived.

        Copies under way end in the background, and their blocks can then be matched; blocks of
        `into` that were not begun with stay writable.
        """

    def offload(self, blocks: _Blocks, to: Literal["host", "disk"] = "host") -> Transfer:
        """Start copying registered blocks of the device or the host tier down.

        Returns at once: `await manager.offload(blocks)` awaits the copies, and the blocks may be
        released. Blocks that are there already count as done. What is done `to="disk"` survives the
        death of the process.

        Raises:
            BlockManagerError: A block is not registered, they are not all of one tier of this
                manager, or `to` is off or not below that tier.
        """

    def reset(self) -> None:
        """Forget every block in every tier.

        What is still held stays readable for its holders and is found by nobody; what was allocated
        before cannot be registered any more.
        """

    async def reset_async(self) -> None:
        """`reset`, to await. Once it has begun it is completed."""

    def set_weights_version(self, version: str) -> int:
        """Say that the engine computes with other weights from now on.

        As if the manager had been made with `revision=version`, without taking it down: for engines
        that swap weights in place. Blocks of before are found by nobody any more, in no tier; what
        is still held stays readable for its holders. On disk they stay and are the first to go when
        room is needed, and blocks that were stored under `version`, now or by an earlier process,
        are found again. Nothing happens where the version is in force already.

        Args:
            version: What the weights are called: a step, a revision, a digest.

        Returns:
            How many blocks of that version were found on disk.

        Raises:
            ConfigError: The version is empty.
            BlockManagerError: A drive did not answer in time. The version is in force all the same;
                that drive finds and takes no blocks until another call, or a store that comes by,
                has read what is on it.
        """

    async def set_weights_version_async(self, version: str) -> int:
        """`set_weights_version`, to await. Once it has begun it is completed.

        Args:
            version: What the weights are called: a step, a revision, a digest.

        Returns:
            How many blocks of that version were found on disk.
        """

    def status(self) -> dict[str, Any]:
        """What is in force and what was counted.

        `tiers` (storage, layout, sizes, slots by state, hits), `drives` (bytes on each and written,
        hits, what its budget has left), `edges` (blocks and bytes moved, failures by reason),
        `latency_us`, `settings` with their sources, `findings`, and the shape
        of a block. Printed, the figures are tables.
        """

    def metrics(self) -> str:
        """The counters as OpenMetrics text, for a `/metrics` page."""

    def close(self, timeout: float | None = None) -> int:
        """End the verbs, and wait for what is on its way down.

        Memory is unmapped when the last block and export is gone. A second call does nothing.

        Args:
            timeout: Seconds to wait; `None` takes the deadline of copies.

        Returns:
            How many blocks were not down when time was up; they are dropped.
        """

    async def close_async(self, timeout: float | None = None) -> int:
        """`close`, to await. Cancelling the await closes at once.

        Args:
            timeout: Seconds to wait; `None` takes the deadline of copies.

        Returns:
            How many blocks were not down when time was up; they are dropped.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def replay(
    path: str,
    *,
    policy: str,
    device_blocks: str | None,
    host_blocks: str | None,
    disk: str | None,
    disk_blocks: str | None,
    restart_every: int | None,
    bytes_per_block: int,
    verify: bool,
    limit: int | None,
    format: str | None,
    progress: Callable[[int, int], object] | None,
) -> str:
    """Replay a trace with real bytes: the work of `dynamo-llm replay`.

    Args:
        path: The trace, plain or gzip.
        policy: Eviction policy of every tier.
        device_blocks: Size of the device tier, `"1000"` or `"5%"` of the trace's unique blocks
            rounded down; `None` is 5 %.
        host_blocks: Size of the host tier, likewise; `None` is 20 %, `"0"` none.
        disk: Directory of the disk tier; `None` for none. What it holds already counts.
        disk_blocks: Size of the disk tier, likewise; `None` is 100 %.
        restart_every: Requests after which the manager is shut down and made anew; `None` for
            never.
        bytes_per_block: Bytes of one block.
        verify: Check every byte of every block handed out.
        limit: Stop after so many requests.
        format: `mooncake` or `lmcache`; `None` tells it from the content.
        progress: Called on this thread about ten times a second with requests done and in all.
            What it raises, `KeyboardInterrupt` too, ends the replay and passes through.

    Returns:
        A JSON object: `trace`, `policy`, `requests`, `cut_requests` (longer than the device tier
        and served up to that), `blocks`, `unique_blocks`, `bytes_per_block`, `hit_blocks`,
        `hit_rate` (percent of all blocks), `capacity_blocks` {tier: n}, `hits` {tier: n}, `bytes`
        {edge: n} and `bandwidth` {edge: bytes per second of copying} with edges as
        `device->host`, `failures` {edge: {reason: blocks}} (copies that failed), `verified_blocks`,
        `verify_failures`, `latency_us` {verb: {`p50`, `p99`}} (null for a verb never used),
        `evictions` {tier: n}, `disk_written_bytes`, `disk_written_bytes_per_hit`, `restarts`,
        `seconds`, `timeline`: cumulative samples in order, each {`requests`, `blocks`, `hits`
        {tier: n}}.

    Raises:
        ConfigError: An argument or the trace cannot be used; the message says which line of it.
        StorageError: The tiers do not fit into memory.
        OSError: The trace cannot be read.
    """

def disk_inspect(path: str) -> str:
    """Look into a directory of the disk tier: the work of `dynamo-llm disk inspect`.

    Returns:
        A JSON object: `format_version`, `fingerprint` (of most blocks; null where there are none),
        `fingerprints` (a list of {`digest`, `label`, `blocks`}), `generation`, `slots`, `blocks`,
        `bytes`, `dropped` {reason: records}, `sets` (a list, one for each size of block).

    Raises:
        ConfigError: It cannot be read, or is no directory of a disk tier.
    """

def disk_verify(path: str, *, progress: Callable[[int, int], object] | None) -> str:
    """Look into a directory of the disk tier and verify every block in it.

    Args:
        path: The directory.
        progress: Called on this thread about ten times a second with blocks done and in all. What
            it raises, `KeyboardInterrupt` too, ends the work and passes through.

    Returns:
        What `disk_inspect` returns, with `verified` and `corrupt` (blocks whose bytes fail).

    Raises:
        ConfigError: It cannot be read, or is no directory of a disk tier.
    """

def replay_index(
    path: str,
    *,
    policies: Sequence[str],
    capacities: Sequence[str],
    format: str | None,
    limit: int | None,
    progress: Callable[[int, int], object] | None,
) -> str:
    """Replay a trace through the index alone, once for each policy and capacity.

    Args are those of `replay`; `capacities` are spelled like its tier sizes.

    Returns:
        A JSON object whose `points` are objects with `trace`, `policy`, `capacity_blocks`,
        `unique_blocks`, `blocks`, `hit_blocks`, `hit_rate` (percent of all blocks), `seconds`, by
        capacity, then by policy, in the order given.

    Raises:
        ConfigError: An argument or the trace cannot be used.
        OSError: The trace cannot be read.
    """

@final
class _Bell:
    """What an event loop listens to."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int:
        """The descriptor, readable when something has ended."""

    def drain(self) -> list[int]:
        """The tokens of what has ended since the last call."""

@final
class _Operation:
    """Something to be done. Dropping it before its end gives it up, like cancelling it."""

    def poll(self, bell: _Bell, token: int) -> bool:
        """Go on with it. Whether it is over; where it is not, `bell` rings with `token` then."""

    def result(self) -> Any:
        """What came out. Where it is not over, the caller's time is, and it goes on without it."""

    def cancel(self) -> None:
        """Give it up; what it would have brought is let go of."""

def _drain_log() -> None:
    """Hand on what the core had to say."""
