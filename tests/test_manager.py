"""The manager from Python: how it is made, what it refuses, its verbs over all tiers, its end."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_llm import (
    ArgumentError,
    BlockList,
    BlockManager,
    BlockManagerError,
    BlockPool,
    ConfigError,
    DType,
    DynamoError,
    HashList,
    StorageError,
    hash_tokens,
)
from support import environment

PAGE = 4
SMALL: dict[str, Any] = {"device_blocks": 8, "host_blocks": 32}


@pytest.fixture
def manager() -> Iterator[BlockManager]:
    """Eight small blocks on the device, thirty-two on the host; nothing goes down by itself."""
    with BlockManager(2, PAGE, 8, **SMALL, offload_policy="manual") as manager:
        yield manager


def pool(manager: BlockManager, tier: str = "device") -> BlockPool:
    """A tier that is on."""
    found = getattr(manager, f"get_{tier}_pool")()
    assert isinstance(found, BlockPool)
    return found


def store(manager: BlockManager, hashes: HashList, mark: int = 1) -> BlockList:
    """Registered device blocks; block `n` of them is full of `mark + n`."""
    blocks = manager.allocate_blocks(len(hashes))
    for nth, block in enumerate(blocks):
        np.from_dlpack(block)[:] = mark + nth
    return pool(manager).register_blocks(blocks, hashes)


def marks(blocks: BlockList) -> list[int]:
    """What blocks are full of."""
    return [int(np.unique(np.from_dlpack(block)).item()) for block in blocks]


def fill(manager: BlockManager) -> None:
    """Drop every unheld block from the device."""
    with manager.allocate_blocks(pool(manager).available_blocks()):
        pass


# --- made from arguments ---


@pytest.mark.parametrize(
    "field", ["num_layers", "page_size", "inner_dim", "outer_dim", "device_blocks", "host_blocks"]
)
@pytest.mark.parametrize("value", [-1, 2**50, 2**63, 2**70, -(2**70)])
def test_impossible_numbers_name_the_argument(field: str, value: int) -> None:
    arguments: dict[str, Any] = {"num_layers": 2, "page_size": 16, "inner_dim": 64, field: value}
    with pytest.raises(DynamoError, match=rf"{field} = {value}\b") as caught:
        BlockManager(**arguments)
    assert isinstance(caught.value, ConfigError | StorageError)


@pytest.mark.parametrize("field", ["num_layers", "device_blocks", "device_id", "worker_id"])
@pytest.mark.parametrize("value", [1.5, "8", [], object()])
def test_numbers_that_are_none(field: str, value: Any) -> None:
    arguments: dict[str, Any] = {"num_layers": 2, "page_size": 16, "inner_dim": 64, field: value}
    with pytest.raises(TypeError, match=f"{field} = "):
        BlockManager(**arguments)


def test_a_number_too_long_to_print_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="num_layers"):
        BlockManager(10**5000, 16, 64)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": "fp17"}, r"dtype.*fp17.*bf16"),
        ({"eviction": "random"}, r"eviction.*random.*lru"),
        ({"offload_policy": "never"}, r"offload_policy.*never.*manual"),
        ({"disk": "/tmp/blocks"}, r"disk.*expected a table"),  # noqa: S108
        ({"disk": {"dir": "blocks"}}, r"disk.bytes.*state disk.bytes"),
        ({"disk": {"dir": "x", "bytes": 1, "write_bytes_per_day": "fast"}}, r"write_bytes_per_day"),
        ({"disk": [{"dir": "x", "bytes": 1}, {"dir": "x/", "bytes": 1}]}, r"in the list twice"),
        ({"disk": [{"dir": "x"}]}, r"drive 1: bytes: not stated"),
        ({"remote": {"url": "s3://x"}}, r"remote.*not part of this version"),
        ({"device_id": -1}, r"device_id = -1"),
        ({"device_id": 2**40}, r"device_id = 1099511627776"),
        ({"model": " "}, r"model"),
        ({"device_blocks": 0, "host_blocks": 0}, r"device_blocks, host_blocks"),
        ({"device_blocks": 8, "host_blocks": 2, "strict": True}, r"host_blocks = 2"),
        ({"worker_id": -1}, r"worker_id"),
    ],
)
def test_settings_that_cannot_be(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BlockManager(2, 16, 64, **arguments)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)num_layers.*page_size.*inner_dim"):
        BlockManager(0, 0, 0)


def test_misspelt_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="device_block"):
        BlockManager(2, 16, 64, device_block=8)  # type: ignore[call-arg]


def test_more_memory_than_there_is() -> None:
    with pytest.raises(StorageError, match=r"device_blocks.*requested.*available") as caught:
        BlockManager(128, 1024, 32768, device_blocks=2**20)
    assert isinstance(caught.value, MemoryError)


def test_types_are_taken_by_name_too() -> None:
    for dtype in (DType.BF16, "bf16", "BF16"):
        with BlockManager(2, PAGE, 8, dtype, **SMALL) as manager:
            assert manager.allocate_blocks(1)[0].dtype == DType.BF16


def test_device_id_is_kept_although_there_is_no_gpu() -> None:
    with BlockManager(2, PAGE, 8, device_id=3, **SMALL) as manager:
        block = manager.allocate_blocks(1)[0]
        assert block.device_id == block[0].device_id == 3
        assert block.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("prefault", [False, True])
def test_memory_is_zero_at_first(prefault: bool) -> None:
    with BlockManager(2, PAGE, 8, **SMALL, prefault=prefault) as manager:
        assert not np.from_dlpack(manager.allocate_blocks(8)).any()


def test_tiers_that_are_off() -> None:
    hashes = hash_tokens(range(PAGE), PAGE)
    with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=0) as manager:
        assert manager.get_host_pool() is None
        assert manager.get_disk_pool() is None
        blocks = store(manager, hashes)
        with pytest.raises(BlockManagerError, match="host"):
            manager.offload(blocks)
        assert manager.onboard(hashes).block_ids == blocks.block_ids
        assert manager.lookup(hashes).counts == {"device": 1}
    with BlockManager(2, PAGE, 8, device_blocks=0, host_blocks=8) as manager:
        assert manager.get_device_pool() is None
        with pytest.raises(BlockManagerError, match="device tier is off"):
            manager.allocate_blocks(1)
        with pytest.raises(BlockManagerError, match="device tier is off"):
            manager.onboard(hashes)
        host = manager.get_host_pool()
        assert host is not None
        blocks = host.register_blocks(host.allocate_blocks(1), hashes)
        with pytest.raises(BlockManagerError, match="no disk tier"):
            manager.offload(blocks, to="disk")


# --- made from files, dicts, the environment ---

CONFIG = {
    "model": {"num_layers": 2, "page_size": PAGE, "inner_dim": 8, "dtype": DType.FP32},
    "device": {"blocks": 8, "layout": "layer_separate"},
    "host": {"bytes": "64 KiB", "eviction": "s3fifo"},
    "eviction": "arc",
}

TOML = """
eviction = "arc"
[model]
num_layers = 2
page_size = 4
inner_dim = 8
dtype = "fp32"
[device]
blocks = 8
layout = "layer_separate"
[host]
bytes = "64 KiB"
eviction = "s3fifo"
"""


def test_dict_file_and_environment_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "blocks.toml"
    file.write_text(TOML)
    monkeypatch.setenv("DYNAMO_LLM_CONFIG", str(file))
    made = [
        BlockManager.from_config(CONFIG),
        BlockManager.from_config(file),
        BlockManager.from_config(str(file)),
        BlockManager.from_env(),
    ]
    values = []
    for manager in made:
        status = manager.status()
        values.append({field: it["value"] for field, it in status["settings"].items()})
        assert status["tiers"]["host"]["eviction"] == "s3fifo"
        manager.close()
    assert values == [values[0]] * 4


def test_the_environment_wins_over_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "blocks.toml"
    file.write_text(TOML)
    monkeypatch.setenv("DYNAMO_LLM_CONFIG", str(file))
    monkeypatch.setenv("DYNAMO_LLM_DEVICE_BLOCKS", "5")
    monkeypatch.setenv("DYNAMO_LLM_HOST_BLOKS", "5")
    monkeypatch.setenv("SOMEBODY_ELSES", "no \udcff UTF-8")
    with BlockManager.from_env(zero_on_allocate=True) as manager:
        settings = manager.status()["settings"]
        assert settings["device.blocks"]["value"] == pool(manager).total_blocks() == 5
        assert "DYNAMO_LLM_DEVICE_BLOCKS" in settings["device.blocks"]["source"]
        assert "blocks.toml" in settings["host.eviction"]["source"]
        warning = next(it for it in manager.findings if it["severity"] == "warning")
        assert warning["field"] == "DYNAMO_LLM_HOST_BLOKS"
        assert "DYNAMO_LLM_HOST_BLOCKS" in warning["remedy"]


def test_constructors_do_not_look_at_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMO_LLM_DEVICE_BLOCKS", "5")
    with BlockManager(2, PAGE, 8, **SMALL) as manager:
        assert pool(manager).total_blocks() == 8
    with BlockManager.from_config(CONFIG) as manager:
        assert pool(manager).total_blocks() == 8


def looped() -> dict[str, Any]:
    """A dict that contains itself."""
    loop: dict[str, Any] = {"model": {}}
    loop["model"]["model"] = loop
    return loop


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("/nowhere/blocks.toml", "/nowhere/blocks.toml"),
        ({"modle": {"num_layers": 2}}, r"modle.*model"),
        ({"model": {"num_layer": 2}}, r"num_layer.*num_layers"),
        ({"model": {"num_layers": -1}}, r"model.num_layers = -1"),
        ({"model": {"num_layers": 0}}, r"model.num_layers = 0"),
        ({"model": {"num_layers": 2**70}}, r"model.num_layers = .*1180591620717411303424"),
        ({"model": {"num_layers": 1.5}}, r"model.num_layers = 1.5"),
        ({"model": {"num_layers": True}}, r"model.num_layers = true"),
        ({"model": 7}, r"model = 7"),
        ({"disk": {"dir": "x"}}, r"disk.bytes.*state disk.bytes"),
        ({"device": {"blocks": 8, "bytes": 8}}, r"device.b"),
        (looped(), "nested"),
    ],
)
def test_configurations_that_cannot_be(config: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BlockManager.from_config(config)


@pytest.mark.parametrize("config", [7, None, [], {"model": {"num_layers": object()}}, {1: 2}])
def test_configurations_of_the_wrong_type(config: Any) -> None:
    with pytest.raises(TypeError, match="config"):
        BlockManager.from_config(config)


# --- verbs ---


def test_a_prefix_comes_back_from_wherever_it_is(manager: BlockManager) -> None:
    hashes = hash_tokens(range(6 * PAGE), PAGE)
    blocks = store(manager, hashes)
    assert manager.offload(blocks[:4]).result(10) == ["ok"] * 4
    assert manager.offload(list(blocks[2:4])).result(10) == ["ok"] * 2
    blocks.release()
    fill(manager)
    found = manager.lookup(hashes)
    assert (len(found), found.asked) == (4, 6)
    assert found.counts == {"device": 0, "host": 4}
    with manager.onboard(found) as back:
        assert marks(back) == [1, 2, 3, 4]
        assert [block.sequence_hash() for block in back] == list(hashes[:4])
        assert manager.lookup(hashes).counts == {"device": 4, "host": 0}
    with pytest.raises(BlockManagerError, match="used up"):
        manager.onboard(found)


@pytest.mark.parametrize("form", [HashList, list, lambda hashes: [int(h) for h in hashes]])
def test_hashes_are_onboarded_directly(manager: BlockManager, form: Any) -> None:
    hashes = hash_tokens(range(3 * PAGE), PAGE)
    manager.offload(store(manager, hashes)).result(10)
    fill(manager)
    assert marks(manager.onboard(form(hashes))) == [1, 2, 3]


def test_what_the_caller_has_is_skipped(manager: BlockManager) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    manager.offload(store(manager, hashes)).result(10)
    fill(manager)
    assert marks(manager.onboard(hashes, skip=2)) == [3, 4]
    assert len(manager.onboard(hashes, skip=4)) == 0
    assert len(manager.onboard(hashes, skip=99)) == 0


def test_blocks_come_into_slots_that_were_kept_for_them(manager: BlockManager) -> None:
    hashes = hash_tokens(range(3 * PAGE), PAGE)
    manager.offload(store(manager, hashes)).result(10)
    fill(manager)
    room = manager.allocate_blocks(5)
    ids = room.block_ids
    back = manager.onboard(hashes, into=room)
    assert marks(back) == [1, 2, 3]
    assert back.block_ids == ids[:3]
    assert [bool(block) for block in room] == [False] * 3 + [True] * 2
    assert room[3:].block_ids == ids[3:]
    back.release()
    room.release()
    assert pool(manager).available_blocks() == 8


def test_room_that_cannot_be_used(manager: BlockManager) -> None:
    hashes = hash_tokens(range(3 * PAGE), PAGE)
    manager.offload(store(manager, hashes)).result(10)
    fill(manager)
    room = manager.allocate_blocks(3)
    array = np.from_dlpack(room[0])
    with pytest.raises(BlockManagerError, match="exported"):
        manager.onboard(hashes, into=room)
    del array
    assert all(room)
    with BlockManager(2, PAGE, 8, **SMALL) as other:
        foreign = other.allocate_blocks(3)
        with pytest.raises(BlockManagerError, match="another pool"):
            manager.onboard(hashes, into=foreign)
        assert all(foreign)
    with pytest.raises(TypeError, match="into"):
        manager.onboard(hashes, into=7)  # type: ignore[arg-type]


def test_a_full_device_takes_a_shorter_prefix(manager: BlockManager) -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    manager.offload(store(manager, hashes)).result(10)
    fill(manager)
    with manager.allocate_blocks(6):
        assert marks(manager.onboard(hashes)) == [1, 2]
    assert manager.status()["edges"]["host->device"]["failures"]["no_room"] == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"skip": -1}, ArgumentError),
        ({"skip": 2**70}, ArgumentError),
        ({"skip": 1.5}, TypeError),
        ({"deadline": -1}, ArgumentError),
        ({"deadline": float("nan")}, ArgumentError),
        ({"deadline": "soon"}, TypeError),
        ({"source": 7}, TypeError),
        ({"source": "text"}, TypeError),
        ({"source": [b"short"]}, ArgumentError),
    ],
)
def test_onboard_names_what_it_cannot_take(
    manager: BlockManager, arguments: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = arguments
    name = "hashes" if name == "source" else name
    with pytest.raises(error, match=name):
        manager.onboard(**({"source": [1]} | arguments))


def test_offload_takes_registered_device_blocks_alone(manager: BlockManager) -> None:
    writable = manager.allocate_blocks(1)
    with pytest.raises(BlockManagerError, match="not registered"):
        manager.offload(writable)
    shared = pool(manager).register_blocks(writable, [1])
    with pytest.raises(BlockManagerError, match="no longer valid"):
        manager.offload(writable)
    with pytest.raises(ArgumentError, match=r'to = "tape"'):
        manager.offload(shared, to="tape")  # type: ignore[arg-type]
    with pytest.raises(BlockManagerError, match="no disk tier"):
        manager.offload(shared, to="disk")
    assert manager.offload(shared).result(10) == ["ok"]
    assert manager.offload([]).result() == []
    assert manager.offload(shared[:0]).result() == []
    with pool(manager, "host").match_sequence_hashes([1]) as on_host:
        assert marks(on_host) == [0]
        with pytest.raises(BlockManagerError, match="host"):
            manager.offload(on_host)
    with BlockManager(2, PAGE, 8, **SMALL) as other, pytest.raises(BlockManagerError):
        other.offload(shared)
    with pytest.raises(TypeError, match="blocks"):
        manager.offload(7)  # type: ignore[arg-type]


def test_a_transfer_has_a_status_for_each_block(manager: BlockManager) -> None:
    blocks = store(manager, hash_tokens(range(4 * PAGE), PAGE))
    transfer = manager.offload(blocks)
    assert len(transfer) == 4
    assert transfer.result() == transfer.result(0) == transfer.result(float("inf")) == ["ok"] * 4
    assert transfer.done()
    transfer.cancel()
    assert transfer.result(0) == ["ok"] * 4
    for timeout in (-1, float("nan"), 10**400):
        with pytest.raises(ArgumentError, match="timeout"):
            transfer.result(timeout)
    with pytest.raises(TypeError, match="timeout"):
        transfer.result("x")  # type: ignore[arg-type]


def test_write_through_needs_no_word() -> None:
    hashes = hash_tokens(range(4 * PAGE), PAGE)
    with BlockManager(2, PAGE, 8, **SMALL) as manager:
        store(manager, hashes).release()
        assert manager.offload(manager.onboard(hashes)).result(10) == ["ok"] * 4
        fill(manager)
        assert marks(manager.onboard(hashes)) == [1, 2, 3, 4]


def test_a_match_holds_until_it_is_released(manager: BlockManager) -> None:
    hashes = hash_tokens(range(8 * PAGE), PAGE)
    store(manager, hashes).release()
    with manager.lookup(hashes) as found:
        assert len(found) == 8
        assert pool(manager).available_blocks() == 0
    assert pool(manager).available_blocks() == 8
    found.release()
    assert "released" in repr(found)
    found = manager.lookup(hashes)
    del found
    assert pool(manager).available_blocks() == 8


def test_the_hit_after_a_flood_is_as_long_as_what_was_stored() -> None:
    sentinel = hash_tokens(range(4 * PAGE), PAGE)
    with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=64) as manager:
        manager.offload(store(manager, sentinel)).result(10)
        for flood in range(5):
            noise = hash_tokens(range(1000 * flood + 100, 1000 * flood + 100 + 8 * PAGE), PAGE)
            with store(manager, noise, mark=50) as blocks:
                manager.offload(blocks).result(10)
        assert marks(manager.onboard(sentinel)) == [1, 2, 3, 4]


# --- what it says about itself ---


def test_status_is_plain_data(manager: BlockManager) -> None:
    store(manager, hash_tokens(range(3 * PAGE), PAGE))
    status = manager.status()
    assert json.loads(json.dumps(status)) == status
    assert status["block_shape"] == [2, 2, PAGE, 8]
    assert status["block_bytes"] == 2 * 2 * PAGE * 8 * 2
    assert status["tiers"]["device"]["storage"] == "system"
    assert status["tiers"]["device"]["inactive"] == 3
    assert status["settings"]["device.blocks"] == {"value": 8, "source": "argument"}
    assert any("no GPU" in finding["message"] for finding in status["findings"])
    assert status["findings"] == manager.findings
    assert manager.block_size == PAGE


def test_metrics_are_a_page_for_scrapers(manager: BlockManager) -> None:
    text = manager.metrics()
    assert 'tier="device",state="free"} 8' in text
    assert text.endswith("# EOF\n")


def test_default_sizes_are_stated() -> None:
    with BlockManager(2, PAGE, 8) as manager:
        stated = {finding["field"]: finding for finding in manager.findings}
        assert int(stated["device.blocks"]["value"]) == pool(manager).total_blocks()
        assert "available" in stated["host.blocks"]["message"]


# --- its end ---


def test_after_close_every_verb_refuses() -> None:
    hashes = hash_tokens(range(PAGE), PAGE)
    manager = BlockManager(2, PAGE, 8, **SMALL)
    device, blocks = pool(manager), store(manager, hashes)
    found, writable = manager.lookup(hashes), manager.allocate_blocks(1)
    assert manager.close() == 0
    assert manager.close(timeout=0) == 0
    verbs: list[Callable[[], object]] = [
        lambda: manager.allocate_blocks(1),
        lambda: manager.get_device_pool(),
        lambda: manager.lookup(hashes),
        lambda: manager.onboard(hashes),
        lambda: manager.onboard(found),
        lambda: manager.offload(blocks),
        lambda: manager.reset(),
        lambda: manager.set_weights_version("v2"),
        lambda: device.total_blocks(),
        lambda: device.available_blocks(),
        lambda: device.usage(),
        lambda: device.allocate_blocks(1),
        lambda: device.register_blocks(writable, [1]),
        lambda: device.match_sequence_hashes(hashes),
    ]
    for verb in verbs:
        with pytest.raises(BlockManagerError, match="closed"):
            verb()
    assert marks(blocks) == [1]
    assert manager.status()["closed"]
    assert "closed" in repr(manager)
    assert "closed" in repr(device)
    for handle in (found, blocks, writable):
        handle.release()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "x"])
def test_close_names_a_timeout_that_is_none(manager: BlockManager, timeout: Any) -> None:
    with pytest.raises((ArgumentError, TypeError), match="timeout"):
        manager.close(timeout)
    assert manager.allocate_blocks(1)


def test_close_waits_for_what_is_on_its_way_down() -> None:
    with BlockManager(8, 16, 4096, device_blocks=16, host_blocks=32) as manager:
        hashes = hash_tokens(range(16 * 16), 16)
        store(manager, hashes)
        assert manager.close() == 0
        assert manager.status()["edges"]["device->host"]["blocks"] == 16


def test_pools_and_blocks_outlive_a_manager_that_was_forgotten() -> None:
    device = pool(BlockManager(2, PAGE, 8, **SMALL))
    blocks = device.allocate_blocks(2)
    np.from_dlpack(blocks[0])[:] = 1
    del device
    np.from_dlpack(blocks[1])[:] = 2
    assert marks(blocks) == [1, 2]


def test_an_error_passes_through_the_context(manager: BlockManager) -> None:
    def fail() -> None:
        with manager, manager.allocate_blocks(1), manager.lookup([1]):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    with pytest.raises(BlockManagerError):
        manager.allocate_blocks(1)


@pytest.mark.parametrize("example", ["basic", "disk_tier", "numpy_torch"])
def test_examples_run(example: str) -> None:
    path = Path(__file__).parent.parent / "examples" / f"{example}.py"
    subprocess.run(
        [sys.executable, "-W", "error", str(path)], env=environment(), check=True, timeout=100
    )


def test_blocks_on_disk_outlive_their_manager(tmp_path: Path) -> None:
    disk = {"dir": str(tmp_path / "cache"), "blocks": 16}
    hashes = hash_tokens(list(range(64)), 16)

    def made() -> BlockManager:
        return BlockManager(2, 16, 64, device_blocks=8, host_blocks=0, disk=disk)

    with made() as manager:
        blocks = manager.allocate_blocks(len(hashes))
        for number, block in enumerate(blocks):
            np.from_dlpack(block)[...] = number + 1
        device = manager.get_device_pool()
        assert device is not None
        registered = device.register_blocks(blocks, hashes)
        assert set(manager.offload(registered, to="disk").result(10)) == {"ok"}
    with made() as manager:
        disk_pool = manager.get_disk_pool()
        assert disk_pool is not None
        assert disk_pool.total_blocks() == 16
        with manager.lookup(hashes) as found:
            assert found.counts["disk"] == len(hashes)
        arrived = manager.onboard(hashes)
        assert [float(np.from_dlpack(block).max()) for block in arrived] == [1, 2, 3, 4]
        with pytest.raises(BlockManagerError, match="offloading"):
            disk_pool.allocate_blocks(1)
        assert manager.status()["tiers"]["disk"]["bytes"] > 0
