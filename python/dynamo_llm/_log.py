"""From the core to `logging.getLogger("dynamo_llm")`, on the thread of whoever calls.

Imported with the first manager, not with the package. A record of an event carries where in the
core and when it happened, and which thread of the core it happened on; one of the start carries who
made the manager.
"""

import atexit
import logging
from collections.abc import Sequence

from dynamo_llm import _core

_LOGGER = logging.getLogger("dynamo_llm")


def emit(records: Sequence[tuple[int, str, str, int, float, str]]) -> None:
    """Hand events of the core on: level, message, file, line, time, name of the thread."""
    for level, message, file, line, created, thread in records:
        if _LOGGER.isEnabledFor(level):
            record = _LOGGER.makeRecord(_LOGGER.name, level, file, line, message, (), None)
            record.created = created
            record.msecs = int(created % 1 * 1000)
            if thread:
                record.threadName = thread
            _LOGGER.handle(record)


def start(lines: Sequence[tuple[int, str]]) -> None:
    """Log what is in force in a new manager and what was decided: level, text."""
    for level, text in lines:
        _LOGGER.log(level, "%s", text, stacklevel=2)


# After `logging`, whose own end closes the handlers: what registers last is called first.
atexit.register(_core._drain_log)
