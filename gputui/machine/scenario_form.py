"""The YAML of a scenario of simulated GPUs as pydantic models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from gputui.core.yaml_forms.file import parse_file
from gputui.core.yaml_forms.forms import Model, expected, validated, within
from gputui.core.yaml_forms.quantities import parse_size
from gputui.machine.simulated import Fault, FaultKind, Foreign, Scenario
from gputui.store.series import GpuSample, GpuSlowSample

_DEFAULT, _FOREIGN, _FAULT = Scenario(), Foreign(), Fault("lost")
_LONG_SECONDS = 1_000_000_000

if TYPE_CHECKING:
    ValueName = str
else:
    _VALUES = {*GpuSample.__struct_fields__, *GpuSlowSample.__struct_fields__} - {"uuid", "state", "detail"}
    ValueName = Literal[tuple(sorted(_VALUES))]


def _bytes(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    size = parse_size(given) if isinstance(given, str) else None
    if size is None:
        raise expected("a size such as 16GiB")
    return size


Bytes = Annotated[int, BeforeValidator(_bytes)]
Seconds = Annotated[float, within(0, _LONG_SECONDS)]


class ForeignForm(Model):
    """A process of another user, on all GPUs without ``gpu``."""

    gpu: Annotated[int, within(0, 255, whole=True)] | None = None
    memory: Bytes = _FOREIGN.memory_bytes
    user: str = _FOREIGN.user
    command: str = _FOREIGN.command
    load: Annotated[float, within(0, 100)] = _FOREIGN.load_percent

    def process(self) -> Foreign:
        return Foreign(self.gpu, self.memory, self.user, self.command, self.load)


class FaultForm(ForeignForm):
    """A planned fault, with the process of a ``busy`` one."""

    kind: FaultKind
    at: Seconds = _FAULT.at_seconds
    for_: Seconds | None = Field(None, alias="for")
    code: Annotated[int, within(1, 10_000, whole=True)] = _FAULT.code
    celsius: Annotated[float, within(0, 200)] = _FAULT.celsius
    reason: str = _FAULT.reason
    field: ValueName = _FAULT.field
    rate: Bytes = _FAULT.bytes_per_second

    def fault(self) -> Fault:
        own = (self.code, self.celsius, self.reason, self.field, self.rate)
        return Fault(self.kind, self.gpu, self.at, self.for_, *own, self.process())


class ScenarioForm(Model):
    """The whole file."""

    gpus: Annotated[int, within(0, 256, whole=True)] = _DEFAULT.gpus
    memory: Bytes = _DEFAULT.memory_bytes
    name: str = _DEFAULT.name
    seed: Annotated[int, within(0, 2**31, whole=True)] = _DEFAULT.seed
    foreign: list[ForeignForm] | None = None
    faults: list[FaultForm] | None = None


def read_scenario(text: str, path: Path) -> Scenario:
    """The scenario in a file's text. Raises ProfileError."""
    form = validated(parse_file(text, path), path, ScenarioForm)
    processes = tuple(process.process() for process in form.foreign or ())
    faults = tuple(fault.fault() for fault in form.faults or ())
    return Scenario(form.gpus, form.memory, form.name, form.seed, processes, faults)
