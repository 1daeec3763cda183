"""The progress bar, on stderr, so that stdout carries the result alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Told how many are done, and of how many."""


@contextmanager
def bar(label: str, *, shown: bool, unit: str = "requests") -> Iterator[Report]:
    """Show a progress bar for the time of the `with` block, fed through what it yields.

    It appears with the first report: work that is refused leaves its one line of error alone on
    stderr. Where stderr is no terminal only the finished bar is written. Not `shown`, reports go
    nowhere; they still are calls into Python, which is where Ctrl-C is noticed.
    """
    if not shown:
        yield lambda _done, _total: None
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=Console(stderr=True),
    )
    task = progress.add_task(escape(label), total=None)

    def report(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)
        progress.start()  # the first time; later calls do nothing

    try:
        yield report
    finally:
        if progress.live.is_started:  # stopping what never ran would write an empty line
            progress.stop()
