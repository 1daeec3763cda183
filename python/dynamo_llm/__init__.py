"""KV block manager for LLM inference: tiered, verified, block-level cache reuse.

A *block* is the keys and values of `page_size` tokens over all layers. Blocks are tensors (DLPack),
are found again by the hash of their tokens, and live on the cheapest tier that still pays:

>>> import dynamo_llm
>>> with dynamo_llm.BlockManager(num_layers=2, page_size=16, inner_dim=64) as manager:
...     blocks = manager.allocate_blocks(4)
...     len(blocks)
4

Importing this package starts no thread, touches no device and imports nothing but its own binary.
"""

from dynamo_llm._core import (
    ArgumentError,
    Block,
    BlockList,
    BlockManager,
    BlockManagerError,
    BlockPool,
    ConfigError,
    DType,
    DynamoError,
    HashList,
    Layer,
    Match,
    NotEnoughBlocksError,
    SequenceHash,
    StorageError,
    Transfer,
    WaitTimeoutError,
    __version__,
    hash_tokens,
)

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
    "hash_tokens",
]
