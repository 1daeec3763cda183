"""How an event loop learns of the end of what the core does.

Each loop has one bell, an eventfd that the loop reads. The thread of the core that ends an
operation rings it; the loop wakes up and resolves futures here, on its own thread. Nothing of this
module is called directly: the verbs that end in `_async` are made of it.

The loop alone keeps its bridge, through its reader, and the bridge keeps the futures, hence the
tasks that wait for them. So a task waits for as long as its loop is open, and when the loop is
closed, with work pending or not, the eventfd is closed too. What nobody can await any more is given
up when its coroutine goes.
"""

import asyncio
from itertools import count
from typing import Any, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

from dynamo_llm._core import _Bell, _Operation

_T = TypeVar("_T")

_bridges: "WeakKeyDictionary[asyncio.AbstractEventLoop, ReferenceType[_Bridge]]" = (
    WeakKeyDictionary()
)


class _Bridge:
    """The awaits of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bell = _Bell()
        self.tokens = count()
        self.waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.bell.fileno(), self._rung)

    def _rung(self) -> None:
        for token in self.bell.drain():
            _wake(self.waiting.get(token))

    def end_of(
        self, operation: _Operation, token: int, loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Future[None] | None":
        """Return what is resolved at the end of `operation`; `None` when it is over."""
        if operation.poll(self.bell, token):
            return None
        # Before the bell is heard, whatever rings: this is the loop's thread.
        future = self.waiting[token] = loop.create_future()
        return future


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _known(loop: asyncio.AbstractEventLoop) -> _Bridge | None:
    bridge = _bridges.get(loop)
    return None if bridge is None else bridge()


def _bridge(loop: asyncio.AbstractEventLoop) -> _Bridge:
    bridge = _known(loop)
    if bridge is None:
        bridge = _Bridge(loop)
        _bridges[loop] = ref(bridge)
    return bridge


async def finish(operation: _Operation, timeout: float | None = None) -> Any:
    """Await the end of `operation`, at most `timeout` seconds; cancelling this gives it up."""
    # No variable here keeps the bridge: it goes with its loop, this frame may stay.
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    token = next(_bridge(loop).tokens)
    try:
        while (end := _bridge(loop).end_of(operation, token, loop)) is not None:
            if until is None:
                await end
                continue
            if loop.time() >= until:
                break  # and `result` raises
            timer = loop.call_at(until, _wake, end)
            try:
                await end
            finally:
                timer.cancel()
    except BaseException:
        operation.cancel()
        raise
    finally:
        if (bridge := _known(loop)) is not None:
            bridge.waiting.pop(token, None)
    return operation.result()


async def nothing_but(value: _T) -> _T:
    """Return `value`, for who must be awaited and has nothing to await."""
    return value
