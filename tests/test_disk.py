"""The disk tier on several drives, from Python and from the command line.

Where blocks go, what is there after a restart, what was written for it, and who is refused.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_llm import (
    BlockManager,
    ConfigError,
    HashList,
    StorageError,
    hash_tokens,
)
from support import TRACES, Cli, environment, result_of

PAGE = 4
CHAIN = 4
"""Blocks of a chain."""
STORE = 4096 + 4096 + 256
"""Bytes that a store of a small block writes: payload and sums, a page each, and a record."""


def drives(folder: Path, **more: Any) -> list[dict[str, Any]]:
    """Two drives with room for 64 blocks each."""
    return [{"dir": str(folder / name), "blocks": 64, **more} for name in ("a", "b")]


def made(disk: Any, **more: Any) -> BlockManager:
    """Eight small blocks on the device; nothing goes down by itself."""
    settings = {"device_blocks": 8, "host_blocks": 0, "offload_policy": "manual", **more}
    return BlockManager(2, PAGE, 8, disk=disk, **settings)


def chains(count: int) -> list[HashList]:
    """The names of chains that share nothing."""
    tokens = CHAIN * PAGE
    return [hash_tokens(range(n * tokens, (n + 1) * tokens), PAGE) for n in range(count)]


def store(manager: BlockManager, hashes: HashList, to: str = "disk") -> list[str]:
    """How storing a chain went; block `n` is full of what its hash says."""
    blocks = manager.allocate_blocks(len(hashes))
    for block, number in zip(blocks, hashes, strict=True):
        np.from_dlpack(block)[:] = int(number) % 1000
    with manager.get_device_pool().register_blocks(blocks, hashes) as blocks:
        return manager.offload(blocks, to=to).result(10)  # type: ignore[arg-type]


def arriving(manager: BlockManager, hashes: HashList) -> int:
    """How many blocks of a chain arrive, every element of each as it was; none is left above."""
    with manager.onboard(hashes) as blocks:
        for block, number in zip(blocks, hashes, strict=False):
            assert (np.from_dlpack(block) == int(number) % 1000).all()
        arrived = len(blocks)
    manager.allocate_blocks(8).release()
    return arrived


def test_blocks_lie_on_both_drives_and_are_all_there_after_a_restart(tmp_path: Path) -> None:
    disk, all_chains = drives(tmp_path), chains(8)
    with made(disk) as manager:
        assert [set(store(manager, hashes)) for hashes in all_chains] == [{"ok"}] * 8
        figures = manager.status()["drives"]
    assert [drive["dir"] for drive in figures] == [drive["dir"] for drive in disk]
    assert all(drive["capacity"] == 64 and drive["loads"] and drive["stores"] for drive in figures)
    written = [drive["written_bytes"] for drive in figures]
    assert all(bytes_ > 0 and bytes_ % STORE == 0 for bytes_ in written)
    assert sum(written) == 32 * STORE
    assert all(drive["used_bytes"] >= drive["written_bytes"] for drive in figures)

    # The order of the list means nothing.
    with made(disk[::-1]) as manager:
        assert manager.get_disk_pool().total_blocks() == 128
        for hashes in all_chains:
            with manager.lookup(hashes) as found:
                assert found.counts["disk"] == CHAIN
            assert arriving(manager, hashes) == CHAIN
        figures = manager.status()["drives"][::-1]
    assert [drive["hits"] for drive in figures] == [bytes_ // STORE for bytes_ in written]
    assert [drive["written_bytes_per_hit"] for drive in figures] == [0, 0]


def test_a_drive_that_is_not_there_costs_its_blocks_and_is_named(tmp_path: Path) -> None:
    disk, all_chains = drives(tmp_path), chains(8)
    with made(disk) as manager:
        for hashes in all_chains:
            store(manager, hashes)
        on_b = manager.status()["drives"][1]["written_bytes"] // STORE
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "b").write_text("not a directory")

    def single_blocks(manager: BlockManager) -> int:
        return sum(arriving(manager, hashes[n : n + 1]) for hashes in all_chains for n in range(4))

    with made(disk) as manager:
        (finding,) = [one for one in manager.status()["findings"] if one["field"] == "disk.drives"]
        assert (finding["severity"], finding["value"]) == ("warning", str(tmp_path / "b"))
        assert single_blocks(manager) == 32 - on_b
        assert set(store(manager, hash_tokens(range(5000, 5016), PAGE))) == {"ok"}
    (tmp_path / "b").unlink()
    (tmp_path / "away").rename(tmp_path / "b")
    with made(disk) as manager:
        assert single_blocks(manager) == 32


def test_each_drive_has_its_figures_in_print_and_for_scraping(tmp_path: Path) -> None:
    disk = drives(tmp_path)
    disk[1]["write_bytes_per_day"] = "1 GB"
    with made(disk) as manager:
        for hashes in chains(4):
            store(manager, hashes)
            arriving(manager, hashes)
        status, page = manager.status(), manager.metrics()
    table = str(status)
    heading = next(line for line in table.splitlines() if line.startswith("drive "))
    assert {"used", "written", "hits", "state"} <= set(heading.split())
    for drive in status["drives"]:
        (line,) = [line for line in table.splitlines() if line.startswith(drive["dir"])]
        assert line.split()[-1] == "good"

    families = {
        "loads_up": "loads",
        "stores_up": "stores",
        "capacity_blocks": "capacity",
        "used_bytes": "used_bytes",
        "written_bytes_total": "written_bytes",
        "hits_total": "hits",
        "declined_total": "declined",
    }
    for drive in status["drives"]:
        for family, key in families.items():
            sample = f'dynamo_llm_drive_{family}{{worker="0",dir="{drive["dir"]}"}} '
            (line,) = [line for line in page.splitlines() if line.startswith(sample)]
            assert float(line.removeprefix(sample)) == drive[key]
    # Where there is no budget, nothing is left of it.
    left = re.findall(r'^dynamo_llm_drive_budget_left_bytes\{.*dir="(.*)"\}', page, re.MULTILINE)
    assert left == [disk[1]["dir"]]
    assert [drive["budget_left_bytes"] is None for drive in status["drives"]] == [True, False]


def test_what_a_budget_declines_says_so_and_is_written_when_it_is_offered_again(
    tmp_path: Path,
) -> None:
    # An hour's worth may be written at once: ten blocks.
    (disk, _) = drives(tmp_path, write_bytes_per_day=24 * 10 * STORE)
    first, second, third = chains(3)
    with made([disk]) as manager:
        assert store(manager, first) == store(manager, second) == ["ok"] * CHAIN
        results = store(manager, third)
        assert results[:2] == ["ok", "ok"]
        for result in results[2:]:
            assert re.search(r"write budget.*offered again.*disk\.write_bytes_per_day", result)
        (drive,) = manager.status()["drives"]
        assert (drive["declined"], drive["written_bytes"]) == (2, 10 * STORE)
        manager.allocate_blocks(8).release()
        assert arriving(manager, third) == 2

        assert store(manager, third) == ["ok"] * CHAIN
        manager.allocate_blocks(8).release()
        assert arriving(manager, third) == CHAIN
        (drive,) = manager.status()["drives"]
        assert (drive["declined"], drive["written_bytes"]) == (2, 12 * STORE)
        assert drive["budget_left_bytes"] < 0
        assert drive["written_bytes_per_hit"] == 12 * STORE / 6


def test_blocks_of_the_host_go_down_to_disk_too(tmp_path: Path) -> None:
    (hashes,) = chains(1)
    with made(drives(tmp_path), host_blocks=32) as manager:
        assert store(manager, hashes, to="host") == ["ok"] * CHAIN
        manager.allocate_blocks(8).release()
        with manager.get_host_pool().match_sequence_hashes(hashes) as blocks:
            assert manager.offload(blocks, to="disk").result(10) == ["ok"] * CHAIN
            edges = manager.status()["edges"]
            assert edges["host->disk"]["blocks"] == CHAIN
            assert edges["device->disk"]["blocks"] == 0
    with made(drives(tmp_path)) as manager:
        assert arriving(manager, hashes) == CHAIN


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        ([{"dir": "x", "blocks": 1, "byts": 1}], r'drive 1: no key "byts"; the nearest is "bytes"'),
        ([{"dir": "x", "blocks": 9}, {"dir": "y", "blocks": "many"}], r"drive 2: blocks: expected"),
        ([{"dir": "x", "blocks": 9}, {"dir": "y", "blocks": 9, "bytes": 9}], r"exclude each other"),
        ([{"blocks": 9}], r"drive 1: dir: not stated"),
        ([{"dir": "", "blocks": 9}], r"disk\.drives\[0\]\.dir.*empty"),
        ([1], r"drive 1: expected a table"),
        ({"dir": "x", "drives": [{"dir": "y", "blocks": 9}]}, r"for one drive"),
    ],
)
def test_a_list_that_cannot_be_names_drive_and_key(disk: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(disk)


def test_a_folder_is_one_drive_however_it_is_written(tmp_path: Path) -> None:
    disk = drives(tmp_path)
    disk[1]["dir"] = f"{disk[0]['dir']}/"
    with pytest.raises(ConfigError, match=r"disk\.drives\[1\]\.dir.*twice"):
        made(disk)
    assert list(tmp_path.iterdir()) == []


OWNER = """
import sys
from dynamo_llm import BlockManager
with BlockManager(2, 4, 8, device_blocks=8, disk={"dir": sys.argv[1], "blocks": 64}):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_drive_that_another_process_has_is_refused_with_its_owner(tmp_path: Path) -> None:
    disk = drives(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", OWNER, disk[1]["dir"]],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StorageError, match=rf"b is in use by process {owner.pid}\b.*stop it"):
            made(disk)
        owner.communicate(timeout=100)
    assert owner.returncode == 0
    # Nothing is left of the attempt either.
    with made(disk) as manager:
        assert manager.get_disk_pool().total_blocks() == 128


def test_each_directory_can_be_looked_into(cli: Cli, tmp_path: Path) -> None:
    disk = drives(tmp_path)
    with made(disk) as manager:
        for hashes in chains(8):
            store(manager, hashes)
        written = [drive["written_bytes"] // STORE for drive in manager.status()["drives"]]
        # Beside their owner, too.
        seen = [result_of(cli("disk", "inspect", drive["dir"], "--json")) for drive in disk]
        assert [found["blocks"] for found in seen] == written
    for drive, blocks in zip(disk, written, strict=True):
        verified = result_of(cli("disk", "verify", drive["dir"], "--json"))
        assert (verified["blocks"], verified["verified"]) == (blocks, blocks)
        assert verified["corrupt"] == 0


def test_a_replay_says_what_was_written_for_a_hit(cli: Cli) -> None:
    trace = str(TRACES / "mooncake_conversation.jsonl")
    small = ("--limit", "300", "--bytes-per-block", "4096", "--device-blocks", "500")
    replay = ("replay", trace, *small, "--host-blocks", "500", "--json")
    result = result_of(cli(*replay, "--disk", "cache", "--verify"))
    hits, written = result["hits"]["disk"], result["disk_written_bytes"]
    assert hits > 0
    assert written == STORE * (result["bytes"]["host->disk"] // 4096) > 0
    assert result["disk_written_bytes_per_hit"] == pytest.approx(written / hits)

    without = result_of(cli(*replay))
    assert without["disk_written_bytes"] == 0
    assert without["disk_written_bytes_per_hit"] is None
