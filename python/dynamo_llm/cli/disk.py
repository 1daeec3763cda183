"""`dynamo-llm disk`: what is in a directory of the disk tier, and whether its bytes are right.

Nothing is written and no lock is taken, so both work beside a running cache; the answer is then a
snapshot that was never quite true.
"""

import argparse
import json
import sys
from pathlib import Path

from dynamo_llm import _core
from dynamo_llm.cli import args as types
from dynamo_llm.cli import progress, table

_DESCRIPTION = """\
Look into a directory of the disk tier. `inspect` reads its books: models, room
and blocks. `verify` also reads every block and holds it against its seal.
"""

_EPILOG = """\
examples:
  How much of the drive is used, and by which model?
    dynamo-llm disk inspect /mnt/nvme/cache
  Is every byte still what was stored?
    dynamo-llm disk verify /mnt/nvme/cache

exit status: 0 done, 1 a block is corrupt, 2 no directory of a disk tier
"""


def add_parser(commands: "argparse._SubParsersAction[types.Parser]") -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "disk",
        help="look into a directory of the disk tier, or verify every block in it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, does in (
        ("inspect", "models, room and blocks, from the books alone"),
        ("verify", "the same, and every block is read and verified"),
    ):
        one = verbs.add_parser(verb, help=does, description=does)
        one.set_defaults(run=run)
        one.add_argument("dir", metavar="DIR", type=types.directory, help="the directory")
        one.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Look, report, and return the exit status."""
    if args.verb == "verify":
        shown = not args.json or sys.stderr.isatty()
        with progress.bar(Path(args.dir).name, shown=shown, unit="blocks") as report:
            text = _core.disk_verify(args.dir, progress=report)
    else:
        text = _core.disk_inspect(args.dir)
    if args.json:
        sys.stdout.write(text + "\n")
    else:
        table.show_disk(args.dir, json.loads(text))
    return 1 if json.loads(text).get("corrupt") else 0
