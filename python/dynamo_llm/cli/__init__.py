"""The `dynamo-llm` command: arguments in, work done by the core, words and numbers out.

One file per command; each offers `add_parser` and a `run` that returns the exit status:

* 0: done,
* 1: the work found a fault (a block that failed its verification, say),
* 2: wrong usage or configuration; one line on stderr names the argument, its value and the remedy,
* 130: interrupted.

Nothing here decides how a cache behaves; that is the core's business.
"""

import os
import sys
from collections.abc import Sequence

from dynamo_llm._core import ConfigError, DynamoError, StorageError, __version__
from dynamo_llm.cli import disk, replay
from dynamo_llm.cli.args import Parser, UsageError

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_PIPE = 141  # 128 + SIGPIPE

_DESCRIPTION = """\
KV block manager for LLM inference: tiered, verified, block-level cache reuse.
"""

_EPILOG = """\
start here:
  dynamo-llm replay examples/traces/mooncake_conversation.jsonl --verify
  dynamo-llm replay --help

exit status: 0 done, 1 the work found a fault, 2 wrong usage or configuration
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit status.

    `--help`, `--version` and errors of usage leave through `SystemExit`, as argparse does.
    """
    parser = Parser(prog="dynamo-llm", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    replay.add_parser(commands)
    disk.add_parser(commands)

    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
        # A full disk or a closed pipe shows here, while it can still be answered.
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say(args.command, "interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`): let the interpreter's last flush go nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except (UsageError, ConfigError, StorageError, OSError) as error:
        _say(args.command, f"error: {error}")
        return EXIT_USAGE
    except DynamoError as error:
        _say(args.command, f"error: {error}")
        return EXIT_FAULT
    return status


def _say(command: str, message: str) -> None:
    """Write one line to stderr, whatever line breaks the message has."""
    sys.stderr.write(f"dynamo-llm {command}: {' '.join(message.split())}\n")
