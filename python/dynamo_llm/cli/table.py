"""Results as tables on stdout. Bytes are decimal: 1 GB is 10^9 bytes."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Result = Mapping[str, Any]


def show_replay(result: Result) -> None:
    """Show what `_core.replay` returned: hits and evictions by tier, traffic, latencies."""
    _show(
        result["trace"],
        _summary(result),
        _tiers(result),
        _traffic(result),
        _failures(result),
        _latencies(result),
    )


def show_index(result: Result) -> None:
    """Show one point of `_core.replay_index`, or the `points` of a sweep."""
    points = result.get("points", [result])
    first = points[0]
    seconds = sum(point["seconds"] for point in points)
    _show(
        first["trace"],
        f"{_count(first['blocks'])} blocks, {_count(first['unique_blocks'])} of them unique; "
        f"{seconds:.2f} s",
        _points(points),
    )


def show_disk(directory: str, result: Result) -> None:
    """Show what `_core.disk_inspect` or `_core.disk_verify` returned."""
    summary = _table("", "")
    summary.add_row("format version", str(result["format_version"]))
    summary.add_row("slots", _count(result["slots"]))
    summary.add_row("blocks", _count(result["blocks"]))
    summary.add_row("their bytes", _bytes(result["bytes"]))
    for reason, count in result["dropped"].items():
        summary.add_row(f"records {reason}", _count(count))
    if "verified" in result:
        corrupt = result["corrupt"]
        summary.add_row("verified", _count(result["verified"]))
        summary.add_row("corrupt", Text(_count(corrupt), style="bold red" if corrupt else "green"))
    models = _table("model", "blocks", "fingerprint")
    for one in result["fingerprints"]:
        models.add_row(Text(one["label"]), _count(one["blocks"]), one["digest"][:16])
    _show(directory, summary, models)


def _show(title: str, *parts: Table | str) -> None:
    console = Console(highlight=False)
    # A `Text`, since a file name may look like markup.
    console.print(Text(title, style="bold"))
    for part in parts:
        if isinstance(part, Table) and not part.row_count:
            continue
        console.print()
        console.print(part)


def _summary(result: Result) -> Table:
    table = _table("", "")
    table.add_row("policy", result["policy"])
    table.add_row("requests", _count(result["requests"]))
    if result["cut_requests"]:
        table.add_row("  longer than the device tier", _count(result["cut_requests"]))
    table.add_row("blocks", _count(result["blocks"]))
    table.add_row("  different ones", _count(result["unique_blocks"]))
    table.add_row("  bytes of each", _count(result["bytes_per_block"]))
    table.add_row("hit blocks", _count(result["hit_blocks"]))
    table.add_row("hit rate", _percent(result["hit_rate"]))
    if result["disk_written_bytes"]:
        table.add_row("written to disk", _bytes(result["disk_written_bytes"]))
        per_hit = result["disk_written_bytes_per_hit"]
        table.add_row("  for each hit from there", _bytes(per_hit) if per_hit else "-")
    if result["verified_blocks"]:
        failures = result["verify_failures"]
        table.add_row("verified blocks", _count(result["verified_blocks"]))
        table.add_row(
            "verify failures", Text(_count(failures), style="bold red" if failures else "green")
        )
    else:
        table.add_row("verify failures", "not checked (--verify)")
    table.add_row("seconds", f"{result['seconds']:.2f}")
    return table


def _tiers(result: Result) -> Table:
    capacity = result["capacity_blocks"]
    table = _table("tier", "blocks", "bytes", "hits", "of all blocks", "evictions")
    for tier, hits in result["hits"].items():
        if tier not in capacity:
            continue
        share = 100 * hits / result["blocks"] if result["blocks"] else 0.0
        table.add_row(
            tier,
            _count(capacity[tier]),
            _bytes(capacity[tier] * result["bytes_per_block"]),
            _count(hits),
            _percent(share),
            _count(result["evictions"].get(tier, 0)),
        )
    return table


def _traffic(result: Result) -> Table:
    table = _table("moved", "bytes", "bandwidth")
    for edge, moved in result["bytes"].items():
        rate = result["bandwidth"].get(edge)
        table.add_row(edge, _bytes(moved), f"{_bytes(rate)}/s" if rate else "-")
    return table


def _failures(result: Result) -> Table:
    table = _table("copies that failed", "reason", "blocks")
    for edge, reasons in result["failures"].items():
        for reason, blocks in reasons.items():
            table.add_row(edge, reason.replace("_", " "), _count(blocks))
    return table


def _latencies(result: Result) -> Table:
    table = _table("latency", "p50", "p99")
    for verb, quantiles in result["latency_us"].items():
        table.add_row(verb, _micros(quantiles["p50"]), _micros(quantiles["p99"]))
    return table


def _points(points: list[Result]) -> Table:
    """One row per capacity, one column per policy, hit rates inside."""
    policies = list(dict.fromkeys(point["policy"] for point in points))
    rates: dict[int, dict[str, float]] = {}
    for point in points:
        rates.setdefault(point["capacity_blocks"], {})[point["policy"]] = point["hit_rate"]

    unique = points[0]["unique_blocks"]
    table = _table("capacity", "of unique", *(f"hits, {policy}" for policy in policies))
    for capacity, by_policy in rates.items():
        share = 100 * capacity / unique if unique else 0.0
        cells = (_percent(by_policy[policy]) for policy in policies)
        table.add_row(f"{_count(capacity)} blocks", _percent(share), *cells)
    return table


def _table(first: str, *rest: str) -> Table:
    """A table whose first column names and whose others count."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=any(rest), pad_edge=False)
    table.add_column(first)
    for header in rest:
        table.add_column(header, justify="right")
    return table


def _count(value: int) -> str:
    return f"{value:,}"


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _micros(value: float | None) -> str:
    """Microseconds; `-` where the verb was never used."""
    return "-" if value is None else f"{value:,.1f} us"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:,.2f} TB"
