"""What the library says: findings, events of its own threads, reprs, status, help."""

import ast
import copy
import inspect
import logging
import pickle
import pydoc
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dynamo_llm
from dynamo_llm import BlockManager, BlockPool, hash_tokens
from support import ROOT, environment

PAGE = 4
MIB: dict[str, Any] = {"num_layers": 8, "page_size": PAGE, "inner_dim": 8192}
"""Blocks of 1 MiB, whose copies take a while."""


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the library logs, from level `INFO` on."""
    with caplog.at_level(logging.INFO, logger="dynamo_llm"):
        yield caplog


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def interrupted(manager: BlockManager) -> int:
    """Close a manager whose copies have not ended, which it has an event for."""
    device = manager.get_device_pool()
    assert isinstance(device, BlockPool)
    hashes = hash_tokens(range(32 * PAGE), PAGE)
    blocks = device.register_blocks(manager.allocate_blocks(32), hashes)
    manager.offload(blocks)
    return manager.close(timeout=0)


def large() -> BlockManager:
    """Thirty-two blocks of 1 MiB in each tier; only `offload` copies down."""
    return BlockManager(**MIB, device_blocks=32, host_blocks=32, offload_policy="manual")


# --- findings ---


def test_findings_are_logged_once_by_who_makes_the_manager(
    logged: pytest.LogCaptureFixture,
) -> None:
    with BlockManager(2, PAGE, 8, device_blocks=4) as manager:
        manager.allocate_blocks(1)
        manager.status()
    findings = manager.findings
    assert findings
    settings, records = logged.records[: -len(findings)], logged.records[-len(findings) :]
    assert {"model.num_layers = 2", "device.blocks = 4"} <= {
        record.getMessage().split(" (")[0] for record in settings
    }
    assert [record.levelname.lower() for record in records] == [
        finding["severity"] for finding in findings
    ]
    for record, finding in zip(records, findings, strict=True):
        assert record.name == "dynamo_llm"
        assert record.pathname == __file__
        assert record.threadName == "MainThread"
        for part in ("field", "value", "message", "remedy"):
            assert finding[part] in record.getMessage()


def test_warnings_are_warnings(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMO_LLM_MODEL_PAGE_SIZ", "16")
    for name, value in {"NUM_LAYERS": 2, "INNER_DIM": 8, "PAGE_SIZE": 4}.items():
        monkeypatch.setenv(f"DYNAMO_LLM_MODEL_{name}", str(value))
    monkeypatch.setenv("DYNAMO_LLM_DEVICE_BLOCKS", "4")
    BlockManager.from_env().close()
    (warning,) = [record for record in logged.records if record.levelno == logging.WARNING]
    assert "DYNAMO_LLM_MODEL_PAGE_SIZ" in warning.getMessage()


def test_a_level_is_respected(logged: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dynamo_llm").setLevel(logging.ERROR)
    BlockManager(2, PAGE, 8, device_blocks=4).close()
    assert not logged.records


@pytest.mark.usefixtures("logged")
def test_a_broken_handler_breaks_no_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError(f"broken for {record.name}")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda broken: told.append(str(broken.exc_value)))
    monkeypatch.setattr(logging.getLogger("dynamo_llm"), "filters", [Broken()])
    with BlockManager(2, PAGE, 8, device_blocks=4) as manager:
        assert len(manager.findings) > 0
    assert told == ["broken for dynamo_llm"]


@pytest.mark.usefixtures("logged")
def test_ctrl_c_in_a_handler_is_no_broken_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise KeyboardInterrupt(record.name)

    monkeypatch.setattr(logging.getLogger("dynamo_llm"), "filters", [Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        BlockManager(2, PAGE, 8, device_blocks=4)


# --- events ---


def test_an_event_of_the_core_says_where_and_when(logged: pytest.LogCaptureFixture) -> None:
    manager = large()
    logged.clear()
    unfinished = interrupted(manager)
    if unfinished == 0:
        pytest.skip("the copies were faster than closing")
    (record,) = logged.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("shut down before all blocks had gone down")
    assert f"unfinished={unfinished}" in record.getMessage()
    assert record.pathname.endswith("shutdown.rs")
    assert record.lineno > 0


def test_events_wait_for_a_call_or_for_the_end(tmp_path: Path) -> None:
    # `closing` in another thread, whose event nobody asks for any more.
    script = """
    import asyncio, logging
    import dynamo_llm

    logging.basicConfig(format="%(levelname)s %(threadName)s %(message)s")
    manager = dynamo_llm.BlockManager(
        8, 4, 8192, device_blocks=32, host_blocks=32, offload_policy="manual")
    hashes = dynamo_llm.hash_tokens(range(128), 4)
    blocks = manager.get_device_pool().register_blocks(manager.allocate_blocks(32), hashes)
    manager.offload(blocks)

    async def leave():
        task = asyncio.ensure_future(manager.close_async())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        print("unfinished" if task.cancelled() else "finished")

    asyncio.run(leave())
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    said = "WARNING MainThread shut down before all blocks had gone down" in done.stderr
    assert said == (done.stdout == "unfinished\n"), done.stderr


def test_importing_the_package_sets_nothing_up(tmp_path: Path) -> None:
    done = python(
        """
        import logging, dynamo_llm
        logger = logging.getLogger("dynamo_llm")
        dynamo_llm.BlockManager(1, 4, 8, device_blocks=1).close()
        print(logger.handlers, logger.level, logger.propagate, logging.getLogger().handlers)
        """,
        tmp_path,
    )
    assert done.stdout == "[] 0 True []\n"
    assert done.stderr == ""


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_logs_for_itself(tmp_path: Path) -> None:
    done = python(
        """
        import logging, os, sys, warnings
        warnings.simplefilter("ignore")
        import dynamo_llm

        logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s")
        manager = dynamo_llm.BlockManager(1, 4, 8, device_blocks=1)
        child = os.fork()
        if child == 0:
            dynamo_llm.BlockManager(1, 4, 8, device_blocks=1).close()
            sys.exit(0)
        os.waitpid(child, 0)
        print(child)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    ours = [line for line in lines if line.startswith(done.stdout.strip())]
    assert len(ours) * 2 == len(lines), done.stderr


# --- status ---


def test_status_prints_as_tables() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=4, host_blocks=8) as manager:
        manager.lookup(hash_tokens(range(8), PAGE)).release()
        status = manager.status()
    assert isinstance(status, dict)
    assert repr(status) == repr(dict(status))
    lines = str(status).splitlines()
    assert lines[0].split()[:3] == ["tier", "capacity", "free"]
    assert lines[1].split()[:3] == ["device", "4", "4"]
    assert lines[2].split()[:3] == ["host", "8", "8"]
    assert any(line.startswith("device->host") for line in lines)
    assert any(line.split()[:2] == ["lookup", "1"] for line in lines)
    for twin in (copy.deepcopy(status), pickle.loads(pickle.dumps(status))):  # noqa: S301
        assert twin == status
        assert str(twin) == str(status)


# --- reprs and help ---


def test_reprs_show_state() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=4, host_blocks=8) as manager:
        device = manager.get_device_pool()
        assert isinstance(device, BlockPool)
        hashes = hash_tokens(range(8), PAGE)
        blocks = manager.allocate_blocks(2)
        assert repr(manager) == "<BlockManager: device 2/4 available, host 8/8 available>"
        assert repr(device) == "<BlockPool, device tier: 2 of 4 available>"
        assert repr(blocks) == "<BlockList of 2 in the device tier, writable>"
        shared = device.register_blocks(blocks, hashes)
        assert repr(blocks) == "<BlockList of 2 in the device tier, no longer valid>"
        assert repr(shared) == "<BlockList of 2 in the device tier, registered>"
        assert str(hashes[0]) in repr(shared[0]) or "registered" in repr(shared[0])
        transfer = manager.offload(shared)
        transfer.result()
        assert repr(transfer) == "<Transfer of 2 blocks, over>"
        match = manager.lookup(hashes)
        assert repr(match).endswith("(2 device, 0 host), held>")
        match.release()
        assert repr(match).endswith("released>")
    assert repr(manager).endswith(", closed>")


def public_members() -> Iterator[tuple[str, Any]]:
    """Each public name and its public members."""
    for name in dynamo_llm.__all__:
        public = getattr(dynamo_llm, name)
        if isinstance(public, str):
            continue
        yield name, public
        if isinstance(public, type) and public.__module__ == "dynamo_llm":
            for member in vars(public):
                if not member.startswith("_"):
                    yield f"{name}.{member}", getattr(public, member)


def test_help_is_there_for_every_public_name() -> None:
    members = dict(public_members())
    assert len(members) > 80
    for name, member in members.items():
        if isinstance(member, dynamo_llm.DType):
            continue
        doc = inspect.getdoc(member)
        assert doc, name
        assert doc.splitlines()[0].rstrip().endswith((".", ":")), f"{name}: {doc}"
        if callable(member) and not isinstance(member, type):
            assert inspect.signature(member), name
    for name in ("BlockManager", "BlockManager.onboard", "hash_tokens"):
        assert name.split(".")[-1] in pydoc.plain(pydoc.render_doc(members[name]))


def test_stubs_document_what_the_binary_has() -> None:
    stub = ast.parse((ROOT / "python" / "dynamo_llm" / "_core.pyi").read_text())
    documented: set[str] = set()

    def read(nodes: list[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if ast.get_docstring(node):
                    documented.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    read(node.body, f"{node.name}.")

    read(stub.body, "")
    missing = [name for name, member in public_members() if name not in documented]
    assert [name for name in missing if not name.startswith("DType.")] == []
