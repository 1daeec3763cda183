"""README keeps its word: its Python programs run as they stand, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT, environment

README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_python_program_runs(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_example_in_print_is_the_one_that_is_kept() -> None:
    assert (ROOT / "examples" / "basic.py").read_text() in PROGRAMS


def test_every_target_named_is_in_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^\$ make ([a-z-]+)", README, re.MULTILINE)
    assert named
    assert set(named) <= set(targets)


def test_every_link_to_a_file_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []
