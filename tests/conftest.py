"""Fixtures of the Python tests."""

import subprocess
from pathlib import Path

import pytest

from support import Cli, command, environment, write_trace


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `dynamo-llm` to its end in an empty directory; stdout and stderr are no terminals."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*args),
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A trace small enough to know by heart.

    Four requests of 4, 5, 6 and 4 blocks. The second and third continue the first, the fourth
    begins anew: 19 blocks, 10 unique, and an endless cache hits 0 + 4 + 5 + 0 of them.
    """
    prompts = [range(4), range(5), range(6), range(10, 14)]
    return write_trace(tmp_path / "chat.jsonl", [list(blocks) for blocks in prompts])
