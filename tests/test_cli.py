"""The command line as a user meets it: a process, its output, its exit status."""

import gzip
import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from support import (
    TRACES,
    Cli,
    command,
    default_sigint,
    environment,
    result_of,
    write_trace,
)

REPLAY_KEYS = {
    "trace", "policy", "requests", "blocks", "hit_blocks", "hit_rate", "hits", "bytes",
    "verified_blocks", "verify_failures", "latency_us", "evictions", "restarts", "seconds",
}  # fmt: skip
INDEX_KEYS = {
    "trace", "policy", "capacity_blocks", "unique_blocks", "blocks", "hit_blocks", "hit_rate",
    "seconds",
}  # fmt: skip


def refusal_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a usage or configuration error."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("dynamo-llm")
    return done.stderr


# --- with bytes ---


def test_replay_verifies_every_hit(cli: Cli, chat: Path) -> None:
    result = result_of(cli("replay", str(chat), "--verify", "--json", "--device-blocks", "10"))
    assert result.keys() >= REPLAY_KEYS
    assert result["hits"].keys() == {"device", "host", "disk", "remote", "peer"}
    assert result["latency_us"].keys() == {"lookup", "allocate", "onboard"}
    assert all(q.keys() == {"p50", "p99"} for q in result["latency_us"].values())

    assert result["policy"] == "lru"
    assert (result["requests"], result["blocks"], result["restarts"]) == (4, 19, 0)
    # The device tier holds the whole trace, so that it behaves like an endless cache.
    assert result["hit_blocks"] == 9
    assert result["hits"]["device"] == 9
    assert result["hit_rate"] == pytest.approx(100 * 9 / 19)
    assert result["verified_blocks"] == 9
    assert result["verify_failures"] == 0


def test_host_tier_serves_what_the_device_lost(cli: Cli, tmp_path: Path) -> None:
    # Two prompts take turns in a device tier that has room for one.
    trace = write_trace(tmp_path / "turns.jsonl", [[1, 2, 3], [4, 5, 6]] * 3)
    sizes = ("--device-blocks", "3", "--host-blocks", "6", "--bytes-per-block", "5000")
    result = result_of(cli("replay", str(trace), *sizes, "--verify", "--json"))
    assert result["hits"] == {"device": 0, "host": 12, "disk": 0, "remote": 0, "peer": 0}
    assert result["bytes"]["device->host"] == 6 * 5000
    assert result["bytes"]["host->device"] == 12 * 5000
    assert result["evictions"]["device"] == 15
    assert result["evictions"]["host"] == 0
    assert result["verify_failures"] == 0

    without = result_of(
        cli("replay", str(trace), "--device-blocks", "3", "--host-blocks", "0", "--json")
    )
    assert without["hit_blocks"] == 0


def test_requests_longer_than_the_device_tier_are_cut(cli: Cli, chat: Path) -> None:
    result = result_of(cli("replay", str(chat), "--device-blocks", "5", "--json"))
    assert result["cut_requests"] == 1
    assert result["blocks"] == 19


def test_shares_that_are_no_block_are_refused(cli: Cli, chat: Path) -> None:
    message = refusal_of(cli("replay", str(chat)))
    for word in ("--device-blocks: 5%", "10 unique blocks", "--device-blocks 1"):
        assert word in message
    message = refusal_of(cli("replay", str(chat), "--device-blocks", "10", "--host-blocks", "9%"))
    assert "--host-blocks: 9%" in message


def test_copies_that_find_no_room_are_told(cli: Cli, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "turns.jsonl", [[1, 2, 3]])
    sizes = ("--device-blocks", "3", "--host-blocks", "2", "--bytes-per-block", "64")
    result = result_of(cli("replay", str(trace), *sizes, "--json"))
    assert result["failures"] == {"device->host": {"no_room": 1}}
    assert re.search(r"device->host\s+no room\s+1$", cli("replay", str(trace), *sizes).stdout, re.M)


def test_without_verify_nothing_is_called_verified(cli: Cli, chat: Path) -> None:
    result = result_of(cli("replay", str(chat), "--device-blocks", "10", "--json"))
    assert (result["verified_blocks"], result["verify_failures"]) == (0, 0)
    human = cli("replay", str(chat), "--device-blocks", "10")
    assert "not checked" in human.stdout


def test_table_names_every_figure(cli: Cli, chat: Path) -> None:
    done = cli("replay", str(chat), "--verify", "--device-blocks", "10")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    words = (
        "chat|requests|blocks|hit rate|device|host|device->host|bandwidth|evictions|"
        "lookup|allocate|onboard|p50|p99|verify failures"
    )
    for word in words.split("|"):
        assert word in done.stdout, word
    assert re.search(r"verify failures\s+0$", done.stdout, re.MULTILINE)


def test_limit_stops_early(cli: Cli, chat: Path) -> None:
    result = result_of(cli("replay", str(chat), "--device-blocks", "10", "--limit", "2", "--json"))
    assert (result["requests"], result["blocks"], result["hit_blocks"]) == (2, 9, 4)


@pytest.mark.parametrize("policy", ["lru", "fifo", "arc", "s3fifo"])
def test_shipped_trace_survives_every_policy(cli: Cli, policy: str) -> None:
    trace = TRACES / "mooncake_synthetic.jsonl"
    small = ("--limit", "200", "--bytes-per-block", "1024")
    result = result_of(cli("replay", str(trace), "--policy", policy, *small, "--verify", "--json"))
    assert result["policy"] == policy
    assert result["requests"] == 200
    assert result["hit_blocks"] == sum(result["hits"].values()) > 0
    assert result["verified_blocks"] >= result["hit_blocks"]
    assert result["verify_failures"] == 0


# --- without bytes ---


def test_index_only_gives_one_point(cli: Cli, chat: Path) -> None:
    result = result_of(cli("replay", str(chat), "--index-only", "--capacity", "100%", "--json"))
    assert result.keys() >= INDEX_KEYS
    assert (result["capacity_blocks"], result["unique_blocks"]) == (10, 10)
    assert (result["blocks"], result["hit_blocks"]) == (19, 9)


def test_percentages_are_rounded_down(cli: Cli, chat: Path) -> None:
    result = result_of(cli("replay", str(chat), "--index-only", "--capacity", "59.9%", "--json"))
    assert result["capacity_blocks"] == 5


def test_sweep_covers_every_size_and_policy(cli: Cli, chat: Path) -> None:
    args = ("replay", str(chat), "--index-only", "--sweep", "20%,50%,10", "--policy", "lru,arc")
    result = result_of(cli(*args, "--json"))
    points = result["points"]
    assert all(point.keys() >= INDEX_KEYS for point in points)
    assert {(p["capacity_blocks"], p["policy"]) for p in points} == {
        (size, policy) for size in (2, 5, 10) for policy in ("lru", "arc")
    }
    table = cli(*args)
    assert table.returncode == 0, table.stderr
    assert "lru" in table.stdout
    assert "arc" in table.stdout


def test_gzip_is_told_by_content(cli: Cli, chat: Path, tmp_path: Path) -> None:
    packed = tmp_path / "no-suffix-to-tell"
    packed.write_bytes(gzip.compress(chat.read_bytes()))
    args = ("--index-only", "--capacity", "10", "--json")
    assert result_of(cli("replay", str(packed), *args))["hit_blocks"] == 9


def test_lru_reproduces_the_published_rates(cli: Cli) -> None:
    trace = TRACES / "mooncake_conversation.jsonl"
    result = result_of(
        cli("replay", str(trace), "--index-only", "--sweep", "1%,2%,5%,10%,20%", "--json")
    )
    rates = [f"{point['hit_rate']:.2f}" for point in result["points"]]
    assert rates == ["5.25", "7.93", "19.58", "27.89", "34.53"]


# --- plots ---


@pytest.mark.parametrize(
    "args",
    [("--device-blocks", "50%"), ("--index-only", "--sweep", "20%,50%", "--policy", "lru,arc")],
    ids=["timeline", "sweep"],
)
def test_plot_is_a_picture(cli: Cli, chat: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    result_of(cli("replay", str(chat), *args, "--plot", "hits.png", "--json"))
    assert (tmp_path / "hits.png").read_bytes().startswith(b"\x89PNG")


# --- refusals ---


@pytest.mark.parametrize(
    ("args", "words"),
    [
        # A disk tier has a directory, and a size.
        (["--disk", ""], ["--disk", "names no directory"]),
        (["--disk"], ["--disk", "expected one argument"]),
        (["--disk-blocks", "5"], ["--disk-blocks", "add --disk DIR"]),
        (["--disk", "cache", "--disk-blocks", "0"], ["--disk-blocks", "holds no block"]),
        (["--restart-every", "0"], ["--restart-every", "'0'"]),
        # Unknown, also where it is the beginning of a known one.
        (["--polic", "lru"], ["--polic"]),
        (["--policy", "lfu"], ["--policy", "'lfu'", "s3fifo"]),
        (["--policy", "lru,lru"], ["--policy", "'lru,lru'"]),
        (["--format", "azure"], ["--format", "azure", "mooncake"]),
        # Numbers that are none, or too large to be meant.
        (["--device-blocks", "many"], ["--device-blocks", "'many'", "5%"]),
        (["--device-blocks", "-1"], ["--device-blocks"]),
        (["--device-blocks", "101%"], ["--device-blocks", "'101%'", "100%"]),
        (["--device-blocks", "nan%"], ["--device-blocks", "'nan%'"]),
        (["--host-blocks", "5 %"], ["--host-blocks", "'5 %'"]),
        (["--host-blocks", "9" * 400], ["--host-blocks", "999..."]),
        (["--host-blocks", "4294967296"], ["--host-blocks", "4294967296"]),
        (["--device-blocks", "4", "--host-blocks", "4294967295"], ["--host-blocks"]),
        (["--device-blocks", "4", "--host-blocks", "4294967294"], ["--host-blocks", "4294967294"]),
        (["--device-blocks", "4", "--host-blocks", "1073741824"], ["--host-blocks", "available"]),
        (["--bytes-per-block", "0"], ["--bytes-per-block", "'0'"]),
        (["--bytes-per-block", "64k"], ["--bytes-per-block", "'64k'", "65536"]),
        (["--bytes-per-block", "9" * 5000], ["--bytes-per-block", "999..."]),
        (
            ["--device-blocks", "4", "--host-blocks", "4", "--bytes-per-block", str(2**63 - 1)],
            ["--bytes-per-block", str(2**63 - 1)],
        ),
        (["--limit", "0"], ["--limit", "'0'"]),
        (["--limit", "\u0663"], ["--limit"]),
        (["--index-only", "--capacity", "0%"], ["--capacity", "'0%'"]),
        (["--index-only", "--sweep", "1%,,2%"], ["--sweep", "''"]),
        (["--index-only", "--sweep", "1%", "--capacity", "1%"], ["--capacity", "--sweep"]),
        # Arguments that contradict each other.
        (["--index-only"], ["--index-only", "--capacity", "--sweep"]),
        (["--capacity", "5%"], ["--capacity", "--index-only"]),
        (["--sweep", "5%"], ["--sweep", "--index-only"]),
        (["--index-only", "--capacity", "5", "--verify"], ["--verify", "--index-only"]),
        (["--index-only", "--capacity", "5", "--host-blocks", "0"], ["--host-blocks"]),
        (["--policy", "lru,arc"], ["--policy", "--sweep"]),
        # Pictures.
        (["--plot", "hits.xls"], ["--plot", "'hits.xls'", ".png"]),
        (["--plot", "no/such/place.png"], ["--plot", "'no/such/place.png'", "create"]),
        (["--index-only", "--capacity", "5", "--plot", "a.png"], ["--plot", "--sweep"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_bad_arguments_are_named(cli: Cli, chat: Path, args: list[str], words: list[str]) -> None:
    message = refusal_of(cli("replay", str(chat), *args))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["trace.jsonl"]),
        (b"", ["trace.jsonl"]),
        (b"not json\n", ["trace.jsonl"]),
        (b"\x1f\x8b broken gzip", ["trace.jsonl"]),
        (b"\xff\xfe\x00\n", ["trace.jsonl"]),
        (b'{"timestamp": 0, "hash_ids": [1, "two"]}\n', ["line 1"]),
        (b'{"timestamp": 0, "hash_ids": [1]}\n{"timestamp": 1}\n', ["line 2"]),
        (b'{"timestamp": 0, "hash_ids": [99999999999999999999999]}\n', ["line 1"]),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n", ["lengths"]),
    ],
    ids=["missing", "empty", "text", "gzip", "binary", "word", "keyless", "huge", "lengths"],
)
def test_bad_traces_are_refused(
    cli: Cli, tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    if content is not None:
        trace.write_bytes(content)
    for mode in (("--verify",), ("--index-only", "--capacity", "5")):
        message = refusal_of(cli("replay", str(trace), *mode))
        for word in words:
            assert word in message


def test_directory_is_no_trace(cli: Cli, tmp_path: Path) -> None:
    assert str(tmp_path) in refusal_of(cli("replay", str(tmp_path)))


@pytest.mark.parametrize("args", [(), ("doctor",), ("replay",), ("--replay",)])
def test_command_line_without_a_task(cli: Cli, args: tuple[str, ...]) -> None:
    refusal_of(cli(*args))


# --- help and the terminal ---


def test_help_teaches(cli: Cli) -> None:
    assert "replay" in cli("--help").stdout
    help_text = cli("replay", "--help").stdout
    for word in ("examples:", "--verify", "mooncake", "hash_ids", "5%", "20%", "65536", "s3fifo"):
        assert word in help_text
    assert max(map(len, help_text.splitlines())) <= 80


def test_version(cli: Cli) -> None:
    import dynamo_llm

    assert cli("--version").stdout == f"dynamo-llm {dynamo_llm.__version__}\n"


def test_gone_reader_is_no_fault(chat: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            command("replay", str(chat), "--device-blocks", "10", "--json"),
            env=environment(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.parametrize("json_too", [False, True], ids=["table", "json"])
def test_ctrl_c_during_a_replay_ends_it_cleanly(tmp_path: Path, json_too: bool) -> None:
    # A terminal on stderr shows the progress bar, which is how to know that the replay is running.
    terminal, stderr = pty.openpty()
    stdout = tmp_path / "stdout"
    trace = TRACES / "mooncake_conversation.jsonl"
    with stdout.open("wb") as file:
        process = subprocess.Popen(
            command("replay", str(trace), "--verify", *(["--json"] if json_too else [])),
            env=environment(TERM="xterm", COLUMNS="120"),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=stderr,
            preexec_fn=default_sigint,
        )
    os.close(stderr)
    try:
        shown = _read_until(terminal, rb"[1-9]\d*/\d+")
        process.send_signal(signal.SIGINT)
        shown += _read_until(terminal, None)
        status = process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert status == 130, shown
    assert stdout.read_bytes() == b""
    assert b"interrupted" in shown
    assert b"Traceback" not in shown


def _read_until(terminal: int, pattern: bytes | None) -> bytes:
    """What the terminal shows up to `pattern`, or to its end."""
    shown = b""
    while pattern is None or not re.search(pattern, shown):
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        shown += piece
    return shown


# --- the disk tier ---


def test_a_restarted_replay_keeps_its_hits_and_a_second_one_starts_warm(
    cli: Cli, tmp_path: Path
) -> None:
    options = ("--limit", "120", "--bytes-per-block", "4096", "--verify", "--json")
    trace = str(TRACES / "mooncake_conversation.jsonl")
    through = (trace, *options, "--disk", "cache")
    cold = result_of(cli("replay", *through, "--restart-every", "30"))
    assert cold["restarts"] == 3
    assert cold["hits"]["disk"] > 0
    assert {"device->host", "host->disk", "disk->device"} <= cold["bytes"].keys()
    warm = result_of(cli("replay", *through))
    assert warm["hit_blocks"] > cold["hit_blocks"]

    found = result_of(cli("disk", "inspect", "cache", "--json"))
    keys = {"format_version", "fingerprint", "slots", "blocks", "bytes"}
    assert keys <= found.keys()
    assert found["bytes"] == 4096 * found["blocks"] > 0
    verified = result_of(cli("disk", "verify", "cache", "--json"))
    assert (verified["verified"], verified["corrupt"]) == (found["blocks"], 0)
    assert "corrupt" in cli("disk", "verify", "cache").stdout

    (data,) = (tmp_path / "cache").glob("*.data")
    with data.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    done = cli("disk", "verify", "cache", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["corrupt"] == 1


def test_what_is_no_directory_of_blocks_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert result_of(cli("disk", "inspect", "empty", "--json"))["blocks"] == 0
    verified = result_of(cli("disk", "verify", "empty", "--json"))
    assert (verified["verified"], verified["corrupt"]) == (0, 0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("not ours")
    for path in ("other", "nowhere"):
        assert path in refusal_of(cli("disk", "verify", path))
