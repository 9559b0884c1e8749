"""The profile of a run that is there, such as one of a typed command, with what it showed as comments."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gputui.core.secret_patterns import REDACTED, is_secret_parameter
from gputui.core.units import count_of
from gputui.core.yaml_forms.quantities import parse_size
from gputui.metrics.source_report import SourceReport, source_reports
from gputui.profiles.params import UNDECIDED
from gputui.profiles.profile_text import form_remarks, profile_text
from gputui.runs.command import shown_param
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, Phase, RunSpec, Scalar
from gputui.runs.stored_spec import spec_of
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.run_history import DecisionView, read_decisions
from gputui.store.runs import Run


class SavedHistory(Struct, frozen=True):
    """What is known of a run besides its specification: the sources of its metrics, and how its parameters changed."""

    sources: Sequence[SourceReport] = ()
    attempts: Sequence[Attempt] = ()
    decisions: Sequence[DecisionView] = ()

    @classmethod
    def read(cls, connection: sqlite3.Connection, run_id: str) -> SavedHistory:
        return cls(
            source_reports(connection, run_id), read_attempts(connection, run_id), read_decisions(connection, run_id)
        )


def saved_profile(run: Run, name: str, history: SavedHistory) -> str:
    """Write a profile called ``name`` that starts a run again as it was asked for.

    Secrets, which the store does not have, are named; those of a command line become parameters. Raises SpecError.
    """
    spec = spec_of(run)
    requested = _requested_params(spec, run, history)
    secrets: list[str] = []
    keys = _without_secrets(_keys(spec, requested, name), "", secrets)
    secrets += [f"params.{key}" for key, value in keys.get("params", {}).items() if value == UNDECIDED]
    remarks = {"params": list(_change_remarks(requested, run, history)), "": []}
    if secrets:
        remarks[""].append(f"{', '.join(secrets)}: secret values are not stored; write them here")
    remarks[""] += [remark for report in history.sources for remark in _source_remarks(report)]
    title = f"What {name} starts, as it ran. gputui check {name} shows it; gputui help profiles has every key."
    return profile_text(title, keys, remarks)


def _requested_params(spec: RunSpec, run: Run, history: SavedHistory) -> Mapping[str, Scalar]:
    """The parameters of a run as a person asked for them: at its launch, or to resume it."""
    requested = dict(spec.params)
    retried = {decision.attempt for decision in history.decisions if decision.verdict == "retry"}
    before = spec.params
    steps = [(attempt.number - 1, attempt.params) for attempt in history.attempts]
    for ended_attempt, params in [*steps, (run.attempt, run.params)]:
        if ended_attempt not in retried:
            requested |= {key: value for key, value in params.items() if value != before.get(key)}
        before = params
    return requested


def _change_remarks(requested: Mapping[str, Scalar], run: Run, history: SavedHistory) -> Iterator[str]:
    """A remark on each parameter that recovery has changed."""
    reasons = {key: decision.reason for decision in history.decisions for key in decision.params}
    for key, value in run.params.items():
        if value != requested.get(key):
            reason = reasons.get(key, "recovery went on with fewer GPUs")
            yield f"the run ended with {key}: {shown_param(value)} ({reason})"


def _source_remarks(report: SourceReport) -> Iterator[str]:
    """The remarks on a source of metrics."""
    if report.format != "output":
        yield f"{report.format} {report.path} ({count_of(report.lines, 'line')}): {', '.join(report.names)}"
    for form in report.forms:
        yield from form_remarks(form)


def _without_secrets(value: Any, place: str, secrets: list[str]) -> Any:
    """A form without its redacted texts, None if nothing remains; ``secrets`` gets the places of those."""
    if not isinstance(value, Mapping):
        if REDACTED not in str(value):
            return value
        secrets.append(place)
        return None
    remaining: dict[str, Any] = {}
    for key, item in value.items():
        plain = _without_secrets(item, f"{place}.{key}".removeprefix("."), secrets)
        if plain is not None or item is None:
            remaining[key] = plain
    if value and not remaining:
        return None
    return remaining


class _CommandLines:
    """The words of a specification, with a parameter in place of each redacted text."""

    def __init__(self, params: Mapping[str, Scalar]) -> None:
        self.params = dict(params)
        self.params |= {name: UNDECIDED for name, value in params.items() if REDACTED in str(value)}

    def with_parameters(self, command_line: Sequence[str]) -> list[str]:
        """The words of a command line as a profile has them."""
        filled: list[str] = []
        for word in command_line:
            head, *rest = word.split(REDACTED)
            for text in rest:
                before = head
                if not head and filled and filled[-1].startswith("-"):
                    before = filled[-1]
                name = self._free_name(before)
                self.params[name] = UNDECIDED
                head += f"{{{name}}}{text}"
            filled.append(head)
        return filled

    def _free_name(self, before: str) -> str:
        """A parameter's name by the text before its value, such as ``--api-key``. It is that of a secret, so that the
        value is not stored again."""
        option = re.search(r"([A-Za-z_][\w.-]*)\W*$", before, re.ASCII)
        name = "secret"
        if option is not None:
            name = option[1].replace("-", "_")
        if not is_secret_parameter(name):
            name = f"secret_{name}"
        number = 1
        free = name
        while free in self.params:
            number += 1
            free = f"secret_{name}_{number}"
        return free


def _keys(spec: RunSpec, params: Mapping[str, Scalar], name: str) -> dict[str, Any]:
    """The keys of a profile that starts a specification with these parameters; None for what is as usual."""
    launcher = LAUNCHERS[spec.launcher]
    lines = _CommandLines(params)
    keys: dict[str, Any] = {"name": name, "launcher": spec.launcher, **_program(spec, lines)}
    if spec.python_origin not in ("trainer", "gputui"):
        keys["python"] = spec.python
    keys |= {"workdir": spec.workdir, **_gpus(spec.gpus)}
    if launcher.starts_ranks and spec.nproc != spec.gpus.count:
        keys["nproc"] = spec.nproc
    if spec.visible != "uuid":
        keys["visible"] = spec.visible
    keys["requires"] = _requires(spec)
    args = None
    if spec.args is not None:
        args = lines.with_parameters(spec.args)
    keys["params"] = {key: _parameter(spec, key, value) for key, value in lines.params.items()}
    if args or params:
        keys["args"] = args
    keys |= {"env": dict(spec.env), "roles": dict(spec.roles), "metrics": _metrics(spec)}
    keys |= {"checkpoints": _checkpoints(spec.checkpoints), "alerts": _alerts(spec)}
    if spec.recovery != {"policy": "standard"}:
        keys["recovery"] = dict(spec.recovery)
    keys |= {"gates": dict(spec.gates), "sinks": dict(spec.sinks), "grace": spec.grace_seconds}
    if spec.time_limit_seconds is not None:
        keys["time"] = f"{spec.time_limit_seconds:.10g}s"
    if spec.phases:
        keys["phases"] = [_phase(phase) for phase in spec.phases]
    keys["targets"] = _targets(spec)
    if spec.priority:
        keys["priority"] = spec.priority
    if spec.notify:
        keys["notify"] = True
    return keys


def _checkpoints(checkpoints: CheckpointSpec | None) -> dict[str, Any] | None:
    if checkpoints is None:
        return None
    form: dict[str, Any] = {"dir": checkpoints.directory}
    if checkpoints.resume:
        form["resume"] = list(checkpoints.resume)
    if checkpoints.pattern != LEARNED:
        form["pattern"] = checkpoints.pattern
    form |= {key: value for key in ("keep", "keep_best") if (value := getattr(checkpoints, key)) is not None}
    return form


def _program(spec: RunSpec, lines: _CommandLines) -> Mapping[str, Any]:
    if LAUNCHERS[spec.launcher].takes_command:
        return {"command": lines.with_parameters(spec.program)}
    if spec.program[0] == "-m":
        return {"module": spec.program[1]}
    return {"script": spec.program[0]}


def _gpus(request: GpuRequest) -> dict[str, Any]:
    """The keys that say which GPUs."""
    keys: dict[str, Any] = {"gpus": request.count, "min_gpus": request.min_count}
    if request.uuids:
        keys["gpus"] = ",".join(request.uuids)
    elif request.share < 1:
        keys["gpus"] = request.share
    if request.beside_desktop:
        keys["beside_desktop"] = True
    return keys


def _requires(spec: RunSpec) -> dict[str, str]:
    sizes = {"gpu_memory": spec.gpus.memory_bytes, "disk": spec.disk_bytes}
    return {key: _size(size) for key, size in sizes.items() if size is not None}


def _size(size: int) -> str:
    """A number of bytes in the largest unit in which it is whole."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB"):
        count = size // (parse_size(f"1{unit}") or 1)
        if count and parse_size(f"{count}{unit}") == size:
            return f"{count}{unit}"
    return f"{size / 1024:.6f}KiB"


def _alerts(spec: RunSpec) -> Any:
    if spec.alerts == "standard":
        return None
    if spec.alerts is None:
        return "off"
    return spec.alerts


def _phase(phase: Phase) -> dict[str, Any]:
    keys: dict[str, Any] = {"params": dict(phase.params)}
    if phase.until is not None:
        keys["until"] = phase.until
    return keys


def _targets(spec: RunSpec) -> dict[str, Any]:
    if spec.target is None:
        return {}
    return {spec.target["name"]: {key: value for key, value in spec.target.items() if key != "name"}}


def _parameter(spec: RunSpec, name: str, value: Scalar) -> Any:
    """A parameter, with what the profile said of it besides its default."""
    if value == UNDECIDED:
        return value
    details: dict[str, Any] = {}
    if name in spec.scopes:
        details["scope"] = spec.scopes[name]
    if name in spec.multiples:
        details["multiple_of"] = spec.multiples[name]
    if not details:
        return value
    return {"default": value, **details}


def _metrics(spec: RunSpec) -> Any:
    form: dict[str, Any] = {}
    if spec.metrics != (MetricsSpec("auto"),):
        form["sources"] = [_source(source) for source in spec.metrics]
    if spec.loss is not None:
        form["loss"] = spec.loss
    if spec.best is not None:
        form["best"] = {"name": spec.best.name, "mode": spec.best.mode}
    if form == {"sources": []}:
        return "off"
    return form or "auto"


def _source(source: MetricsSpec) -> dict[str, Any]:
    fields = {
        "source": source.kind,
        "path": source.path,
        "patterns": list(source.patterns),
        "step": source.step,
        "units": dict(source.units),
    }
    return {key: value for key, value in fields.items() if value}
