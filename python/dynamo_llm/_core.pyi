"""The compiled core. `dynamo_llm` re-exports what is public; this file is its documentation.

Hashes are taken wherever they go in (`_Hashes`) as a `HashList` or as a sequence of `SequenceHash`,
of 16-byte little-endian `bytes`, or of non-negative ints below 2**128.

Every verb releases the interpreter lock while it waits, and may be called from several threads at
once. After `close()` every verb raises `BlockManagerError`. In a forked child every verb raises
`BlockManagerError` too: start workers with `spawn`, or make the manager after the fork.
"""

from collections.abc import Callable, Iterator, Sequence
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

__version__: str

_Hashes: TypeAlias = HashList | Sequence[SequenceHash] | Sequence[bytes] | Sequence[int]
_Eviction: TypeAlias = Literal["lru", "fifo", "arc", "s3fifo"]

@type_check_only
class _Array(Protocol):
    # numpy declares its buffer to type checkers from Python 3.12 on; this it always has.
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class DynamoError(Exception):
    """The base of every error of this package."""

class ConfigError(DynamoError, ValueError):
    """A setting is impossible or unknown; the message names field, value and remedy."""

class BlockManagerError(DynamoError):
    """The manager or a pool cannot do what was asked now.

    Too few blocks are available, a block is used after its release, the manager is closed.
    """

class StorageError(DynamoError):
    """Memory could not be had or reached; states what was requested, available and the limit."""

@final
class DType:
    """The type of one cache element."""

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

    def __new__(cls, value: int | bytes) -> Self:
        """Take a non-negative int below 2**128 or 16 little-endian bytes.

        Raises:
            ValueError: The int does not fit, or the bytes are not 16.
        """

    def __int__(self, /) -> int: ...
    def __bytes__(self, /) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class HashList:
    """The hashes of one sequence of tokens: one buffer, a sequence of `SequenceHash`.

    Slices share the buffer. The cheapest way to hand hashes to a pool.
    """

    def __len__(self, /) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> SequenceHash: ...
    @overload
    def __getitem__(self, index: slice, /) -> HashList: ...
    def __iter__(self, /) -> Iterator[SequenceHash]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

def hash_tokens(
    tokens: Sequence[int] | Buffer | _Array,
    page_size: int,
    salt: str | bytes | None = None,
    *,
    adapter: str | None = None,
    media: Sequence[tuple[int, bytes]] | None = None,
    scheme: Literal["blake3", "xxh3", "kvbm"] = "blake3",
) -> HashList:
    """Hash token ids page by page, each page chained to the one before it.

    Args:
        tokens: Token ids below 2**32: a sequence of ints, or a buffer of integers (numpy array,
            `array.array`), which is the fast way.
        page_size: Tokens of one block. A partial last page is dropped.
        salt: Separates tenants: other salt, other hashes.
        adapter: Name of the adapter (LoRA) that changes the bytes, if any.
        media: `(position, digest)` of each image or other medium, positions in tokens, ascending.
        scheme: `blake3` resists collisions made on purpose; `xxh3` is the fast choice within one
            trust domain; `kvbm` gives the 64-bit values that KVBM computes (no media).

    Raises:
        ValueError: `page_size` is 0, a token id does not fit, the scheme is not known.
    """

@final
class Block:
    """One block: the keys and values of `page_size` tokens over all layers, as a tensor.

    Made by allocating, registering, matching; becomes invalid when its list is released or
    registered. A registered block is shared and exports read-only.
    """

    @property
    def block_id(self) -> int:
        """The slot of the block in its tier."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(num_layers, outer_dim, page_size, inner_dim)`, in elements."""

    @property
    def dtype(self) -> DType:
        """The type of an element."""

    def sequence_hash(self) -> SequenceHash | None:
        """What the block is registered under; `None` before that."""

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
        are gone.

        Raises:
            BufferError: A registered block was asked for as a legacy capsule, which cannot say
                read-only; the device is another one; the consumer's terms cannot be met.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number as DLPack counts them; `(1, 0)` is ordinary memory."""

@final
class BlockList:
    """Blocks that are held together: a sequence, and a context manager that releases them."""

    @property
    def block_ids(self) -> list[int]:
        """The slots of the blocks, in order."""

    def release(self) -> None:
        """Give the blocks back, last first, so that a chain loses its end before its beginning.

        Registered blocks stay matchable until they are evicted. A second call does nothing.
        """

    def __len__(self, /) -> int: ...
    def __getitem__(self, index: int, /) -> Block: ...
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

        Raises:
            BlockManagerError: Fewer than `n` are available; the message states both numbers.
        """

    def register_blocks(self, blocks: BlockList, hashes: _Hashes) -> BlockList:
        """Publish filled blocks under their hashes, parent before child; `blocks` becomes invalid.

        Raises:
            ValueError: The numbers of blocks and hashes differ.
            BlockManagerError: A block is not writable or still has a writable export.
        """

    def match_sequence_hashes(self, hashes: _Hashes) -> BlockList:
        """Find and hold the longest prefix of `hashes` that this tier has; perhaps nothing."""

@final
class Match:
    """The longest prefix that was found, held until it is onboarded, released or dropped."""

    @property
    def counts(self) -> dict[str, int]:
        """Blocks by the fastest tier that has them: `{"device": 3, "host": 5}`."""

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
    """A copy under way. It ends in its own time; dropping this neither waits nor cancels."""

    def result(self, timeout: float | None = None) -> list[str]:
        """Wait for the end and return a status per block, in order: `"ok"`, or what went wrong.

        Args:
            timeout: Seconds to wait; `None` waits until the end, which has a deadline of its own.

        Raises:
            TimeoutError: The copy has not ended yet; it goes on.
        """

@final
class BlockManager:
    """Blocks in tiers: allocate, register, look up, offload, onboard.

    The device tier is GPU memory; on a machine with no GPU it is ordinary memory, and `status()`
    says so. Memory is committed when it is first touched, and zero until then.
    """

    def __new__(
        cls,
        num_layers: int,
        page_size: int,
        inner_dim: int,
        dtype: DType = ...,
        device_id: int = 0,
        *,
        outer_dim: int = 2,
        device_blocks: int | None = None,
        host_blocks: int | None = None,
        eviction: _Eviction = "lru",
    ) -> Self:
        """Make a manager.

        One block has `num_layers * outer_dim * page_size * inner_dim` elements.

        Args:
            num_layers: Layers of the model.
            page_size: Tokens of one block.
            inner_dim: Elements of one token in one layer and half: KV heads times head size.
            dtype: Type of an element; FP16 where nothing is said.
            device_id: Number of the GPU, where there is one.
            outer_dim: 2 where K and V lie apart, 1 where one tensor holds both (MLA).
            device_blocks: Blocks of the device tier; `None` takes a default that fits the machine.
            host_blocks: Blocks of the host tier, 0 for none; `None` as above.
            eviction: Which unheld block gives way when a tier is full, in every tier.

        Raises:
            ConfigError: A value is out of range or the tiers do not fit into memory.
            StorageError: The memory could not be had.
        """

    @property
    def block_size(self) -> int:
        """Tokens of one block: the `page_size` given."""

    def allocate_blocks(self, n: int) -> BlockList:
        """Take `n` writable blocks of the device tier; see `BlockPool.allocate_blocks`."""

    def get_device_pool(self) -> BlockPool | MaybeNone:
        """The device tier; `None` where it is off."""

    def get_host_pool(self) -> BlockPool | MaybeNone:
        """The host tier; `None` where it is off."""

    def lookup(self, hashes: _Hashes) -> Match:
        """Find and hold the longest prefix of `hashes` over all tiers; perhaps nothing."""

    def onboard(self, source: Match | _Hashes) -> BlockList:
        """Bring a prefix up to the device tier, verified, and return what arrived.

        A block that fails its verification ends the prefix: it is a miss, never handed out.
        A `Match` is used up.

        Raises:
            BlockManagerError: The device tier has too few available blocks.
        """

    def offload(self, blocks: BlockList, to: Literal["host"] = "host") -> Transfer:
        """Start copying registered blocks down; the blocks may be released at once.

        Raises:
            BlockManagerError: A block is not registered, or the tier is off.
        """

    def reset(self) -> None:
        """Forget every block in every tier; what is still held stays valid and unregistered."""

    def status(self) -> dict[str, Any]:
        """What is in force: tiers with their storage and sizes, slots by state, counters."""

    def close(self, timeout: float | None = None) -> None:
        """End the verbs, and flush what is on its way down within `timeout` seconds.

        Memory is unmapped when the last export is gone. A second call does nothing.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
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
        bytes_per_block: Bytes of one block.
        verify: Check every byte of every block handed out.
        limit: Stop after so many requests.
        format: `mooncake` or `lmcache`; `None` tells it from the content.
        progress: Called on this thread about ten times a second with requests done and in all.
            What it raises, `KeyboardInterrupt` too, ends the replay and passes through.

    Returns:
        A JSON object: `trace`, `policy`, `requests`, `cut_requests` (longer than the device tier
        and served up to that), `blocks`, `hit_blocks`, `hit_rate` (percent of all blocks),
        `capacity_blocks` {tier: n}, `hits` {tier: n}, `bytes` {edge: n} and `bandwidth` {edge:
        bytes per second of copying} with edges as `device->host`, `verified_blocks`,
        `verify_failures`, `latency_us` {verb: {`p50`, `p99`}} (null for a verb never used),
        `evictions` {tier: n}, `restarts`, `seconds`, `timeline`: cumulative samples in order, each
        {`requests`, `blocks`, `hits` {tier: n}}.

    Raises:
        ConfigError: An argument or the trace cannot be used; the message says which line of it.
        StorageError: The tiers do not fit into memory.
        OSError: The trace cannot be read.
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
