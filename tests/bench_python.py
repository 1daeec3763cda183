"""The verbs as Python sees them, beside the same bare work on Python's own dicts and lists.

The reference does what the verb cannot do without and nothing else: no lock, no checks, no bytes,
no tiers, no events. Each round takes ours and the reference one after the other, in an order that
changes; medians of all rounds are compared. One line of JSON per figure goes to standard output, a
table with the budgets to standard error: those are microseconds on a quiet machine, so only the
ratios mean anything elsewhere.

    make bench-python
"""

import array
import gc
import hashlib
import json
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import dynamo_llm
from dynamo_llm import BlockList, BlockManager, BlockPool, HashList, hash_tokens

ROUNDS = 11
PAGE = 16
MANY = 512
SLOTS = 8192

Run = Callable[[], float]
"""Does the work some times over and returns the seconds that one of them took."""


def compare(
    bench: str, ours: Run, reference_name: str, reference: Run, budget: float | None = None
) -> None:
    """Measure both sides and print the figure, in microseconds per call."""
    taken: dict[Run, list[float]] = {ours: [], reference: []}
    ours(), reference()
    for turn in range(ROUNDS):
        for side in (ours, reference) if turn % 2 else (reference, ours):
            gc.collect()
            gc.disable()
            taken[side].append(side() * 1e6)
            gc.enable()
    mine, theirs = (statistics.median(taken[side]) for side in (ours, reference))
    line = {
        "bench": bench,
        "ours": round(mine, 4),
        "reference": round(theirs, 4),
        "reference_name": reference_name,
        "unit": "us",
        "ratio": round(theirs / mine, 3),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    words = ""
    if budget is not None:
        words = f"budget {budget:g} us: {'met' if mine <= budget else 'NOT met'}"
    sys.stderr.write(
        f"{bench:44} {mine:10.3f} us {theirs:10.3f} us  x{theirs / mine:<8.2f}{words}\n"
    )


def each(times: int, before: Callable[[], Any], work: Callable[[Any], Any], after: Any) -> Run:
    """Work on what `before` makes, undone by `after(made, result)`; only the work is timed."""

    def run() -> float:
        total = 0
        for _ in range(times):
            made = before()
            start = time.perf_counter_ns()
            result = work(made)
            total += time.perf_counter_ns() - start
            after(made, result)
        return total / times / 1e9

    return run


def repeat(times: int, work: Callable[[], object]) -> Run:
    """Work that needs nothing done before and after."""
    return each(times, lambda: None, lambda _: work(), nothing)


def nothing(*_: Any) -> None:
    """Need not be undone."""


class Bare:
    """The least that a pool of slots has to do, in the fastest Python there is for it."""

    def __init__(self) -> None:
        self.free = list(range(SLOTS))
        self.index: dict[int, int] = {}
        self.names: list[int | None] = [None] * SLOTS
        self.held = [0] * SLOTS
        self.unheld: OrderedDict[int, None] = OrderedDict()

    def allocate(self, n: int) -> list[int]:
        """Free slots, then those unheld for longest."""
        taken = [self.free.pop() for _ in range(min(n, len(self.free)))]
        while len(taken) < n:
            slot, _ = self.unheld.popitem(last=False)
            name = self.names[slot]
            assert name is not None
            del self.index[name]
            self.names[slot] = None
            taken.append(slot)
        for slot in taken:
            self.held[slot] = 1
        return taken

    def register(self, slots: list[int], hashes: list[int]) -> list[int]:
        """Slots by name."""
        for slot, name in zip(slots, hashes, strict=True):
            self.names[slot] = name
            self.index[name] = slot
        return slots

    def match(self, hashes: list[int]) -> list[int]:
        """Find and hold the longest prefix."""
        found = []
        index, held, unheld = self.index, self.held, self.unheld
        for name in hashes:
            slot = index.get(name)
            if slot is None:
                break
            if held[slot] == 0:
                del unheld[slot]
            held[slot] += 1
            found.append(slot)
        return found

    def release(self, slots: list[int]) -> None:
        """Let go, last first."""
        held, unheld, names = self.held, self.unheld, self.names
        for slot in reversed(slots):
            held[slot] -= 1
            if held[slot] == 0:
                if names[slot] is None:
                    self.free.append(slot)
                else:
                    unheld[slot] = None


def fresh(n: int) -> Callable[[], HashList]:
    """Hashes that were never there before, at each call."""
    count = iter(range(1, sys.maxsize))
    return lambda: HashList([(next(count) << 64) | position for position in range(n)])


def verbs(manager: BlockManager, pool: BlockPool, n: int, times: int) -> None:
    """Match, allocate, register and free `n` at a time."""
    bare, new, name = Bare(), fresh(n), "a loop over dicts and lists"
    limits = {"match": 18.0, "allocate": 8.0, "register": 62.0, "free": 3.5}

    def show(verb: str, ours: Run, reference: Run) -> None:
        budget = limits.get(verb) if n == MANY else None
        compare(f"python {verb} {n}", ours, name, reference, budget)

    def numbers() -> list[int]:
        return [int(one) for one in new()]

    def registered() -> BlockList:
        return pool.register_blocks(manager.allocate_blocks(n), new())

    def bare_registered() -> list[int]:
        return bare.register(bare.allocate(n), numbers())

    def let_go(_: Any, blocks: BlockList) -> None:
        blocks.release()

    def bare_let_go(_: Any, slots: list[int]) -> None:
        bare.release(slots)

    known = new()
    ints = [int(one) for one in known]
    pool.register_blocks(manager.allocate_blocks(n), known).release()
    bare.release(bare.register(bare.allocate(n), ints))
    show(
        "match",
        each(times, lambda: known, pool.match_sequence_hashes, let_go),
        each(times, lambda: ints, bare.match, bare_let_go),
    )
    show(
        "allocate",
        each(times, lambda: n, manager.allocate_blocks, let_go),
        each(times, lambda: n, bare.allocate, bare_let_go),
    )
    show(
        "register",
        each(
            times,
            lambda: (manager.allocate_blocks(n), new()),
            lambda made: pool.register_blocks(*made),
            let_go,
        ),
        each(
            times,
            lambda: (bare.allocate(n), numbers()),
            lambda made: bare.register(*made),
            bare_let_go,
        ),
    )
    show(
        "free",
        each(times, registered, lambda blocks: blocks.release(), nothing),
        each(times, bare_registered, bare.release, nothing),
    )
    # From here on every slot has a name, and each allocation has to evict.
    for _ in range(SLOTS // n):
        registered().release()
        bare.release(bare_registered())
    show(
        "evict and allocate",
        each(
            times,
            lambda: n,
            manager.allocate_blocks,
            lambda _, blocks: pool.register_blocks(blocks, new()).release(),
        ),
        each(
            times,
            lambda: n,
            bare.allocate,
            lambda _, slots: bare.release(bare.register(slots, numbers())),
        ),
    )


def carriers(manager: BlockManager, pool: BlockPool) -> None:
    """What hashes cost by the form that they come in: a match of many, beside a `HashList`."""
    known = fresh(MANY)()
    pool.register_blocks(manager.allocate_blocks(MANY), known).release()

    def match(hashes: Any) -> Run:
        return each(
            40, lambda: hashes, pool.match_sequence_hashes, lambda _, found: found.release()
        )

    forms = {
        "a list of SequenceHash": list(known),
        "a list of bytes": [bytes(name) for name in known],
        "a list of ints": [int(name) for name in known],
    }
    for form, hashes in forms.items():
        compare(f"python match {MANY}, {form}", match(hashes), "a HashList", match(known))


def hashing() -> None:
    """Hashes of tokens, beside Python's own loop over its own hashes."""
    count = MANY * PAGE
    ids = [(7919 * position) % 128_000 for position in range(count)]
    forms: dict[str, Any] = {
        "list": ids,
        "array.array": array.array("I", ids),
        "numpy": np.array(ids, np.uint32),
    }

    def chain_of_blake2b() -> None:
        parent, buffer = b"", array.array("I", ids).tobytes()
        for start in range(0, len(buffer), PAGE * 4):
            page = buffer[start : start + PAGE * 4]
            parent = hashlib.blake2b(page, key=parent, digest_size=16).digest()

    def chain_of_tuples() -> None:
        parent = 0
        for start in range(0, count, PAGE):
            parent = hash((parent, tuple(ids[start : start + PAGE])))

    references: dict[Any, tuple[str, Callable[[], None]]] = {
        "blake3": ("a loop over hashlib.blake2b", chain_of_blake2b),
        "xxh3": ("a loop over hash(tuple)", chain_of_tuples),
    }
    for scheme, (name, reference) in references.items():
        for form, tokens in forms.items():
            compare(
                f"python hash {count} tokens, {scheme}, {form}",
                repeat(40, partial(hash_tokens, tokens, PAGE, scheme=scheme)),
                name,
                repeat(10, reference),
            )
    compare(
        f"python hash {count} tokens of a list, xxh3",
        repeat(40, partial(hash_tokens, ids, PAGE, scheme="xxh3")),
        "reading the list into an array.array",
        repeat(40, partial(array.array, "I", ids)),
    )


def main() -> None:
    sys.stderr.write(f"dynamo_llm {dynamo_llm.__version__}, Python {sys.version.split()[0]}\n")
    sys.stderr.write(f"{'':44} {'ours':>13} {'reference':>13}\n")
    with BlockManager(1, PAGE, 1, device_blocks=SLOTS, host_blocks=0) as manager:
        pool = manager.get_device_pool()
        verbs(manager, pool, MANY, 40)
        verbs(manager, pool, 1, 4000)
        carriers(manager, pool)
    hashing()


if __name__ == "__main__":
    main()
