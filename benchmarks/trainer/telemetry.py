"""The cost of the trainer's telemetry per step, in processor time: it does not depend on what else
the machine does.

    python -m benchmarks.trainer.telemetry STEPS SETTINGS…

One process, whose steps have their telemetry and go without it in turn. Prints JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from trainer.config import Settings, from_arguments
from trainer.faults import Injector
from trainer.session import PhaseSession, TrainingProgress
from trainer.signals import Signals
from trainer.stepping import Stepper
from trainer.telemetry.telemetry import Telemetry
from trainer.world import World

_WARM_STEPS = 6


class Counted:
    """A telemetry that notes how much processor time this thread spends in it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.seconds = 0.0
        self._telemetry = telemetry

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._telemetry, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - began

        return counted


class Silent:
    """A telemetry that does nothing."""

    def observe(self, *_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def measure(settings: Settings) -> dict[str, Any]:
    """Processor seconds of a step without telemetry, and of its telemetry: line, timings, verdicts, console."""
    world = World(rank=0, size=1, device=torch.device("cpu"), backend="")
    telemetry = Telemetry(settings, world)
    counted = Counted(telemetry)
    without = []
    spent = []
    with Signals(60) as signals, PhaseSession(settings, world, 1, TrainingProgress()) as session:
        telemetry.enter(settings, world, settings.steps)
        faults = Injector((), 0, settings.output_dir)
        stepper = Stepper(session, telemetry, signals, faults)
        session.set_batches(session.batches)
        for step in range(1, settings.steps + 1):
            stepper.telemetry = stepper.results.telemetry = cast(Telemetry, counted if step % 2 else Silent())
            before = time.process_time()
            counted.seconds = 0.0
            stepper.step()
            if step > _WARM_STEPS:
                spent += [counted.seconds] if step % 2 else []
                without += [] if step % 2 else [time.process_time() - before]
    telemetry.close()
    step_seconds = statistics.median(without)
    seconds = statistics.mean(spent)
    percent = 100 * seconds / step_seconds
    return {"steps": len(spent), "step_seconds": step_seconds, "seconds": seconds, "percent": percent}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        flags = [*sys.argv[2:], "--steps", sys.argv[1], "--output-dir", str(Path(folder))]
        with contextlib.redirect_stdout(io.StringIO()):
            figures = measure(from_arguments(flags, {})[0])
    print(json.dumps(figures))
