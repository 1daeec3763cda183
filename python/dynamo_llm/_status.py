"""What `BlockManager.status()` returns."""

from typing import Any


class Status(dict[str, Any]):
    """Settings and figures of one moment: a dict; `print()` and `str()` show its figures as tables.

    `repr()` is that of the dict.
    """

    def __init__(self, tree: dict[str, Any], table: str) -> None:
        super().__init__(tree)
        self._table = table

    def __str__(self) -> str:
        return self._table

    def __reduce__(self) -> tuple[type["Status"], tuple[dict[str, Any], str]]:
        return Status, (dict(self), self._table)
