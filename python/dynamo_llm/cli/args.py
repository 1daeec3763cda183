"""The parser and the argument types that commands share.

A type checks how an argument is *spelled*, so that the message can name the argument; what a value
means (does this tier fit into memory? how many blocks are 5 %?) is the core's to judge.
"""

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

POLICIES = ("lru", "fifo", "arc", "s3fifo")
"""Eviction policies by name, the default first; the same names as `BlockManager(eviction=)`."""

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
"""What a plot can be written as."""

# Slots are numbered with 32 bits; sizes in bytes are signed 64-bit to the kernel.
_MAX_COUNT = 2**32 - 1
_MAX_BYTES = 2**63 - 1

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%", re.ASCII)


class UsageError(Exception):
    """Arguments that are right one by one and wrong together."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose help keeps its layout and whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Name what is wrong on one line of stderr and leave with status 2."""
        line = " ".join(message.split())
        self.exit(2, f"{self.prog}: error: {line} (see {self.prog} --help)\n")


def count(text: str) -> int:
    """A whole number from 1 to 2**32 - 1."""
    return _whole(text, "1000", _MAX_COUNT)


def size(text: str) -> int:
    """A whole number of bytes, at least 1."""
    return _whole(text, "65536", _MAX_BYTES)


def _whole(text: str, example: str, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)):
        value = int(text)
        if 1 <= value <= most:
            return value
    raise argparse.ArgumentTypeError(
        f"{_short(text)} is no whole number from 1 to {most}; write it like {example}"
    )


def tier_size(text: str) -> str:
    """Blocks of a tier, as a number (0: the tier is off) or as a share of a trace: `0`, `20%`."""
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MAX_COUNT:
        return text
    percent = _PERCENT.fullmatch(text)
    if percent and float(percent[1]) <= 100:
        return text
    raise argparse.ArgumentTypeError(
        f"{_short(text)} is neither a number of blocks up to {_MAX_COUNT} nor a percentage up to "
        "100%; write it like 1000 or 5%"
    )


def capacity(text: str) -> str:
    """A `tier_size` of more than nothing."""
    text = tier_size(text)
    if float(text.rstrip("%")) == 0:
        raise argparse.ArgumentTypeError(f"{_short(text)} holds no block; write it like 1000 or 5%")
    return text


def capacities(text: str) -> list[str]:
    """Capacities with commas between them: `1%,2%,5%`."""
    return [capacity(part.strip()) for part in text.split(",")]


def policies(text: str) -> list[str]:
    """Names of eviction policies with commas between them: `lru,arc`."""
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(
                f"{_short(name)} is no eviction policy; one of {', '.join(POLICIES)}"
            )
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{_short(text)} names a policy twice; name each once")
    return names


def trace(text: str) -> str:
    """The path of a trace."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{_short(text)} is not UTF-8; rename the file") from None
    return text


def directory(text: str) -> str:
    """The path of a directory, there or not."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no directory; write it like /mnt/nvme/cache")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{_short(text)} is not UTF-8; name another") from None
    return text


def plot_file(text: str) -> Path:
    """A picture to write, in a directory that is there."""
    path = Path(text)
    if path.suffix not in PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"{_short(text)} has to end in one of {', '.join(PLOT_SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{_short(text)} lies in a directory that does not exist; create it first"
        )
    return path


def _short(text: str) -> str:
    """`text` in quotes, printable, and cut where a message would drown in it."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")
