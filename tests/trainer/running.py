"""Running the trainer in a test: in this process where one is enough, under torchrun where it takes several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from trainer import config
from trainer.__main__ import main
from trainer.run import Run
from trainer.signals import Signals
from trainer.telemetry.telemetry import Telemetry
from trainer.world import World

ROOT = Path(__file__).parents[2]

# For what always comes, if late: three interpreters that import torch take minutes on a crowded machine.
PATIENCE_SECONDS = 400.0

# A few seconds' worth of digits becomes a fraction of one.
SMALL = ("--batch-size", "8", "--warmup-steps", "5", "--width", "8", "--depth", "1")


def small(*flags: str) -> list[str]:
    """A small run's flags before those of a test, which may choose the accumulation in either way."""
    accumulation = [] if "--samples-per-step" in flags else ["--grad-accum", "2"]
    return [*SMALL, *accumulation, *flags]


def train(output: Path, *flags: str) -> int:
    """A small run in this process, as the single rank; its exit code."""
    return main(small("--output-dir", str(output), *flags))


def settings(*flags: str) -> config.Settings:
    return config.from_arguments(small(*flags), {})[0]


def train_on(world: World, output: Path, *flags: str) -> None:
    """A small run on the ranks of a world; all of them call it."""
    chosen = settings("--output-dir", str(output), *flags)
    telemetry = Telemetry(chosen, world)
    try:
        with Signals(chosen.stop_timeout) as signals:
            Run(chosen, world, telemetry, signals).train()
    finally:
        telemetry.close()


def start_torchrun(*arguments: str, error_file: Path | None = None) -> subprocess.Popen[str]:
    """Two gloo ranks; stdout and stderr come together."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "GPUTUI"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    if error_file:
        environment["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def torchrun(*arguments: str, error_file: Path | None = None) -> tuple[int, str]:
    """Exit code and output of two ranks that end by themselves."""
    with start_torchrun(*arguments, error_file=error_file) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, output


def lines(output: Path) -> list[dict[str, Any]]:
    """Every metrics line of a run; fails on one that is not JSON."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def step_lines(output: Path) -> list[dict[str, Any]]:
    return [line for line in lines(output) if "loss" in line]


def events(output: Path, name: str) -> list[dict[str, Any]]:
    return [line for line in lines(output) if line.get("event") == name]


def checkpoints(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "checkpoints").glob("step_*.pt"))


def train_and_crash(world: World, output: Path, step: int, *flags: str) -> None:
    """Trains until all ranks crash as a step begins, so that nobody is left waiting."""
    fault = ";".join(f"crash@step={step},rank={rank}" for rank in range(world.size))
    with pytest.raises(RuntimeError, match=f"injected crash at step {step} on rank {world.rank}"):
        train_on(world, output, *flags, "--inject", fault)


def train_until(world: World, output: Path, step: int, *flags: str, signalled: tuple[int, ...] = (0, 1)) -> None:
    """Trains; these ranks ask themselves to stop when that step has been written."""
    metrics = output / "metrics.jsonl"

    def ask() -> None:
        wait_until(lambda: metrics.exists() and f'"step": {step},' in metrics.read_text(), 250, f"step {step}")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask)
    if world.rank in signalled:
        thread.start()
    train_on(world, output, *flags)
    if world.rank in signalled:
        thread.join()


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
