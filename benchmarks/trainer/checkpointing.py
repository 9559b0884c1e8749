"""The cost of a checkpoint of a given size: how long training stands still for it, and how long
saving and loading take.

    python -m benchmarks.trainer.checkpointing MEGABYTES TIMES cpu|cuda

A process of its own, because it holds the state several times over. Prints JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoints import Checkpointer, Outcome, State, choose, load
from trainer.config import Settings
from trainer.world import World

PARAMETERS = 100


def made_state(size: int, device: torch.device) -> State:
    """Weights and the two means of AdamW, `size` bytes in all, of random numbers."""
    generator = torch.Generator(device).manual_seed(0)
    numel = size // (3 * 4 * PARAMETERS)

    def tensor() -> Tensor:
        return torch.randn(numel, device=device, generator=generator)

    names = [f"block.{number}.weight" for number in range(PARAMETERS)]
    return {
        "step": 0,
        "model": {name: tensor() for name in names},
        "optimizer": {
            name: {"step": torch.tensor(1.0), "exp_avg": tensor(), "exp_avg_sq": tensor().square()} for name in names
        },
    }


def saving(state: State, folder: Path, device: torch.device, times: int, *, background: bool) -> dict[str, Any]:
    """Saves the state that often. Later ones find buffers and files as the first one has left them.

    `blocked_seconds` is until training may go on; `device_blocked_seconds` until its device has nothing left to copy.
    """
    settings = Settings.model_validate({"checkpoint_dir": folder, "keep": 1, "async_checkpoints": background})
    checkpointer = Checkpointer(settings, World(rank=0, size=1, device=device, backend=""))
    blocked = []
    on_device = []
    outcomes = []
    for step in range(1, times + 1):
        _wait_for(device)
        began = time.perf_counter()
        checkpointer.save(lambda: state, step=step)
        blocked.append(time.perf_counter() - began)
        _wait_for(device)
        on_device.append(time.perf_counter() - began)
        checkpointer.wait()
        outcomes += checkpointer.poll()
    written = [_good(outcome) for outcome in outcomes]
    return {
        "first_blocked_seconds": blocked[0],
        "blocked_seconds": statistics.median(blocked[1:] or blocked),
        "first_device_blocked_seconds": on_device[0],
        "device_blocked_seconds": statistics.median(on_device[1:] or on_device),
        "seconds": statistics.median(seconds for seconds, _ in written),
        "bytes": written[-1][1],
    }


def loading(state: State, folder: Path, times: int) -> dict[str, float]:
    """Seconds to find the newest valid checkpoint, which reads it all, and to get its tensors into live ones."""
    durations = []
    for _ in range(times):
        began = time.perf_counter()
        path = choose("auto", folder).path
        assert path is not None
        state_on_disk = load(path)
        for name, tensor in state["model"].items():
            tensor.copy_(state_on_disk["model"][name])
            for kind in ("exp_avg", "exp_avg_sq"):
                state["optimizer"][name][kind].copy_(state_on_disk["optimizer"][name][kind])
        _wait_for(next(iter(state["model"].values())).device)
        durations.append(time.perf_counter() - began)
    return {"seconds": statistics.median(durations)}


def measure(size: int, times: int, device: torch.device) -> dict[str, Any]:
    """Everything about a state of `size` bytes on a device."""
    state = made_state(size, device)
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        plain = Path(folder) / "plain"
        return {
            "state_bytes": size,
            "times": times,
            "sync": saving(state, plain, device, times, background=False),
            "load": loading(state, plain, times),
            "async": saving(state, Path(folder) / "async", device, times, background=True),
        }


def _good(outcome: Outcome) -> tuple[float, int]:
    if outcome.error is not None or outcome.seconds is None or outcome.bytes is None:
        raise OSError(f"checkpoint {outcome.path} was not written: {outcome.error}")
    return outcome.seconds, outcome.bytes


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    print(json.dumps(measure(int(float(sys.argv[1]) * 1e6), int(sys.argv[2]), torch.device(sys.argv[3]))))
