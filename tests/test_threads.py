"""Threads, forks, signals and the end of the process: nothing stops, nothing aborts."""

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dynamo_llm import (
    BlockManager,
    BlockManagerError,
    BlockPool,
    NotEnoughBlocksError,
    WaitTimeoutError,
    hash_tokens,
)
from support import environment

# From Python 3.12 on, forking with threads around is worth a warning; here it is the point.
FORKING = "ignore:This process:DeprecationWarning"
pytestmark = pytest.mark.filterwarnings(FORKING)

PAGE = 4
MIB: dict[str, Any] = {"num_layers": 8, "page_size": 16, "inner_dim": 2048}
"""Blocks of 1 MiB."""


def pool(manager: BlockManager) -> BlockPool:
    """A manager's device tier."""
    device = manager.get_device_pool()
    assert isinstance(device, BlockPool)
    return device


# --- threads ---


def test_eight_threads_share_one_manager() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=64, host_blocks=256) as manager:
        device = pool(manager)

        def serve(worker: int) -> int:
            rng, served = random.Random(worker), 0  # noqa: S311
            for _ in range(150):
                prompt = rng.randrange(12)
                blocks = 1 + prompt % 6
                hashes = hash_tokens(range(prompt * 1000, prompt * 1000 + blocks * PAGE), PAGE)
                with manager.onboard(manager.lookup(hashes)) as back:
                    for nth, block in enumerate(back):
                        assert (np.from_dlpack(block) == prompt * 10 + nth).all()
                    served += len(back)
                    missing = len(hashes) - len(back)
                    try:
                        new = manager.allocate_blocks(missing)
                    except NotEnoughBlocksError:
                        continue
                    for nth, block in enumerate(new, start=len(back)):
                        np.from_dlpack(block)[:] = prompt * 10 + nth
                    with device.register_blocks(new, hashes[len(back) :]) as shared:
                        if rng.random() < 0.3:
                            manager.offload(shared).result(10)
            return served

        with ThreadPoolExecutor(8) as threads:
            served = list(threads.map(serve, range(8)))
        assert sum(served) > 0
        gc.collect()
        assert device.available_blocks() == 64


def test_one_list_used_by_many_threads_at_once() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=64, host_blocks=0) as manager:
        for _ in range(20):
            blocks = manager.allocate_blocks(64)
            shared = iter(blocks)
            start = threading.Barrier(8)

            def use(
                worker: int,
                start: threading.Barrier = start,
                blocks: Any = blocks,
                it: Any = shared,
            ) -> list[int]:
                start.wait()
                seen = []
                for block in it:
                    try:
                        seen.append(block.block_id)
                        np.from_dlpack(block)[:] = worker
                    except BlockManagerError:
                        assert worker != 7
                if worker == 7:
                    blocks.release()
                return seen

            with ThreadPoolExecutor(8) as threads:
                seen = list(threads.map(use, range(8)))
            ids = sorted(block_id for part in seen for block_id in part)
            assert len(ids) == len(set(ids))
            del blocks, shared, use
            assert pool(manager).available_blocks() == 64


def test_a_list_is_released_by_another_thread() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=4, host_blocks=0) as manager:
        blocks = manager.allocate_blocks(4)
        threads = [threading.Thread(target=blocks.release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool(manager).available_blocks() == 4


def counts_while(work: Callable[[], object]) -> int:
    """How far another Python thread counts while `work` runs."""
    count, go, stop = 0, threading.Event(), threading.Event()

    def run() -> None:
        nonlocal count
        go.set()
        while not stop.is_set():
            count += 1
            time.sleep(0)  # gives the interpreter up

    thread = threading.Thread(target=run)
    thread.start()
    go.wait()
    # Nobody is made to give the interpreter up: whoever counts meanwhile was let.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        before = count
        work()
        return count - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_others_run_while_memory_is_committed() -> None:
    made = []
    counted = counts_while(
        lambda: made.append(BlockManager(**MIB, device_blocks=256, host_blocks=0, prefault=True))
    )
    made[0].close()
    assert counted > 0


def test_others_run_during_copies() -> None:
    with BlockManager(
        **MIB, device_blocks=128, host_blocks=128, offload_policy="manual"
    ) as manager:
        hashes = hash_tokens(range(128 * 16), 16)
        blocks = pool(manager).register_blocks(manager.allocate_blocks(128), hashes)
        assert counts_while(lambda: manager.offload(blocks).result()) > 0
        blocks.release()
        manager.allocate_blocks(128).release()
        assert counts_while(lambda: manager.onboard(hashes)) > 0
        copied: list[Any] = []
        blocks = pool(manager).match_sequence_hashes(hashes)
        assert counts_while(lambda: copied.append(np.from_dlpack(blocks, copy=True))) > 0
        assert counts_while(lambda: hash_tokens(np.arange(1_000_000, dtype=np.uint32), 16)) > 0


# --- waits ---


def test_a_wait_has_an_end_and_the_copy_goes_on() -> None:
    with BlockManager(
        **MIB, device_blocks=128, host_blocks=128, offload_policy="manual"
    ) as manager:
        hashes = hash_tokens(range(128 * 16), 16)
        blocks = pool(manager).register_blocks(manager.allocate_blocks(128), hashes)
        transfer = manager.offload(blocks)
        with pytest.raises(WaitTimeoutError, match=r"timeout = 0.*goes on") as caught:
            transfer.result(timeout=0)
        assert isinstance(caught.value, TimeoutError)
        assert transfer.result() == ["ok"] * 128


def test_a_cancelled_transfer_is_over_at_once() -> None:
    with BlockManager(
        **MIB, device_blocks=128, host_blocks=128, offload_policy="manual"
    ) as manager:
        hashes = hash_tokens(range(128 * 16), 16)
        blocks = pool(manager).register_blocks(manager.allocate_blocks(128), hashes)
        transfer = manager.offload(blocks)
        transfer.cancel()
        results = transfer.result(timeout=0)
        assert len(results) == 128
        assert set(results) <= {"ok", "the transfer was cancelled"}
        assert "the transfer was cancelled" in results


@pytest.mark.parametrize("verb", ["result", "onboard", "close"])
def test_a_signal_ends_a_wait(verb: str) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def interrupt(_number: int, _frame: object) -> None:
        raise Stop

    with BlockManager(
        **MIB, device_blocks=256, host_blocks=256, offload_policy="manual"
    ) as manager:
        hashes = hash_tokens(range(256 * 16), 16)
        blocks = pool(manager).register_blocks(manager.allocate_blocks(256), hashes)
        transfer = manager.offload(blocks)
        if verb == "onboard":
            transfer.result()
            blocks.release()
            manager.allocate_blocks(256).release()
        verbs: dict[str, Callable[[], object]] = {
            "result": transfer.result,
            "onboard": lambda: manager.onboard(hashes),
            "close": lambda: (manager.close(), transfer.result()),
        }
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Stop):  # noqa: PT012 - it may come at once
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                verbs[verb]()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


# --- forks ---


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child, then end it as Python ends; returns its exit status."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            work()
            gc.collect()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
            status = 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_is_refused_by_every_verb_and_releases_nothing() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=8) as manager:
        device = pool(manager)
        shared: Any = device.register_blocks(manager.allocate_blocks(2), [1, 2])
        blocks: Any = manager.allocate_blocks(2)
        array: Any = np.from_dlpack(shared[0])
        found: Any = manager.lookup([1])
        capsule: Any = blocks[1].__dlpack__()
        transfer = manager.offload(shared)
        block, layer = blocks[0], blocks[0][0]

        def child() -> None:
            nonlocal blocks, shared, found, array, capsule
            assert not array.any()
            verbs: list[Callable[[], object]] = [
                lambda: manager.allocate_blocks(1),
                lambda: manager.get_device_pool(),
                lambda: manager.lookup([1]),
                lambda: manager.onboard([1]),
                lambda: manager.offload(shared),
                lambda: manager.reset(),
                lambda: manager.status(),
                lambda: manager.metrics(),
                lambda: manager.findings,
                lambda: manager.close(),
                lambda: device.available_blocks(),
                lambda: device.allocate_blocks(1),
                lambda: device.register_blocks(blocks, [3, 4]),
                lambda: device.match_sequence_hashes([1]),
                lambda: blocks.release(),
                lambda: blocks.block_ids,
                lambda: blocks[0],
                lambda: list(blocks),
                lambda: bool(blocks),
                lambda: blocks.__dlpack__(),
                lambda: block.block_id,
                lambda: block.__dlpack__(),
                lambda: block.init_sequence(),
                lambda: bool(block),
                lambda: layer.__dlpack__(),
                lambda: found.release(),
                lambda: transfer.result(),
                lambda: transfer.cancel(),
            ]
            for verb in verbs:
                with pytest.raises(BlockManagerError, match="forked child"):
                    verb()
            for handle in (manager, device, blocks, block, layer, found, transfer):
                assert "parent process" in repr(handle)
            with manager, blocks, found:
                pass
            blocks = shared = found = array = capsule = None
            with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=8) as own:
                own.offload(pool(own).register_blocks(own.allocate_blocks(2), [1, 2])).result(10)

        assert in_child(child) == 0
        assert blocks
        assert device.available_blocks() == 4


def test_a_child_forked_under_load_neither_hangs_nor_dies() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=64, host_blocks=64) as manager:
        stop = threading.Event()

        def churn(seed: int) -> None:
            while not stop.is_set():
                with pool(manager).register_blocks(manager.allocate_blocks(4), [seed] * 4) as held:
                    manager.lookup([seed]).release()
                    np.from_dlpack(held[0])

        threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(1, 4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                blocks = manager.allocate_blocks(2)

                def child(blocks: Any = blocks) -> None:
                    with pytest.raises(BlockManagerError):
                        manager.allocate_blocks(1)
                    del blocks

                assert in_child(child) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()


# --- the end of the process ---


def ends(script: str, *, status: int = 0) -> str:
    """Run a program to its end, which comes soon; returns what it printed."""
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, *OPTIONS, "-c", PRELUDE + textwrap.dedent(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert time.monotonic() - before < 30
    return done.stdout


OPTIONS = ("-W", "error", "-W", FORKING, "-X", "dev")

PRELUDE = """
import os, sys, threading, time
import numpy as np
from dynamo_llm import BlockManager, hash_tokens

manager = BlockManager(8, 16, 2048, device_blocks=64, host_blocks=64, offload_policy="manual")
device = manager.get_device_pool()
hashes = hash_tokens(range(64 * 16), 16)
"""

ENDINGS = {
    "nothing": "",
    "blocks": "blocks = manager.allocate_blocks(4); block = blocks[0]; layer = block[1]",
    "views": """
        blocks = manager.allocate_blocks(4)
        arrays = [np.from_dlpack(block) for block in blocks]
        sys.kept_for_ever = np.from_dlpack(blocks[3])
        capsule = blocks[0].__dlpack__()
    """,
    "match": """
        device.register_blocks(manager.allocate_blocks(4), hashes[:4])
        found = manager.lookup(hashes)
    """,
    "transfer": "t = manager.offload(device.register_blocks(manager.allocate_blocks(64), hashes))",
    "write-through": """
        other = BlockManager(8, 16, 2048, device_blocks=64, host_blocks=64)
        other.get_device_pool().register_blocks(other.allocate_blocks(64), hashes)
    """,
    "daemon waiting": """
        def wait():
            while True:
                blocks = device.register_blocks(manager.allocate_blocks(64), hashes)
                manager.offload(blocks).result()
                blocks.release()
                manager.reset()
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.05)
    """,
    "daemons churning": """
        def churn():
            while True:
                with manager.allocate_blocks(4) as blocks:
                    [np.from_dlpack(block) for block in blocks]
                    manager.lookup(hashes)
                    hash_tokens(np.arange(200_000, dtype=np.uint32), 16)
        for _ in range(4):
            threading.Thread(target=churn, daemon=True).start()
        time.sleep(0.05)
    """,
    "finaliser": """
        class Last:
            def __init__(self, array): self.array = array
            def __del__(self): self.array[:] = 1
        sys.last = Last(np.from_dlpack(manager.allocate_blocks(1)[0]))
    """,
    "cycle": """
        class Knot: pass
        knot = Knot()
        knot.self, knot.blocks, knot.array = knot, manager.allocate_blocks(2), None
        knot.array = np.from_dlpack(knot.blocks[1])
    """,
    "thread": """
        def work():
            sys.blocks = manager.allocate_blocks(2)
            sys.exit(5)  # ends the thread, not the process
        thread = threading.Thread(target=work); thread.start(); thread.join()
    """,
    "child": """
        blocks = manager.allocate_blocks(4); array = np.from_dlpack(blocks[0])
        device.register_blocks(blocks[1:], hashes[:3])
        if os.fork():
            _, status = os.wait()
            assert os.waitstatus_to_exitcode(status) == 0, status
    """,
    "context in a child": """
        with manager, manager.allocate_blocks(4):
            if os.fork() == 0:
                sys.exit(0)
            _, status = os.wait()
            assert os.waitstatus_to_exitcode(status) == 0, status
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_well_with_everything_alive(ending: str) -> None:
    ends(ENDINGS[ending])


def test_an_exit_status_is_kept() -> None:
    ends("blocks = manager.allocate_blocks(4); sys.exit(3)", status=3)


def test_ctrl_c_during_a_wait_ends_the_process_as_it_should() -> None:
    script = """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        transfer = manager.offload(device.register_blocks(manager.allocate_blocks(64), hashes))
        try:
            threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                transfer.result()
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert ends(script) == "interrupted\n"


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_workers_make_their_own_manager(start: str) -> None:
    import multiprocessing

    with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=8) as manager:
        manager.allocate_blocks(1).release()
        context: Any = multiprocessing.get_context(start)
        worker = context.Process(target=_worker)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0


def _worker() -> None:
    with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=8) as manager:
        blocks = pool(manager).register_blocks(manager.allocate_blocks(2), [1, 2])
        assert manager.offload(blocks).result(10) == ["ok", "ok"]
