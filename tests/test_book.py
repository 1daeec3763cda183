"""The book keeps its word: its Python runs, its command line exists, its links lead somewhere.

The Rust half is `tests/book.rs` and the documentation tests. `DYNAMO_TEST_UPDATE=1` writes the list
of Python names anew.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynamo_llm
from support import ROOT, Cli, environment

SOURCE = ROOT / "book" / "src"
CHAPTERS = sorted(SOURCE.rglob("*.md"))
INCLUDE = re.compile(r"\{\{#include ([^}]+)\}\}")


def name(chapter: Path) -> str:
    return str(chapter.relative_to(SOURCE))


def samples(chapter: Path) -> list[str]:
    """The Python of a chapter: what is included, one program each; the rest, in order, another."""
    text = chapter.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    included = [INCLUDE.search(block) for block in blocks]
    programs = [(chapter.parent / found[1]).read_text() for found in included if found]
    own = [block for block, found in zip(blocks, included, strict=True) if not found]
    return programs + ["\n".join(own)] * bool(own)


PROGRAMS = [
    pytest.param(program, id=f"{name(chapter)}-{number}")
    for chapter in CHAPTERS
    for number, program in enumerate(samples(chapter))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_python_runs(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_option_of_the_command_line_is_in_the_reference(cli: Cli) -> None:
    """Options, and the words that stand for their values, in both directions."""
    help_text = cli("replay", "--help").stdout.split("\ntraces:")[0]
    shown = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)(?: ([A-Z]+))?", help_text, re.MULTILINE))

    chapter = (SOURCE / "reference" / "command_line.md").read_text()
    rows = re.findall(r"^\| `(--[a-z-]+)` \|(?: `([A-Z]+)`)? \|", chapter, re.MULTILINE)
    assert set(rows) == shown


@pytest.mark.parametrize(
    ("heading", "options"),
    [
        ("With bytes:", ["--device-blocks", "8", "--host-blocks", "16"]),
        ("With `--index-only`:", ["--index-only", "--capacity", "8"]),
    ],
)
def test_every_result_is_in_the_reference(
    heading: str, options: list[str], cli: Cli, chat: Path
) -> None:
    shown = json.loads(cli("replay", str(chat), "--json", *options).stdout)
    chapter = (SOURCE / "reference" / "command_line.md").read_text()
    table = chapter.split(f"\n{heading}\n")[1].strip().split("\n\n")[0]
    rows = re.findall(r"^\| ((?:`\w+` )+)\|", table, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(rows))) == set(shown)


def test_every_public_name_is_in_the_reference() -> None:
    chapter = SOURCE / "reference" / "python.md"
    rows = ["| name | |", "|---|---|"]
    for public in sorted(dynamo_llm.__all__, key=str.lower):
        thing = getattr(dynamo_llm, public)
        first = (thing.__doc__ or "").strip().split("\n")[0] if public != "__version__" else ""
        rows.append(f"| `{public}` | {first or 'The version of the package.'} |")
    marks = ("<!-- begin: python names -->\n", "<!-- end: python names -->")
    before, rest = chapter.read_text().split(marks[0])
    found, after = rest.split(marks[1])
    names = "\n" + "\n".join(rows) + "\n\n"
    if "DYNAMO_TEST_UPDATE" in os.environ:
        chapter.write_text(before + marks[0] + names + marks[1] + after)
    else:
        assert found == names, "DYNAMO_TEST_UPDATE=1 pytest tests/test_book.py"


def test_every_exception_is_in_the_overview() -> None:
    chapter = (SOURCE / "python" / "overview.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", chapter, re.MULTILINE))
    exported = {public: getattr(dynamo_llm, public) for public in dynamo_llm.__all__}
    errors = {
        public: thing.__bases__[-1].__name__
        for public, thing in exported.items()
        if isinstance(thing, type) and issubclass(thing, dynamo_llm.DynamoError)
    }
    assert rows == {public: base for public, base in errors.items() if public != "DynamoError"}


def test_commands_in_the_book_exist(cli: Cli) -> None:
    commands = {
        command
        for chapter in CHAPTERS
        for command in re.findall(r"^\$ dynamo-llm ([a-z]+)", chapter.read_text(), re.MULTILINE)
    }
    assert commands
    for command in commands:
        assert cli(command, "--help").returncode == 0
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for chapter in CHAPTERS:
        named = re.findall(r"^\$ make ([a-z-]+)", chapter.read_text(), re.MULTILINE)
        assert set(named) <= set(targets), name(chapter)


def anchors(chapter: Path) -> set[str]:
    """What a link into the built page can name: its headings."""
    headings = re.findall(r"^#+ (.+)$", chapter.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


def links(chapter: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", chapter.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if "://" not in link:
            yield link


@pytest.mark.parametrize("chapter", CHAPTERS, ids=name)
def test_links_lead_somewhere(chapter: Path) -> None:
    for link in links(chapter):
        path, _, anchor = link.partition("#")
        target = (chapter.parent / path).resolve() if path else chapter
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_every_chapter_is_in_the_summary() -> None:
    summary = SOURCE / "SUMMARY.md"
    listed = {(SOURCE / link).resolve() for link in links(summary)}
    assert listed | {summary} == set(CHAPTERS)
