"""Blocks on two local drives: there after a restart, and kept apart by the weights they belong to.

The two folders stand for two drives. Name real ones (`/mnt/nvme0/cache`, `/mnt/nvme1/cache`), and
what is stored is there tomorrow; the sizes bound everything that is put into them.
"""

import tempfile
from pathlib import Path

import numpy as np

from dynamo_llm import BlockManager, HashList, hash_tokens

PAGE = 16


def start(folder: Path, weights: str) -> BlockManager:
    """A manager over both drives; the second is not to be worn out."""
    return BlockManager(
        num_layers=4,
        page_size=PAGE,
        inner_dim=64,
        device_blocks=16,
        host_blocks=0,
        model="example",
        revision=weights,
        disk=[
            {"dir": str(folder / "drive0"), "bytes": "8 MiB"},
            {"dir": str(folder / "drive1"), "bytes": "8 MiB", "write_bytes_per_day": "1 GB"},
        ],
    )


def serve(manager: BlockManager, hashes: HashList, value: float) -> str:
    """Bring up what is cached and compute the rest, all of it `value`: what these weights make."""
    device = manager.get_device_pool()
    with manager.onboard(hashes) as cached:
        assert all((np.from_dlpack(block) == value).all() for block in cached)
        found, missing = len(cached), hashes[len(cached) :]
        blocks = manager.allocate_blocks(len(missing))
        for block in blocks:
            np.from_dlpack(block)[:] = value  # an engine would compute keys and values here
        with device.register_blocks(blocks, missing) as computed:
            # By themselves blocks go down in the background; here it is waited for.
            assert set(manager.offload(computed, to="disk").result(timeout=10)) <= {"ok"}
    device.allocate_blocks(device.total_blocks()).release()  # other requests take the device
    return f"{found} blocks found, {len(missing)} computed"


def main() -> None:
    """Store, restart, swap the weights and swap them back."""
    hashes = hash_tokens(range(12 * PAGE), PAGE)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with start(folder, weights="step 100") as manager:
            print("first request:  ", serve(manager, hashes, 1))
        # The process may as well have been killed: what was `ok` is there.
        with start(folder, weights="step 100") as manager:
            print("after a restart:", serve(manager, hashes, 1))
            manager.set_weights_version("step 200")  # the engine has loaded other weights
            print("other weights:  ", serve(manager, hashes, 2))
            known = manager.set_weights_version("step 100")
            print("the former back:", serve(manager, hashes, 1), f"({known} known on disk)")
            status = manager.status()
    for drive in status["drives"]:
        name, hits, written = Path(drive["dir"]).name, drive["hits"], drive["written_bytes"]
        each = drive["written_bytes_per_hit"]
        cost = "no hit" if each is None else f"{each:.0f} bytes written per hit"
        print(f"{name}: {hits} hits, {written} bytes written since the restart, {cost}")


main()
