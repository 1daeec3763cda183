"""`dynamo-llm replay`: a recorded request trace through the real cache.

With bytes (the default): blocks are filled, moved between tiers and, with `--verify`, checked.
With `--index-only`: no byte moves; capacities and eviction policies are compared by hit rate.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from dynamo_llm import _core
from dynamo_llm.cli import args as types
from dynamo_llm.cli import plot, progress, table

FORMATS = ("mooncake", "lmcache")
"""Trace formats by name, for `--format`."""

DEFAULT_BYTES_PER_BLOCK = 65536
DEFAULT_POLICY = types.POLICIES[0]

_DESCRIPTION = """\
Replay a recorded request trace through the block manager: real lookups, real
evictions, real bytes. A block that is not found is filled with a pattern made
from its key, in the device tier (ordinary memory on a machine with no GPU), and
copied through to the host tier and, with --disk, to a drive. A request's hit is
the longest prefix that is brought back; in production the rest would be
computed again.

With --index-only no byte moves, which is how to ask many questions about one
trace quickly: which capacity, which eviction policy?
"""

_EPILOG = """\
traces:
  One JSON object a line, plain or gzip, told apart by content; requests run in
  order of their timestamps. Blocks are named by ids: equal prefix, equal ids.
  mooncake   "timestamp" (ms), "hash_ids": the ids of the prompt's blocks
  lmcache    "timestamp" (us), "h": the same as runs of [first id, count]
  A trace that states lengths only cannot be replayed, and is refused.

sizes:
  A number of blocks (1000), or a share of the trace's unique blocks, rounded
  down (5%); with --limit, of those in the requests that are replayed.

examples:
  Real traffic through device and host memory, every byte handed out checked:
    dynamo-llm replay trace.jsonl --verify
  500 requests, larger blocks and a small device tier, for a script:
    dynamo-llm replay trace.jsonl --limit 500 --bytes-per-block 1048576 \\
        --device-blocks 1% --json
  What does a drive bring, when the cache is restarted now and then? A second
  run over the same directory starts warm:
    dynamo-llm replay trace.jsonl --disk /mnt/nvme/cache --restart-every 1000
  How the hit rate of each tier developed, as a picture:
    dynamo-llm replay trace.jsonl --plot hits.png
  What would twice the memory, or another policy, bring?
    dynamo-llm replay trace.jsonl --index-only --sweep 5%,10%,20% \\
        --policy lru,arc,s3fifo

exit status:
  0 done, 1 a block failed its verification, 2 wrong usage or configuration
"""


def add_parser(commands: "argparse._SubParsersAction[types.Parser]") -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "replay",
        help="replay a request trace through the cache and report what it saved",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(run=run)
    parser.add_argument("trace", metavar="TRACE", type=types.trace, help="the trace to replay")
    parser.add_argument(
        "--policy",
        metavar="P",
        type=types.policies,
        default=[DEFAULT_POLICY],
        help=f"eviction policy of every tier: {', '.join(types.POLICIES)} "
        f"(default: {DEFAULT_POLICY}); several with commas for --sweep",
    )
    parser.add_argument(
        "--limit", metavar="REQUESTS", type=types.count, help="stop after so many requests"
    )
    parser.add_argument(
        "--format",
        metavar="F",
        choices=FORMATS,
        help=f"format of the trace, {' or '.join(FORMATS)} (default: told from its content)",
    )

    tiers = parser.add_argument_group("with bytes")
    tiers.add_argument(
        "--device-blocks",
        metavar="SIZE",
        type=types.tier_size,
        help="size of the device tier (default: 5%%)",
    )
    tiers.add_argument(
        "--host-blocks",
        metavar="SIZE",
        type=types.tier_size,
        help="size of the host tier, 0 for none (default: 20%%)",
    )
    tiers.add_argument(
        "--bytes-per-block",
        metavar="B",
        type=types.size,
        help=f"bytes of one block (default: {DEFAULT_BYTES_PER_BLOCK})",
    )
    tiers.add_argument("--verify", action="store_true", help="check every byte handed out")
    tiers.add_argument(
        "--disk",
        metavar="DIR",
        type=types.directory,
        help="directory of a disk tier; what it holds already counts",
    )
    tiers.add_argument(
        "--disk-blocks",
        metavar="SIZE",
        type=types.capacity,
        help="size of the disk tier (default: 100%%)",
    )
    tiers.add_argument(
        "--restart-every",
        metavar="REQUESTS",
        type=types.count,
        help="shut the cache down and open it again after so many requests",
    )

    index = parser.add_argument_group("without bytes")
    index.add_argument(
        "--index-only", action="store_true", help="replay lookups and evictions alone"
    )
    sizes = index.add_mutually_exclusive_group()
    sizes.add_argument(
        "--capacity", metavar="SIZE", type=types.capacity, help="size of the one tier"
    )
    sizes.add_argument(
        "--sweep",
        metavar="SIZES",
        type=types.capacities,
        help="several sizes with commas, each with every --policy",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON object on stdout")
    output.add_argument(
        "--plot",
        metavar="FILE",
        type=types.plot_file,
        help="draw hit rates over the requests, or with --sweep against capacity, into a "
        f"{', '.join(types.PLOT_SUFFIXES)} file (needs matplotlib)",
    )


def run(args: argparse.Namespace) -> int:
    """Replay, report, and return the exit status."""
    _check_together(args)
    if args.plot:
        plot.require()

    label = Path(args.trace).name
    replay = _replay_index if args.index_only else _replay
    try:
        with progress.bar(label, shown=not args.json or sys.stderr.isatty()) as report:
            result = replay(args, report)
    except (_core.ConfigError, _core.StorageError) as error:
        raise types.UsageError(_as_typed(str(error))) from None

    if args.plot:
        draw = plot.sweep if args.sweep else plot.timeline
        draw(result, args.plot)
    if args.json:
        sys.stdout.write(json.dumps(result) + "\n")
    elif args.index_only:
        table.show_index(result)
    else:
        table.show_replay(result)
    return 1 if result.get("verify_failures") else 0


def _replay(args: argparse.Namespace, report: progress.Report) -> dict[str, Any]:
    text = _core.replay(
        args.trace,
        policy=args.policy[0],
        device_blocks=args.device_blocks,
        host_blocks=args.host_blocks,
        disk=args.disk,
        disk_blocks=args.disk_blocks,
        restart_every=args.restart_every,
        bytes_per_block=args.bytes_per_block or DEFAULT_BYTES_PER_BLOCK,
        verify=args.verify,
        limit=args.limit,
        format=args.format,
        progress=report,
    )
    result: dict[str, Any] = json.loads(text)
    return result


def _replay_index(args: argparse.Namespace, report: progress.Report) -> dict[str, Any]:
    """The `points` of a sweep, or for a single capacity its one point alone."""
    text = _core.replay_index(
        args.trace,
        policies=args.policy,
        capacities=args.sweep or [args.capacity],
        format=args.format,
        limit=args.limit,
        progress=report,
    )
    result: dict[str, Any] = json.loads(text)
    if not args.sweep:
        (result,) = result["points"]
    return result


def _as_typed(message: str) -> str:
    """The message of the core with the names of its settings as the options they came from."""
    names = r"\b(device[._]blocks|host[._]blocks|disk[._]blocks|bytes_per_block)\b"
    return re.sub(names, lambda name: "--" + re.sub("[._]", "-", name[0]), message)


def _check_together(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other, rather than ignore one of them."""
    if args.index_only:
        if not (args.capacity or args.sweep):
            raise types.UsageError(
                "--index-only needs a size: add --capacity 5% or --sweep 1%,2%,5%"
            )
        for option in (
            "device_blocks",
            "host_blocks",
            "disk",
            "disk_blocks",
            "restart_every",
            "bytes_per_block",
            "verify",
        ):
            if getattr(args, option):
                raise types.UsageError(
                    f"--{option.replace('_', '-')} has no meaning with --index-only, which moves "
                    "no bytes: drop one of the two"
                )
    else:
        for option in ("capacity", "sweep"):
            if getattr(args, option):
                raise types.UsageError(
                    f"--{option} is for --index-only: add that, or give the tiers their sizes "
                    "with --device-blocks and --host-blocks"
                )
        if args.disk_blocks and not args.disk:
            raise types.UsageError(
                "--disk-blocks is the size of a disk tier: add --disk DIR, or drop it"
            )
    if len(args.policy) > 1 and not args.sweep:
        raise types.UsageError(
            f"--policy names {len(args.policy)} policies ({','.join(args.policy)}): give one, or "
            "compare them with --index-only --sweep 1%,2%,5%"
        )
    if args.plot and args.capacity:
        raise types.UsageError(
            "--plot has one point to draw with --capacity: give several sizes with --sweep"
        )
