"""Results as pictures, drawn by matplotlib where that is installed (`dynamo-llm[plot]`)."""

from collections import defaultdict
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_llm.cli.args import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = Mapping[str, Any]


def require() -> None:
    """Refuse before the work, rather than after it, where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'dynamo-llm[plot]'")


def timeline(result: Result, path: Path) -> None:
    """Draw the share of blocks that each tier served, interval by interval, stacked."""
    requests: list[int] = []
    shares: dict[str, list[float]] = {tier: [] for tier in result["capacity_blocks"]}
    blocks, hits = 0, dict.fromkeys(shares, 0)
    for sample in result["timeline"]:
        # Samples are cumulative: an interval is what was added since the last one.
        asked = sample["blocks"] - blocks
        if not asked:
            continue
        requests.append(sample["requests"])
        for tier, share in shares.items():
            share.append(100 * (sample["hits"][tier] - hits[tier]) / asked)
            hits[tier] = sample["hits"][tier]
        blocks = sample["blocks"]

    figure, axes = _figure(result["trace"], "requests", "hits, percent of the blocks asked for")
    axes.margins(x=0)
    axes.stackplot(requests, list(shares.values()), labels=list(shares))
    _finish(axes)
    figure.savefig(path, dpi=150)


def sweep(result: Result, path: Path) -> None:
    """Draw the hit rate of each policy against capacity."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in result["points"]:
        share = 100 * point["capacity_blocks"] / max(point["unique_blocks"], 1)
        lines[point["policy"]].append((share, point["hit_rate"]))

    trace = result["points"][0]["trace"]
    figure, axes = _figure(
        trace, "capacity, percent of unique blocks", "hits, percent of all blocks"
    )
    for policy, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", label=policy)
    _finish(axes)
    figure.savefig(path, dpi=150)


def _figure(title: str, x: str, y: str) -> "tuple[Figure, Axes]":
    # A figure without pyplot: no window, no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(Path(title).name, parse_math=False)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _finish(axes: "Axes") -> None:
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
