"""Injected faults, to test a supervisor.

A fault is ``kind@step=N`` with further options after commas. Several are separated by semicolons::

    oom@step=40                       a CUDA out-of-memory error on rank 0 as step 40 begins
    crash@step=25,rank=1              a RuntimeError on rank 1
    slow@step=10,seconds=0.5,times=always
    oom@step=40,above=8,times=always  out of memory until micro batches are of 8 samples or fewer

It fires once per output directory, however often the run is resumed there: a marker file is on disk before it fires.
``times=N`` lets it fire N times, ``times=always`` every time.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import SettingsError, show

# Kinds, with their options besides step, rank and times, and their effect at the start of the step.
KINDS: dict[str, tuple[str, ...]] = {
    "oom": ("above",),  # raises torch.OutOfMemoryError with CUDA's text, where the micro batch is above a size
    "crash": (),  # raises RuntimeError
    "exit": ("code",),  # ends the process with an exit code
    "kill": (),  # SIGKILL to itself
    "hang": (),  # never comes back
    "slow": ("seconds",),  # sleeps, from that step on, as many steps as `times` allows
    "nan": (),  # makes the loss of that step NaN
    "disk_full": (),  # ENOSPC from the first checkpoint at or after that step
}

ALWAYS = -1

OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {gpu} has a total capacity of 79.15 GiB of which 1.21 GiB is"
    " free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory 76.84 GiB"
    " is allocated by PyTorch, and 412.50 MiB is reserved by PyTorch but unallocated. If reserved but unallocated"
    " memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


@dataclass(frozen=True)
class PlannedFault:
    """One fault. `times` is how often it may fire in an output directory, or ALWAYS."""

    kind: str
    step: int
    rank: int = 0
    times: int = 1
    code: int = 1
    seconds: float = 1.0
    above: int = 0

    def __str__(self) -> str:
        """The description with all options, which `parse` accepts."""
        parts = [f"step={self.step}", f"rank={self.rank}"]
        parts += [f"{name}={getattr(self, name)}" for name in KINDS[self.kind] if name != "above" or self.above]
        if self.times != 1:
            parts.append(f"times={'always' if self.times == ALWAYS else self.times}")
        return f"{self.kind}@{','.join(parts)}"

    def due(self, step: int, batch_size: int) -> bool:
        """Whether it fires in this step with micro batches of this size."""
        from_then_on = self.kind in ("slow", "disk_full")
        return (step >= self.step if from_then_on else step == self.step) and batch_size > self.above


def parse(text: str) -> list[PlannedFault]:
    """Parse faults; an empty text or ``none`` is no fault. Raises SettingsError naming fault and problem."""
    if text.strip().lower() in ("", "none"):
        return []
    return [_parse_one(part.strip()) for part in text.split(";") if part.strip()]


def _parse_one(text: str) -> PlannedFault:
    def invalid(reason: str) -> SettingsError:
        return SettingsError(f"--inject {text}: {reason}")

    kind, at, rest = text.partition("@")
    if kind not in KINDS:
        raise invalid(f"unknown fault {kind!r}; one of {', '.join(KINDS)}, as in oom@step=40")
    allowed = ("step", "rank", "times", *KINDS[kind])
    values: dict[str, str] = {}
    for option in rest.split(",") if at else []:
        name, equals, value = (part.strip() for part in option.partition("="))
        if not equals or name not in allowed:
            raise invalid(f"expected {', '.join(f'{name}=' for name in allowed)} after the @, got {option!r}")
        if name in values:
            raise invalid(f"{name}= is there twice")
        values[name] = value
    if "step" not in values:
        raise invalid(f"the step is missing, as in {kind}@step=40")

    def whole(name: str, default: int, least: int) -> int:
        value = values.get(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < least:
            raise invalid(f"{name}= must be a whole number of at least {least}, got {value!r}")
        return int(value)

    try:
        seconds = float(values.get("seconds", "1"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise invalid(f"seconds= must be a number of at least 0, got {values['seconds']!r}")
    fault = PlannedFault(
        kind=kind,
        step=whole("step", 0, 1),
        rank=whole("rank", 0, 0),
        times=ALWAYS if values.get("times") == "always" else whole("times", 1, 1),
        code=whole("code", 1, 0),
        seconds=seconds,
        above=whole("above", 0, 0),
    )
    if kind == "disk_full" and fault.rank != 0:
        raise invalid("checkpoints are written by rank 0, so rank= must be 0 here")
    return fault


class Injector:
    """Fires the faults of one rank."""

    def __init__(self, descriptions: Sequence[str], rank: int, directory: Path) -> None:
        self._faults = [fault for text in descriptions for fault in parse(text) if fault.rank == rank]
        self._directory = directory

    def before_step(self, step: int, batch_size: int) -> bool:
        """Fire the due faults at the start of a step. Returns whether its loss must become NaN.

        `batch_size` is the size of this rank's micro batches.
        """
        poison = False
        for fault in self._faults:
            if fault.kind != "disk_full" and fault.due(step, batch_size) and self._count(fault):
                poison |= fault.kind == "nan"
                _fire(fault)
        return poison

    def before_checkpoint(self, step: int, path: Path) -> None:
        """Raise OSError (ENOSPC) if a disk_full fault is due."""
        for fault in self._faults:
            if fault.kind == "disk_full" and fault.due(step, 1) and self._count(fault):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _count(self, fault: PlannedFault) -> bool:
        """Count a firing on disk. Returns False if it has fired often enough.

        The count is synced before the fault fires, so that a process which it kills does not fire it again.
        """
        if fault.times == ALWAYS:
            return True
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / str(fault)).open("a+", encoding="ascii") as marker:
            marker.seek(0)
            if len(marker.readlines()) >= fault.times:
                return False
            marker.write(f"{time.time():.3f}\n")
            marker.flush()
            os.fsync(marker.fileno())
        return True


def _fire(fault: PlannedFault) -> None:
    """Cause the fault. Returns only for kinds after which the step continues."""
    show(f"trainer: injecting {fault}", error=True)
    if fault.kind == "oom":
        from torch import OutOfMemoryError

        raise OutOfMemoryError(OOM_TEXT.format(gpu=os.environ.get("LOCAL_RANK", "0")))
    if fault.kind == "crash":
        raise RuntimeError(f"injected crash at step {fault.step} on rank {fault.rank}")
    if fault.kind == "exit":
        sys.exit(fault.code)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while fault.kind == "hang":
        time.sleep(3600)
    if fault.kind == "slow":
        time.sleep(fault.seconds)
