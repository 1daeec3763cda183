"""The replays as the core offers them: progress, interruption, refusals."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dynamo_llm import ConfigError, DynamoError, StorageError, _core
from support import TRACES

CONVERSATION = str(TRACES / "mooncake_conversation.jsonl")


def replay(path: str, **changed: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "policy": "lru",
        "device_blocks": "10",
        "host_blocks": "20",
        "disk": None,
        "disk_blocks": None,
        "restart_every": None,
        "bytes_per_block": 64,
        "verify": True,
        "limit": None,
        "format": None,
        "progress": None,
    }
    result: dict[str, Any] = json.loads(_core.replay(path, **(arguments | changed)))
    return result


def replay_index(path: str, **changed: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "policies": ["lru"],
        "capacities": ["10"],
        "format": None,
        "limit": None,
        "progress": None,
    }
    result: dict[str, Any] = json.loads(_core.replay_index(path, **(arguments | changed)))
    return result


def test_progress_is_told_on_the_calling_thread(chat: Path) -> None:
    for run in (replay, replay_index):
        told: list[tuple[int, int, int]] = []
        run(str(chat), progress=lambda *at, told=told: told.append((threading.get_ident(), *at)))
        assert told[-1] == (threading.get_ident(), 4, 4)
        assert {thread for thread, _, _ in told} == {threading.get_ident()}


def test_what_progress_raises_passes_through() -> None:
    class EnoughError(Exception):
        pass

    def stop(_done: int, _total: int) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        replay(CONVERSATION, progress=stop)
    with pytest.raises(EnoughError):
        replay_index(CONVERSATION, progress=stop)


def test_ctrl_c_needs_no_progress() -> None:
    # Minutes of work, unless the signal is heard.
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            replay(CONVERSATION, bytes_per_block=1 << 24)
    finally:
        interrupt.join()


def test_other_threads_run_meanwhile(chat: Path) -> None:
    # The callback of one replay waits for the whole of another.
    other = threading.Thread(target=replay, args=(str(chat),))

    def wait(_done: int, _total: int) -> None:
        if not other.ident:
            other.start()
        other.join(60)
        assert not other.is_alive()

    replay(str(chat), progress=wait)


def test_refusals_say_what_they_are(chat: Path, tmp_path: Path) -> None:
    for run in (replay, replay_index):
        with pytest.raises(FileNotFoundError) as missing:
            run(str(tmp_path / "none"))
        assert missing.value.filename == str(tmp_path / "none")
        with pytest.raises(ConfigError, match="azure"):
            run(str(chat), format="azure")
    with pytest.raises(ConfigError, match="lfu"):
        replay(str(chat), policy="lfu")
    with pytest.raises(ConfigError, match="1e3"):
        replay(str(chat), device_blocks="1e3")
    with pytest.raises(ConfigError, match="bytes_per_block: 65537"):
        replay(str(chat), bytes_per_block=65537)
    with pytest.raises(StorageError, match=r"host.*available"):
        replay(str(chat), host_blocks="100000", bytes_per_block=1 << 32)
    assert issubclass(ConfigError, DynamoError)
    assert issubclass(StorageError, DynamoError)
