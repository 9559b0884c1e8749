"""The scenario of simulated GPUs: a small YAML file, which may change while they run.

    gpus: 8                       # how many; these four only count at the start
    memory: 80GiB                 # of each
    name: Simulated GPU
    seed: 1
    load: steady                  # of runs: steady, or training: with waves, and pauses for validation
    foreign:                      # processes of other people
      - {gpu: 7, memory: 20GiB, user: bob, command: python serve.py, load: 40}
    faults:
      - {kind: lost, gpu: 3, at: 20, for: 60}
      - {kind: hang, at: 5, for: 10}

``at`` is in seconds from the time at which the file was written, or from the start of the
simulation if that is later; without it a fault begins at once. ``for`` is its duration; without it,
it lasts until the file changes. Without ``gpu`` it concerns all GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gputui.core.config import file_identity
from gputui.core.yaml_forms.file import parse_file, read_text
from gputui.core.yaml_forms.forms import Model, expected, validated, within
from gputui.core.yaml_forms.problems import ProfileError
from gputui.core.yaml_forms.quantities import parse_size
from gputui.machine.gpu_model import say

FaultKind = Literal["lost", "hang", "xid", "hot", "throttle"]

_LONG_SECONDS = 1_000_000_000


def _bytes(setting: object) -> int:
    if isinstance(setting, int) and not isinstance(setting, bool) and setting >= 0:
        return setting
    size = None
    if isinstance(setting, str):
        size = parse_size(setting)
    if size is None:
        raise expected("a size such as 16GiB")
    return size


Bytes = Annotated[int, BeforeValidator(_bytes)]
Seconds = Annotated[float, within(0, _LONG_SECONDS)]
GpuIndex = Annotated[int, within(0, 255, whole=True)]


class Foreign(Model):
    """A process of another user, on all GPUs without ``gpu``; ``load`` in percent."""

    gpu: GpuIndex | None = None
    memory: Bytes = 8 * 2**30
    user: str = "somebody"
    command: str = "python other.py"
    load: Annotated[float, within(0, 100)] = 50.0


class Fault(Model):
    """A planned fault.

    Attributes:
        gpu: None for all GPUs.
        at: When it begins, in seconds; see above.
        for_: How long it lasts, in seconds; None to the end.
        code: The code of an ``xid``.
        celsius: The temperature of a ``hot`` GPU.
        reason: The reason of a ``throttle``.
    """

    kind: FaultKind
    gpu: GpuIndex | None = None
    at: Seconds = 0.0
    for_: Seconds | None = Field(None, alias="for")
    code: Annotated[int, within(1, 10_000, whole=True)] = 31
    celsius: Annotated[float, within(0, 200)] = 96.0
    reason: str = "hardware slowdown"

    def is_active(self, elapsed_seconds: float) -> bool:
        is_over = self.for_ is not None and elapsed_seconds >= self.at + self.for_
        return elapsed_seconds >= self.at and not is_over


class Scenario(Model):
    """The whole file.

    Attributes:
        gpus: How many.
        memory: Bytes of each.
        load: The course of the load on a run's GPUs.
    """

    gpus: Annotated[int, within(0, 256, whole=True)] = 8
    memory: Bytes = 80 * 2**30
    name: str = "Simulated GPU"
    seed: Annotated[int, within(0, 2**31, whole=True)] = 1
    load: Literal["steady", "training"] = "steady"
    foreign: list[Foreign] = Field(default_factory=list)
    faults: list[Fault] = Field(default_factory=list)


def read_scenario(text: str, path: Path) -> Scenario:
    """The scenario in a file's text. Raises ProfileError."""
    return validated(parse_file(text, path), path, Scenario)


def load_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises ValueError with every mistake and its line."""
    try:
        return read_scenario(read_text(path, "scenario"), path)
    except ProfileError as error:
        raise ValueError("; ".join(map(str, error.problems))) from None


class PlayedScenario:
    """A scenario as time goes on. Raises OSError, and ValueError for an invalid one.

    Attributes:
        scenario: What the file said when it was last valid; without a file, the usual one.
        begun_at: When it began to count (UTC unix seconds).
    """

    def __init__(self, path: Path | None, epoch: float) -> None:
        """``epoch`` is the start of the simulation (UTC unix seconds)."""
        self.scenario = Scenario()
        self.begun_at = epoch
        self._path = path
        self._epoch = epoch
        self._identity: tuple[int, int, int] | None = None
        if path is not None and path.exists():
            self._take_over(path)

    def has_changed(self) -> bool:
        """Load a changed file, and return whether it is another scenario now. An invalid one is reported, and the old
        one stays."""
        if self._path is None or file_identity(self._path) in (None, self._identity):
            return False
        try:
            self._take_over(self._path)
        except (OSError, ValueError) as error:
            say(f"scenario not taken over: {error}")
            return False
        return True

    def active(self, at: float, kind: FaultKind, gpu: int | None = None) -> Iterator[Fault]:
        """The faults of a kind that are there at a time, on one GPU or on any."""
        for fault in self.scenario.faults:
            is_there = gpu is None or fault.gpu in (None, gpu)
            if is_there and fault.kind == kind and fault.is_active(at - self.begun_at):
                yield fault

    def _take_over(self, path: Path) -> None:
        self._identity = file_identity(path)
        self.scenario = load_scenario(path)
        self.begun_at = max(self._epoch, path.stat().st_mtime)
