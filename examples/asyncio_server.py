"""An inference server in small: requests share prefixes, and what one computes the others find.

Each request looks up its prompt, brings up what is cached on any tier, computes the rest, and lets
the new blocks go down to the host while it decodes. One client hangs up in the middle; its blocks
go back, and nobody else notices.
"""

import asyncio

import numpy as np

from dynamo_llm import BlockManager, HashList, hash_tokens

PAGE = 16
SYSTEM_PROMPT = list(range(1000, 1000 + 8 * PAGE))


class Server:
    """A model, whose keys and values are made up, and its cache."""

    def __init__(self, manager: BlockManager, slots: int) -> None:
        """Serve with `manager`, at most so many requests at a time: each must have its room."""
        self.manager = manager
        self.device = manager.get_device_pool()
        self.room = asyncio.Semaphore(slots)
        self.computed = 0
        self.reused = 0

    async def generate(self, prompt: list[int], decoding: "asyncio.Event | None" = None) -> int:
        """Answer a prompt; returns how many of its blocks were found. Sets `decoding` after it."""
        hashes = hash_tokens(prompt, PAGE)
        async with self.room:
            with await self.manager.onboard_async(hashes) as cached:
                found = len(cached)
                for block, number in zip(cached, hashes, strict=False):
                    assert (np.from_dlpack(block) == value(int(number))).all()
                self.reused += found
                await self.prefill(hashes, found, decoding)
        return found

    async def prefill(self, hashes: HashList, found: int, decoding: "asyncio.Event | None") -> None:
        """Compute the blocks that were not found, and decode."""
        missing = hashes[found:]
        with await self.manager.allocate_blocks_async(len(missing)) as blocks:
            for block, number in zip(blocks, missing, strict=True):
                np.from_dlpack(block)[:] = value(int(number))  # a layer at a time, on a GPU
                await asyncio.sleep(0)
            self.computed += len(missing)
            with await self.device.register_blocks_async(blocks, missing) as registered:
                transfer = self.manager.offload(registered)
                try:
                    if decoding is not None:
                        decoding.set()
                        await asyncio.Event().wait()  # a long answer
                finally:  # also when the client has gone: it may come back and go on
                    assert set(await transfer) <= {"ok"}


def value(number: int) -> float:
    """What the model computes for a block: anything, as long as it follows from the tokens."""
    return float(number % 1009)


async def main() -> None:
    """Serve a few clients."""
    async with BlockManager(
        num_layers=4, page_size=PAGE, inner_dim=64, device_blocks=64, host_blocks=256
    ) as manager:
        server = Server(manager, slots=4)
        # The first request computes the system prompt; those after it find that.
        await server.generate(SYSTEM_PROMPT)
        prompts = [SYSTEM_PROMPT + [client] * (4 * PAGE) for client in range(12)]
        async with asyncio.TaskGroup() as clients:
            answers = [clients.create_task(server.generate(prompt)) for prompt in prompts]
        assert all(answer.result() == 8 for answer in answers)

        # A client that hangs up while its answer is being written.
        decoding = asyncio.Event()
        impatient = asyncio.create_task(
            server.generate(SYSTEM_PROMPT + [99] * (4 * PAGE), decoding)
        )
        await decoding.wait()
        impatient.cancel()
        await asyncio.wait([impatient])
        assert impatient.cancelled()

        # Other work has taken the device; the conversations come back from the host.
        (await manager.allocate_blocks_async(64)).release()
        async with asyncio.TaskGroup() as clients:
            answers = [
                clients.create_task(server.generate(prompt + [7] * PAGE)) for prompt in prompts
            ]
        assert all(answer.result() == 12 for answer in answers)
        assert server.device.available_blocks() == 64

        print(manager.status())
        print(f"{server.computed} blocks computed, {server.reused} reused")


asyncio.run(main())
