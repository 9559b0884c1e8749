"""Injected faults, to test a supervisor: ``crash@step=25,rank=1; oom@step=40,above=8,times=always``.

A fault fires once per output directory, or as often as ``times`` says, however often the run is resumed there: a marker
file is on disk before it fires.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from trainer.errors import SettingsError, show

# Kinds, with their options besides step and times, and their effect at the start of the step.
KINDS: dict[str, tuple[str, ...]] = {
    "oom": ("rank", "above"),  # raises torch.OutOfMemoryError with CUDA's text, where the micro batch is above a size
    "crash": ("rank",),  # raises RuntimeError
    "exit": ("rank", "code"),  # ends the process with an exit code
    "kill": ("rank",),  # SIGKILL to itself
    "hang": ("rank",),  # never comes back
    "slow": ("rank", "seconds"),  # sleeps, from that step on, as many steps as `times` allows
    "nan": ("rank",),  # makes the loss of that step NaN
    "disk_full": (),  # ENOSPC from the first checkpoint at or after that step
}


class PlannedFault(BaseModel, frozen=True):
    """One fault, such as ``oom@step=40,above=8``.

    Attributes:
        text: the fault as it was written.
        times: how often it may fire in an output directory.
        code: the exit code of `exit`.
        seconds: how long `slow` sleeps in a step.
        above: the largest batch size that `oom` spares.
    """

    text: str
    kind: str
    step: int = Field(ge=1)
    rank: int = Field(0, ge=0)
    times: Annotated[int, Field(ge=1)] | Literal["always"] = 1
    code: int = Field(1, ge=0)
    seconds: float = Field(1.0, ge=0, lt=1e9)
    above: int = Field(0, ge=0)


def parse(text: str) -> list[PlannedFault]:
    """Parse faults; an empty text or ``none`` is no fault. Raises SettingsError naming fault and problem."""
    parts = "".join(text.split()).split(";")
    return [_parse_one(part) for part in parts if part not in ("", "none")]


def _parse_one(text: str) -> PlannedFault:
    kind, _, rest = text.partition("@")
    if kind not in KINDS:
        raise SettingsError(f"--inject {text}: unknown fault {kind!r}; one of {', '.join(KINDS)}, as in oom@step=40")
    allowed = ("step", "times", *KINDS[kind])
    options = {name: value for name, _, value in (part.partition("=") for part in rest.split(",") if part)}
    if not options.keys() <= set(allowed):
        raise SettingsError(f"--inject {text}: {kind} takes {', '.join(f'{name}=' for name in allowed)}")
    try:
        return PlannedFault.model_validate({"text": text, "kind": kind, **options})
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{first['loc'][0]}= {first['msg'].removeprefix('Input ').lower()}"
        raise SettingsError(f"--inject {text}: {problem}; write it as in oom@step=40,rank=1") from None


class Injector:
    """Fires the faults of one rank."""

    def __init__(self, descriptions: Sequence[str], rank: int, directory: Path) -> None:
        self._faults = [fault for text in descriptions for fault in parse(text) if fault.rank == rank]
        self._directory = directory

    def before_step(self, step: int, batch_size: int) -> bool:
        """Fire the due faults at the start of a step. Returns whether its loss must become NaN."""
        poison = False
        for fault in self._faults:
            if fault.kind != "disk_full" and batch_size > fault.above and self._is_due(fault, step):
                poison |= fault.kind == "nan"
                _fire(fault)
        return poison

    def before_checkpoint(self, step: int, path: Path) -> None:
        """Raise OSError (ENOSPC) if a disk_full fault is due."""
        for fault in self._faults:
            if fault.kind == "disk_full" and self._is_due(fault, step):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _is_due(self, fault: PlannedFault, step: int) -> bool:
        """Return whether it fires now, which is counted on disk before it can kill the process."""
        from_then_on = fault.kind in ("slow", "disk_full")
        if step < fault.step or (step > fault.step and not from_then_on):
            return False
        if fault.times == "always":
            return True
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / fault.text).open("a+", encoding="ascii") as marker:
            marker.seek(0)
            if len(marker.readlines()) >= fault.times:
                return False
            marker.write(f"{time.time():.3f}\n")
            marker.flush()
            os.fsync(marker.fileno())
        return True


def _fire(fault: PlannedFault) -> None:
    """Cause the fault. Returns only for kinds after which the step continues."""
    show(f"trainer: injecting {fault.text}", error=True)
    if fault.kind == "oom":
        from torch import OutOfMemoryError

        gpu = os.environ.get("LOCAL_RANK", "0")
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU {gpu} has 1.21 GiB free.")
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
