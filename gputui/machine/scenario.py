"""The scenario of simulated GPUs: a small YAML file, which may change while they run.

    gpus: 8                       # how many; these four only count at the start
    memory: 80GiB                 # of each
    name: Simulated GPU
    seed: 1
    foreign:                      # processes of other people
      - {gpu: 7, memory: 20GiB, user: bob, command: python serve.py, load: 40}
    faults:
      - {kind: lost, gpu: 3, at: 20, for: 60}
      - {kind: hang, at: 5, for: 10}

``at`` is in seconds from the time at which the file was written, or from the start of the simulation if that is later;
without it a fault begins at once. ``for`` is its duration; without it, it lasts until the file changes. Without ``gpu``
it concerns all GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

FaultKind = Literal["lost", "hang", "stale", "xid", "hot", "throttle", "memory_leak", "no_value", "busy"]


class Foreign(Struct, frozen=True):
    """A process of another user."""

    gpu: int | None = 0
    memory_bytes: int = 8 * 2**30
    user: str = "somebody"
    command: str = "python other.py"
    load_percent: float = 50.0


class Fault(Struct, frozen=True):
    """A planned fault; which of the last fields matter depends on the kind."""

    kind: FaultKind
    gpu: int | None = None
    at_seconds: float = 0.0
    for_seconds: float | None = None
    code: int = 31
    celsius: float = 96.0
    reason: str = "hardware slowdown"
    field: str = "temperature_celsius"
    bytes_per_second: int = 2**30
    process: Foreign = Foreign()

    def hits(self, gpu: int) -> bool:
        return self.gpu is None or self.gpu == gpu

    def active(self, elapsed_seconds: float) -> bool:
        return self.at_seconds <= elapsed_seconds and (
            self.for_seconds is None or elapsed_seconds < self.at_seconds + self.for_seconds
        )


class Scenario(Struct, frozen=True):
    """The whole file."""

    gpus: int = 8
    memory_bytes: int = 80 * 2**30
    name: str = "Simulated GPU"
    seed: int = 1
    foreign: tuple[Foreign, ...] = ()
    faults: tuple[Fault, ...] = ()


def load_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises ValueError with every mistake and its line."""
    # Imported here: real GPUs need no YAML parser.
    from gputui.core.yaml_forms.file import read_text
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.machine.scenario_form import read_scenario

    try:
        return read_scenario(read_text(path, "scenario"), path)
    except ProfileError as error:
        raise ValueError("; ".join(map(str, error.problems))) from None
