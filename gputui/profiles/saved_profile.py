"""The profile of a run that is there, such as one of a typed command, with what it showed as comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from gputui.core.secret_patterns import REDACTED, is_secret_parameter
from gputui.core.text import clean
from gputui.core.yaml_forms.quantities import parse_size
from gputui.metrics.source_report import SourceReport
from gputui.profiles.params import UNDECIDED
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, Phase, RunSpec, Scalar

_WIDTH = 116


def saved_profile(spec: RunSpec, params: Mapping[str, Scalar], name: str, reports: Sequence[SourceReport]) -> str:
    """The text of a profile that runs a specification again, with these parameters. ``reports`` are the sources of
    its metrics. Secrets, which the store does not have, are named; those of a command line become parameters."""
    lines = [f"# What {name} starts, as it ran. gputui check {name} shows it; docs/profiles.md has every key."]
    secrets: list[str] = []
    complete = {key: value for key, value in _form(spec, params, name).items() if value not in (None, {}, [])}
    form = _without_secrets(complete, "", secrets)
    for key, value in form.items():
        text = yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=None, width=_WIDTH).strip()
        # A key with a single value would be in braces of its own.
        lines += text.removeprefix("{").removesuffix("}").splitlines() if text.startswith("{") else text.splitlines()
    secrets += [f"params.{key}" for key, value in form.get("params", {}).items() if value == UNDECIDED]
    if secrets:
        lines.append(f"# {', '.join(secrets)}: secret values are not stored; write them here")
    lines += [f"# {text}" for report in reports for text in learned_lines(report)]
    return "\n".join(lines) + "\n"


def learned_lines(report: SourceReport) -> Iterator[str]:
    """What is known of a source, for the comments of a profile."""
    names = ", ".join(map(clean, report.names))
    if report.format != "output":
        yield f"{report.format} {clean(report.path)} ({report.lines} lines): {names}"
    for form in report.forms:
        yield f"printed: {clean(form.example.strip())}"
        if form.pattern is not None:
            yield f"  as a pattern: {clean(form.pattern)}"


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
    return remaining if remaining or not value else None


class _CommandLines:
    """The words of a specification, with a parameter in place of each redacted text."""

    def __init__(self, params: Mapping[str, Scalar]) -> None:
        self.params = {name: UNDECIDED if REDACTED in str(value) else value for name, value in params.items()}

    def words(self, words: Sequence[str]) -> list[str]:
        """The words of a command line as a profile has them."""
        filled: list[str] = []
        for word in words:
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
        name = "secret" if option is None else option[1].replace("-", "_")
        if not is_secret_parameter(name):
            name = f"secret_{name}"
        number, free = 1, name
        while free in self.params:
            number += 1
            free = f"secret_{name}_{number}"
        return free


def _form(spec: RunSpec, params: Mapping[str, Scalar], name: str) -> dict[str, Any]:
    launcher = LAUNCHERS[spec.launcher]
    lines = _CommandLines(params)
    program = _program(spec, lines)
    args = None if spec.args is None else lines.words(spec.args)
    return {
        "name": name,
        "launcher": spec.launcher,
        **program,
        "python": spec.python if spec.python_origin not in ("trainer", "gputui") else None,
        "workdir": spec.workdir,
        **_gpus(spec.gpus),
        "nproc": spec.nproc if launcher.starts_ranks and spec.nproc != spec.gpus.count else None,
        "visible": spec.visible if spec.visible != "uuid" else None,
        "requires": _requires(spec),
        "params": {key: _parameter(spec, key, value) for key, value in lines.params.items()},
        "args": args,
        "env": dict(spec.env),
        "roles": dict(spec.roles),
        "metrics": _metrics(spec),
        "checkpoints": None if spec.checkpoints is None else _checkpoints(spec.checkpoints),
        "alerts": _alerts(spec),
        "recovery": dict(spec.recovery) if spec.recovery != {"policy": "standard"} else None,
        "gates": dict(spec.gates),
        "sinks": dict(spec.sinks),
        "grace": spec.grace_seconds,
        "phases": [_phase(phase) for phase in spec.phases],
        "targets": _targets(spec),
        "priority": spec.priority or None,
    }


def _checkpoints(checkpoints: CheckpointSpec) -> dict[str, Any]:
    form: dict[str, Any] = {"dir": checkpoints.directory, "resume": list(checkpoints.resume)}
    if checkpoints.pattern != LEARNED:
        form["pattern"] = checkpoints.pattern
    return form


def _program(spec: RunSpec, lines: _CommandLines) -> Mapping[str, Any]:
    if LAUNCHERS[spec.launcher].takes_command:
        return {"command": lines.words(spec.program)}
    if spec.program[0] == "-m":
        return {"module": spec.program[1]}
    return {"script": spec.program[0]}


def _gpus(request: GpuRequest) -> dict[str, Any]:
    """The keys that say which GPUs."""
    return {
        "gpus": ",".join(request.uuids) if request.uuids else request.count,
        "min_gpus": request.min_count,
        "beside_desktop": request.beside_desktop or None,
    }


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
    return "off" if spec.alerts is None else spec.alerts


def _phase(phase: Phase) -> dict[str, Any]:
    until = {} if phase.until is None else {"until": phase.until}
    return {**until, "params": dict(phase.params)}


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
    return {"default": value, **details} if details else value


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
