"""Injected faults, to test that a supervisor handles them.

A fault is written ``kind@step=N`` with further options after commas, several of them separated by semicolons::

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

# Every kind with the options it takes besides step, rank and times, and what it does as that step begins.
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
        """The full description, every option that matters spelled out; `parse` reads it back."""
        parts = [f"step={self.step}", f"rank={self.rank}"]
        parts += [f"{name}={getattr(self, name)}" for name in KINDS[self.kind] if name != "above" or self.above]
        if self.times != 1:
            parts.append(f"times={'always' if self.times == ALWAYS else self.times}")
        return f"{self.kind}@{','.join(parts)}"

    def due(self, step: int, batch_size: int) -> bool:
        """Whether it belongs to this step with micro batches of this size."""
        late = self.kind in ("slow", "disk_full")
        return (step >= self.step if late else step == self.step) and batch_size > self.above


def parse(text: str) -> list[PlannedFault]:
    """Faults from their description; an empty text and ``none`` stand for no fault.

    Raises SettingsError naming what is wrong with which fault.
    """
    if text.strip().lower() in ("", "none"):
        return []
    return [_parse_one(part.strip()) for part in text.split(";") if part.strip()]


def _parse_one(text: str) -> PlannedFault:
    def wrong(why: str) -> SettingsError:
        return SettingsError(f"--inject {text}: {why}")

    kind, at, rest = text.partition("@")
    if kind not in KINDS:
        raise wrong(f"unknown fault {kind!r}; one of {', '.join(KINDS)}, as in oom@step=40")
    allowed = ("step", "rank", "times", *KINDS[kind])
    values: dict[str, str] = {}
    for option in rest.split(",") if at else []:
        name, equals, value = (part.strip() for part in option.partition("="))
        if not equals or name not in allowed:
            raise wrong(f"expected {', '.join(f'{known}=' for known in allowed)} after the @, got {option!r}")
        if name in values:
            raise wrong(f"{name}= is there twice")
        values[name] = value
    if "step" not in values:
        raise wrong(f"the step is missing, as in {kind}@step=40")

    def whole(name: str, default: int, least: int) -> int:
        value = values.get(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < least:
            raise wrong(f"{name}= must be a whole number of at least {least}, got {value!r}")
        return int(value)

    try:
        seconds = float(values.get("seconds", "1"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise wrong(f"seconds= must be a number of at least 0, got {values['seconds']!r}")
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
        raise wrong("checkpoints are written by rank 0, so rank= must be 0 here")
    return fault


class Injector:
    """Fires the faults of one rank. Does nothing, and costs nothing, if there are none."""

    def __init__(self, descriptions: Sequence[str], rank: int, directory: Path) -> None:
        self._faults = [fault for text in descriptions for fault in parse(text) if fault.rank == rank]
        self._directory = directory

    def before_step(self, step: int, batch_size: int) -> bool:
        """Fires what is due as a step begins; true where the loss of this step must become NaN.

        `batch_size` is the samples in a micro batch of this rank.
        """
        poison = False
        for fault in self._faults:
            if fault.kind != "disk_full" and fault.due(step, batch_size) and self._take(fault):
                poison |= fault.kind == "nan"
                _fire(fault)
        return poison

    def before_checkpoint(self, step: int, path: Path) -> None:
        """Raises OSError (ENOSPC) where a full disk is due."""
        for fault in self._faults:
            if fault.kind == "disk_full" and fault.due(step, 1) and self._take(fault):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _take(self, fault: PlannedFault) -> bool:
        """Counts one firing on disk, and says whether it is still allowed.

        The count is durable before the fault fires: a process that dies of it cannot meet it again.
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
    """Does what the kind says; returns only for those that let the step go on."""
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
