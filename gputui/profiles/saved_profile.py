"""The profile of a run that is there, such as one of a typed command, with what it showed as comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from gputui.core.secret_patterns import REDACTED
from gputui.core.text import clean
from gputui.metrics.source_report import SourceReport
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec, Scalar

_WIDTH = 116


def saved_profile(spec: RunSpec, params: Mapping[str, Scalar], name: str, reports: Sequence[SourceReport]) -> str:
    """The text of a profile that runs a specification again, with these parameters. ``reports`` are the sources of
    its metrics. Secrets, which the store does not have, are left out and named."""
    lines = [f"# What {name} starts, as it ran. gputui check {name} shows it; docs/profiles.md has every key."]
    form = {key: value for key, value in _form(spec, params, name).items() if value not in (None, {}, [])}
    lines += yaml.safe_dump(form, sort_keys=False, default_flow_style=None, width=_WIDTH).splitlines()
    secrets = [key for key, value in {**spec.env, **params}.items() if REDACTED in str(value)]
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


def _form(spec: RunSpec, params: Mapping[str, Scalar], name: str) -> dict[str, Any]:
    launcher = LAUNCHERS[spec.launcher]
    return {
        "name": name,
        "launcher": spec.launcher,
        **_program(spec),
        "python": spec.python if spec.python_origin not in ("trainer", "gputui") else None,
        "workdir": spec.workdir,
        "gpus": _gpus(spec.gpus),
        "nproc": spec.nproc if launcher.starts_ranks and spec.nproc != spec.gpus.count else None,
        "params": {key: _parameter(spec, key, value) for key, value in params.items()},
        "args": None if spec.args is None else list(spec.args),
        "env": {key: value for key, value in spec.env.items() if REDACTED not in value},
        "roles": dict(spec.roles),
        "metrics": _metrics(spec),
        "checkpoints": None if spec.checkpoints is None else _checkpoints(spec.checkpoints),
        "recovery": dict(spec.recovery) if spec.recovery != {"policy": "standard"} else None,
        "grace": spec.grace_seconds,
    }


def _checkpoints(checkpoints: CheckpointSpec) -> dict[str, Any]:
    form: dict[str, Any] = {"dir": checkpoints.directory, "resume": list(checkpoints.resume)}
    if checkpoints.pattern != LEARNED:
        form["pattern"] = checkpoints.pattern
    return form


def _program(spec: RunSpec) -> Mapping[str, Any]:
    if LAUNCHERS[spec.launcher].takes_command:
        return {"command": list(spec.program)}
    if spec.program[0] == "-m":
        return {"module": spec.program[1]}
    return {"script": spec.program[0]}


def _gpus(request: GpuRequest) -> int | str:
    """The value of ``gpus``."""
    return ",".join(request.uuids) if request.uuids else request.count


def _parameter(spec: RunSpec, name: str, value: Scalar) -> Any:
    """A parameter, with what the profile said of it besides its default."""
    if REDACTED in str(value):
        return None
    details: dict[str, Any] = {}
    if name in spec.scopes:
        details["scope"] = spec.scopes[name]
    if name in spec.multiples:
        details["multiple_of"] = spec.multiples[name]
    return {"default": value, **details} if details else value


def _metrics(spec: RunSpec) -> Any:
    if not spec.metrics:
        return "off"
    if spec.learns_metrics:
        return "auto" if spec.loss is None else {"loss": spec.loss}
    form: dict[str, Any] = {"sources": [_source(source) for source in spec.metrics]}
    return form if spec.loss is None else {"loss": spec.loss, **form}


def _source(source: MetricsSpec) -> dict[str, Any]:
    fields = {
        "source": source.kind,
        "path": source.path,
        "patterns": list(source.patterns),
        "step": source.step,
        "units": dict(source.units),
    }
    return {key: value for key, value in fields.items() if value}
