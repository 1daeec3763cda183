"""The verbs that end in `_async`: the same as without, and the loop goes on meanwhile."""

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from dynamo_llm import (
    ArgumentError,
    BlockList,
    BlockManager,
    BlockManagerError,
    BlockPool,
    HashList,
    NotEnoughBlocksError,
    Transfer,
    WaitTimeoutError,
    hash_tokens,
)
from support import ROOT, environment

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

PAGE = 4
MIB: dict[str, Any] = {"num_layers": 8, "page_size": PAGE, "inner_dim": 8192}
"""Blocks of 1 MiB, whose copies take a while."""
TRIES = 200
"""Attempts to catch a copy under way; the first few do."""


def loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops there are."""
    try:
        import uvloop
    except ImportError:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes an event loop, of each kind in turn."""
    if request.param not in loops():
        pytest.skip(f"{request.param} is not installed")
    return loops()[request.param]


@pytest.fixture
def run(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Run[Any]]:
    """Run a coroutine to its end, in a loop that is closed after the test."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        yield runner.run


@pytest.fixture
def manager() -> Iterator[BlockManager]:
    """Eight small blocks on the device, thirty-two on the host; only `offload` copies down."""
    with BlockManager(
        2, PAGE, 8, device_blocks=8, host_blocks=32, offload_policy="manual"
    ) as manager:
        yield manager


@pytest.fixture
def large() -> Iterator[BlockManager]:
    """Thirty-two blocks of 1 MiB in each tier."""
    with BlockManager(**MIB, device_blocks=32, host_blocks=32, offload_policy="manual") as manager:
        yield manager


def pool(manager: BlockManager) -> BlockPool:
    """A manager's device tier."""
    device = manager.get_device_pool()
    assert isinstance(device, BlockPool)
    return device


def filled(manager: BlockManager, hashes: HashList) -> BlockList:
    """Registered blocks whose elements are 1, 2, 3, ..."""
    blocks = manager.allocate_blocks(len(hashes))
    for number, block in enumerate(blocks, start=1):
        np.from_dlpack(block)[:] = number
    return pool(manager).register_blocks(blocks, hashes)


def hashes_of(blocks: int) -> HashList:
    """The hashes of so many blocks."""
    return hash_tokens(range(blocks * PAGE), PAGE)


def stored(manager: BlockManager, hashes: HashList) -> None:
    """Put blocks into the host tier, and out of the device tier."""
    with filled(manager, hashes) as blocks:
        assert set(manager.offload(blocks).result(10)) == {"ok"}
    manager.allocate_blocks(pool(manager).total_blocks()).release()


def eventfds() -> int:
    """The eventfds that are open in this process."""
    links = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            links.append(os.readlink(entry.path))
        except FileNotFoundError:  # that of the directory itself
            continue
    return links.count("anon_inode:[eventfd]")


async def at_rest(manager: BlockManager) -> None:
    """Wait until no block is held and no copy is under way."""
    while any(tier["mutable"] or tier["active"] for tier in manager.status()["tiers"].values()):
        await asyncio.sleep(0)


# --- twins ---


@pytest.mark.parametrize("kind", [BlockManager, BlockPool, Transfer])
def test_twins_take_the_same_arguments(kind: type) -> None:
    twins = [name for name in dir(kind) if name.endswith("_async")]
    assert twins
    for twin in twins:
        verb = getattr(kind, twin.removesuffix("_async"))
        assert inspect.signature(getattr(kind, twin)) == inspect.signature(verb)


def test_the_whole_way(run: Run[None], manager: BlockManager) -> None:
    async def way() -> None:
        device = pool(manager)
        hashes = hashes_of(4)
        blocks = await manager.allocate_blocks_async(4)
        for number, block in enumerate(blocks, start=1):
            np.from_dlpack(block)[:] = number
        with await device.register_blocks_async(blocks, hashes) as blocks:
            with await device.match_sequence_hashes_async(hashes) as found:
                assert found.block_ids == blocks.block_ids
            assert await manager.offload(blocks) == ["ok"] * 4
            assert await manager.offload(blocks).result_async(timeout=10) == ["ok"] * 4
        (await device.allocate_blocks_async(8)).release()

        match = await manager.lookup_async(hashes)
        assert match.counts == {"device": 0, "host": 4}
        with await manager.onboard_async(match) as back:
            assert [np.from_dlpack(block).max() for block in back] == [1, 2, 3, 4]
        with await manager.onboard_async(hashes, skip=1) as back:
            assert [block.sequence_hash() for block in back] == list(hashes[1:])
        assert await manager.reset_async() is None  # type: ignore[func-returns-value]
        assert len(await manager.lookup_async(hashes)) == 0
        assert await manager.close_async() == 0
        assert await manager.close_async() == 0

    run(way())


def test_async_with_closes(run: Run[None], manager: BlockManager) -> None:
    async def leave() -> None:
        async with manager as entered:
            assert entered is manager
            manager.offload(filled(manager, hashes_of(8)))
        assert manager.status()["edges"]["device->host"]["blocks"] == 8
        with pytest.raises(BlockManagerError, match="closed"):
            _ = manager.lookup_async(hashes_of(1))

    run(leave())


def test_an_error_passes_through_async_with(run: Run[None], large: BlockManager) -> None:
    async def leave() -> None:
        async with large:
            large.offload(filled(large, hashes_of(32)))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(leave())
    assert large.status()["closed"]


def test_coroutines_have_the_names_of_their_verbs(manager: BlockManager) -> None:
    lookup: Any = manager.lookup_async(hashes_of(1))
    assert lookup.__qualname__ == "BlockManager.lookup_async"
    assert lookup.__name__ == "lookup_async"
    lookup.close()


# --- errors ---


def test_arguments_are_refused_by_the_call(manager: BlockManager) -> None:
    device, blocks = pool(manager), manager.allocate_blocks(2)
    with pytest.raises(ArgumentError, match="n = -1"):
        _ = manager.allocate_blocks_async(-1)
    with pytest.raises(TypeError, match="timeout"):
        _ = manager.close_async("soon")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="hashes"):
        _ = manager.lookup_async(1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="1 for 2 blocks"):
        _ = device.register_blocks_async(blocks, hashes_of(1))


def test_what_the_verb_raises_the_await_raises(run: Run[None], manager: BlockManager) -> None:
    async def ask() -> None:
        with pytest.raises(NotEnoughBlocksError, match=r"9.*8"):
            await manager.allocate_blocks_async(9)
        device = pool(manager)
        blocks = manager.allocate_blocks(1)
        with pytest.raises(BlockManagerError, match="no hash"):
            await device.register_blocks_async(blocks)
        await device.register_blocks_async(blocks, hashes_of(1))
        with pytest.raises(BlockManagerError, match="no longer valid"):
            await device.register_blocks_async(blocks, hashes_of(1))

    run(ask())


def test_a_coroutine_is_awaited_once(run: Run[None], manager: BlockManager) -> None:
    async def twice() -> None:
        lookup = manager.lookup_async(hashes_of(1))
        await lookup
        with pytest.raises(RuntimeError, match="already awaited"):
            await lookup

    run(twice())


# --- transfers ---


def test_several_await_one_transfer(run: Run[None], large: BlockManager) -> None:
    async def wait(transfer: Transfer) -> list[str]:
        return await transfer

    async def several() -> None:
        transfer = large.offload(filled(large, hashes_of(32)))
        everybody = await asyncio.gather(wait(transfer), wait(transfer), transfer.result_async())
        assert list(everybody) == [["ok"] * 32] * 3
        assert await transfer == transfer.result() == ["ok"] * 32

    run(several())


@pytest.mark.parametrize("verb", ["result_async", "onboard_async", "close_async"])
def test_the_loop_goes_on_meanwhile(run: Run[int], verb: str) -> None:
    async def turns() -> int:
        with BlockManager(
            **MIB, device_blocks=32, host_blocks=32, offload_policy="manual"
        ) as manager:
            hashes = hashes_of(32)
            waiting: Coroutine[Any, Any, object]
            if verb == "onboard_async":
                stored(manager, hashes)
                waiting = manager.onboard_async(hashes)
            else:
                with filled(manager, hashes) as blocks:
                    transfer = manager.offload(blocks)
                down = verb == "result_async"
                waiting = transfer.result_async() if down else manager.close_async()
            task, turns = asyncio.create_task(waiting), 0
            while not task.done():
                turns += 1
                await asyncio.sleep(0)
            assert task.result() is not None
            return turns

    # A busy machine may have copied everything before the loop turns once; not each time.
    assert any(run(turns()) > 10 for _ in range(TRIES))


def test_a_timeout_lets_the_transfer_go_on(run: Run[None], large: BlockManager) -> None:
    async def impatient() -> None:
        blocks = filled(large, hashes_of(32))
        transfer = large.offload(blocks)
        late: list[str] = []
        for turns in range(TRIES):
            try:
                await transfer.result_async(timeout=turns % 2 / 10_000)
            except WaitTimeoutError as error:
                late.append(str(error))
        assert any(text.startswith("timeout = 0: the copy of 32 blocks has") for text in late)
        assert await transfer.result_async(timeout=60) == ["ok"] * 32
        assert await transfer.result_async(timeout=float("inf")) == ["ok"] * 32

    run(impatient())


def test_a_deadline_gives_what_has_arrived(run: Run[None], large: BlockManager) -> None:
    async def hurry() -> None:
        hashes = hashes_of(32)
        stored(large, hashes)
        with await large.onboard_async(hashes, deadline=0) as arrived:
            assert [block.sequence_hash() for block in arrived] == list(hashes[: len(arrived)])
        await at_rest(large)
        with await large.onboard_async(hashes, deadline=60) as arrived:
            assert len(arrived) == 32

    run(hurry())


# --- cancelling ---


def test_cancelling_an_await_cancels_the_transfer(run: Run[None], large: BlockManager) -> None:
    async def cancel_often() -> None:
        hashes = hashes_of(32)
        cancelled = 0
        for turns in range(TRIES):
            blocks = filled(large, hashes)
            transfer = large.offload(blocks)
            task = asyncio.create_task(transfer.result_async())
            for _ in range(1 + turns % 3):
                await asyncio.sleep(0)
            task.cancel()
            try:
                statuses = await task
            except asyncio.CancelledError:
                assert transfer.done()
                statuses = transfer.result(0)
            assert set(statuses) <= {"ok", "the transfer was cancelled"}
            cancelled += "the transfer was cancelled" in statuses
            blocks.release()
            await at_rest(large)
            assert pool(large).available_blocks() == 32
            if cancelled == 4:
                break
            large.reset()
        assert cancelled == 4

    run(cancel_often())


def test_a_time_limit_around_an_await_cancels_the_transfer(
    run: Run[None], large: BlockManager
) -> None:
    async def limited() -> None:
        transfer = large.offload(filled(large, hashes_of(32)))
        try:
            async with asyncio.timeout(0):
                await transfer
        except TimeoutError:
            assert transfer.done()
            assert "the transfer was cancelled" in transfer.result(0)

    run(limited())


def test_a_shield_protects_the_transfer(run: Run[None], large: BlockManager) -> None:
    async def shielded() -> None:
        transfer = large.offload(filled(large, hashes_of(32)))
        wait = asyncio.ensure_future(transfer)
        outer = asyncio.shield(wait)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert await wait == ["ok"] * 32

    run(shielded())


def test_cancelling_an_onboarding_leaves_nothing_behind(
    run: Run[None], large: BlockManager
) -> None:
    async def cancel_often() -> None:
        hashes = hashes_of(16)
        stored(large, hashes)
        cancelled = 0
        for turns in range(TRIES):
            into = large.allocate_blocks(20)
            ids = into.block_ids
            task = asyncio.create_task(large.onboard_async(hashes, into=into))
            for _ in range(1 + turns % 3):
                await asyncio.sleep(0)
            task.cancel()
            try:
                (await task).release()
            except asyncio.CancelledError:
                cancelled += 1
            # Those that nothing has come into are what they were.
            kept = [(place, block) for place, block in enumerate(into) if block]
            assert [place for place, _ in kept if place > 15] == [16, 17, 18, 19]
            assert [block.block_id for _, block in kept] == [ids[place] for place, _ in kept]
            into.release()
            await at_rest(large)
            assert pool(large).available_blocks() == 32
            large.allocate_blocks(32).release()
            if cancelled == 8:
                break
        assert cancelled > 0
        with await large.onboard_async(hashes) as back:
            assert [np.from_dlpack(block).max() for block in back] == list(range(1, 17))

    run(cancel_often())


def test_what_never_runs_has_not_begun(run: Run[None], manager: BlockManager) -> None:
    async def never() -> None:
        hashes = hashes_of(4)
        stored(manager, hashes)
        found, into = manager.lookup(hashes), manager.allocate_blocks(4)
        for begin in (
            lambda: manager.onboard_async(found, into=into),
            lambda: manager.allocate_blocks_async(4),
            lambda: manager.reset_async(),
            lambda: manager.set_weights_version_async("v2"),
            lambda: manager.close_async(),
        ):
            task = asyncio.create_task(begin())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert pool(manager).available_blocks() == 4
        with await manager.onboard_async(found, into=into) as back:
            assert len(back) == 4

    run(never())


def test_slots_given_up_after_their_release_go_home(run: Run[None], large: BlockManager) -> None:
    async def careless() -> None:
        hashes = hashes_of(16)
        stored(large, hashes)
        into = large.allocate_blocks(20)
        task = asyncio.create_task(large.onboard_async(hashes, into=into))
        await asyncio.sleep(0)
        into.release()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result().release()
        await at_rest(large)
        assert pool(large).available_blocks() == 32
        assert not into

    run(careless())


def test_cancelling_close_closes_at_once(run: Run[None], large: BlockManager) -> None:
    async def leave() -> None:
        transfer = large.offload(filled(large, hashes_of(32)))
        task = asyncio.create_task(large.close_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert large.status()["closed"]
        with pytest.raises(BlockManagerError, match="closed"):
            large.lookup(hashes_of(1))
        assert await large.close_async() == 0
        await transfer

    run(leave())


# --- loops ---


def test_loops_in_threads_share_a_manager(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    served: list[int] = []

    async def request(manager: BlockManager, number: int) -> int:
        prompt = number % 5
        hashes = hash_tokens(range(prompt * 1000, prompt * 1000 + 4 * PAGE), PAGE)
        with await manager.onboard_async(await manager.lookup_async(hashes)) as back:
            for nth, block in enumerate(back):
                assert (np.from_dlpack(block) == prompt * 10 + nth).all()
            hit = len(back)
            new = await manager.allocate_blocks_async(4 - hit)
            for nth, block in enumerate(new, start=hit):
                np.from_dlpack(block)[:] = prompt * 10 + nth
            with await pool(manager).register_blocks_async(new, hashes[hit:]) as blocks:
                assert set(await manager.offload(blocks)) <= {"ok"}
        return hit

    def thread(manager: BlockManager, worker: int) -> None:
        async def requests() -> None:
            for start in range(40):
                numbers = range(start + worker, start + worker + 3)
                served.extend(
                    await asyncio.gather(*[request(manager, number) for number in numbers])
                )

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(requests())

    before = eventfds()
    with BlockManager(2, PAGE, 8, device_blocks=64, host_blocks=64) as manager:
        threads = [threading.Thread(target=thread, args=(manager, n)) for n in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(served) == 4 * 40 * 3
        assert sum(served) > 0
        assert pool(manager).available_blocks() == 64
    assert eventfds() == before


def test_a_loop_has_one_eventfd_however_many_wait(
    new_loop: Callable[[], asyncio.AbstractEventLoop], large: BlockManager
) -> None:
    async def many() -> None:
        blocks = filled(large, hashes_of(32))
        before = eventfds()
        transfers = [large.offload(blocks[nth : nth + 1]) for nth in range(32)]
        waits = [asyncio.create_task(transfer.result_async()) for transfer in transfers * 4]
        await asyncio.sleep(0)
        assert eventfds() == before + 1
        assert await asyncio.gather(*waits) == [["ok"]] * 128
        assert eventfds() == before + 1

    before = eventfds()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(many())
    assert eventfds() == before


def test_a_loop_closed_with_work_pending_keeps_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop], large: BlockManager
) -> None:
    before = eventfds()
    told: list[dict[str, Any]] = []
    caught = 0
    for _ in range(TRIES):
        blocks = filled(large, hashes_of(32))
        loop = new_loop()
        loop.set_exception_handler(lambda _loop, context: told.append(context))
        transfer = large.offload(blocks)
        task = loop.create_task(transfer.result_async())
        loop.run_until_complete(asyncio.sleep(0))
        caught += not task.done()
        loop.close()
        assert eventfds() == before  # although the task is still there
        if not task.done():
            # What rings now has nobody to hear it; the copy goes on, for others.
            assert len(transfer.result(60)) == 32
        del task, loop
        gc.collect()
        blocks.release()
        large.reset()
        if caught == 3:
            break
    assert caught == 3
    assert all("pending" in context["message"] for context in told)


def test_a_task_that_nobody_keeps_is_kept_by_its_loop(run: Run[None], large: BlockManager) -> None:
    async def forgetful() -> None:
        ended = asyncio.Event()
        transfer = large.offload(filled(large, hashes_of(32)))

        async def wait() -> None:
            await transfer
            ended.set()

        asyncio.create_task(wait())  # noqa: RUF006
        await asyncio.sleep(0)
        gc.collect()
        await ended.wait()
        assert transfer.result(0) == ["ok"] * 32

    run(forgetful())


def test_what_is_over_leaves_nothing_in_the_loop(run: Run[None], manager: BlockManager) -> None:
    async def often() -> None:
        hashes = hashes_of(4)
        stored(manager, hashes)
        for _ in range(50):
            with await manager.onboard_async(hashes) as blocks:
                await manager.offload(blocks)
            manager.allocate_blocks(8).release()
        from dynamo_llm import _aio

        bridge = _aio._known(asyncio.get_running_loop())
        assert bridge is not None
        assert bridge.waiting == {}

    run(often())


# --- the process ---


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


def test_the_package_imports_no_asyncio(tmp_path: Path) -> None:
    done = python(
        """
        import dynamo_llm, sys
        print([name for name in ("asyncio", "logging") if name in sys.modules])
        with dynamo_llm.BlockManager(1, 4, 8, device_blocks=1, host_blocks=0) as manager:
            manager.allocate_blocks(1)
        print("asyncio" in sys.modules)
        """,
        tmp_path,
    )
    assert done.stdout == "[]\nFalse\n", done.stderr


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused_and_has_loops_of_its_own(large: BlockManager) -> None:
    async def verbs(manager: BlockManager, device: BlockPool, transfer: Transfer) -> int:
        refused = 0
        calls: list[Callable[[], Any]] = [
            lambda: manager.allocate_blocks_async(1),
            lambda: manager.lookup_async(hashes_of(1)),
            lambda: manager.onboard_async(hashes_of(1)),
            lambda: manager.reset_async(),
            lambda: manager.set_weights_version_async("v2"),
            lambda: manager.close_async(),
            lambda: device.allocate_blocks_async(1),
            lambda: device.match_sequence_hashes_async(hashes_of(1)),
            lambda: transfer.result_async(),
            lambda: transfer.__await__(),
        ]
        for call in calls:
            try:
                call()
            except BlockManagerError:
                refused += 1
        async with manager:
            pass
        async with BlockManager(2, PAGE, 8, device_blocks=8, host_blocks=8) as own:
            stored(own, hashes_of(4))
            with await own.onboard_async(hashes_of(4)) as back:
                refused += len(back) == 4
        return refused - len(calls) - 1

    async def fork() -> None:
        # With a loop of the parent's at work, as servers fork.
        transfer = large.offload(filled(large, hashes_of(32)))
        wait = asyncio.create_task(transfer.result_async())
        await asyncio.sleep(0)
        device = pool(large)
        child = os.fork()
        if child == 0:  # nothing of pytest may run in here
            status = 1
            try:
                asyncio.events._set_running_loop(None)
                status = asyncio.run(verbs(large, device, transfer))
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await wait == ["ok"] * 32

    asyncio.run(fork())


ENDINGS = {
    "the loop is not closed": "loop.run_until_complete(begin()); hold = loop",
    "the loop is closed": "loop.run_until_complete(begin()); loop.close()",
    "a daemon thread has it": """
        started = threading.Event()
        loop.call_soon(started.set)
        threading.Thread(target=loop.run_forever, daemon=True).start()
        started.wait()
        asyncio.run_coroutine_threadsafe(begin(), loop).result()
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_well_with_work_pending(ending: str, tmp_path: Path) -> None:
    script = f"""
    import asyncio, gc, threading
    import dynamo_llm

    manager = dynamo_llm.BlockManager(
        8, 4, 8192, device_blocks=32, host_blocks=32, offload_policy="manual")
    hashes = dynamo_llm.hash_tokens(range(128), 4)
    blocks = manager.get_device_pool().register_blocks(manager.allocate_blocks(32), hashes)
    tasks = []

    async def begin():
        transfer = manager.offload(blocks)
        tasks.append(asyncio.ensure_future(transfer))
        tasks.append(asyncio.ensure_future(manager.reset_async()))
        tasks.append(asyncio.ensure_future(manager.close_async()))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    {textwrap.indent(textwrap.dedent(ENDINGS[ending]), "    ").strip()}
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "asyncio_server.py")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" reused\n")
