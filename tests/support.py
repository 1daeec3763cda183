"""What the Python tests share: where things lie, and the command line as a user starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "examples" / "traces"

Cli = Callable[..., subprocess.CompletedProcess[str]]
"""The `cli` fixture: arguments in, a process that has ended out."""


def command(*args: str) -> list[str]:
    """The command line of `dynamo-llm ARGS`, with warnings as errors."""
    return [sys.executable, "-W", "error", "-m", "dynamo_llm", *args]


def environment(**more: str) -> dict[str, str]:
    """The environment without what changes output or configuration, and with `more`."""
    unset = ("DYNAMO_LLM_", "DYN_KVBM_", "COLUMNS", "FORCE_COLOR", "PYTHONPATH")
    return {k: v for k, v in os.environ.items() if not k.startswith(unset)} | more


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object on stdout; nothing on stderr, which is no terminal here."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def default_sigint() -> None:
    """In the child: a shell that runs in the background starts its children deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def write_trace(path: Path, prompts: Sequence[Sequence[int]]) -> Path:
    """Write a Mooncake trace of one request a second, each of the given blocks of 512 tokens."""
    with path.open("w") as file:
        for second, blocks in enumerate(prompts):
            request = {
                "timestamp": 1000 * second,
                "input_length": 512 * len(blocks),
                "output_length": 1,
                "hash_ids": list(blocks),
            }
            file.write(json.dumps(request) + "\n")
    return path
