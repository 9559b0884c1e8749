"""Check the keys of a profile against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gputui.core.yaml_forms.document import KeyPath
from gputui.core.yaml_forms.problems import nearest, not_one_of
from gputui.profiles.sink_checks import sink_problems
from gputui.reports.summary.gates import GATE_THRESHOLDS
from gputui.runs.launchers import FOR_COMMAND, FOR_RANKS, LAUNCHERS
from gputui.runs.launchers.base import Launcher
from gputui.runs.spec import ROLE_NAMES


class CrossFinding(Struct, frozen=True):
    """A problem at a place of a profile."""

    place: KeyPath
    problem: str
    nearest: str | None = None


def cross_check(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """Find problems between keys. Takes the raw mapping, so that it works even if single values are wrong."""
    programs = [key for key in ("script", "module", "command") if key in data]
    name = data.get("launcher", (FOR_COMMAND if programs == ["command"] else FOR_RANKS).name)
    launcher = LAUNCHERS.get(name) if isinstance(name, str) else None
    if not programs:
        yield CrossFinding((), "one of script, module or command is needed")
    for extra in programs[1:]:
        yield CrossFinding((extra,), f"give {programs[0]} or {extra}, not both")
    if launcher is not None:
        yield from _check_launcher(launcher, programs, data)
    if isinstance(gates := data.get("gates"), dict):
        for name in gates:
            if name not in GATE_THRESHOLDS:
                yield CrossFinding(("gates", name), *not_one_of("gate", name, GATE_THRESHOLDS))
    for place, problem, meant in sink_problems(data.get("sinks")):
        yield CrossFinding(place, problem, meant)
    yield from _check_scopes(data)
    yield from _check_phases(data)
    if isinstance(roles := data.get("roles"), dict):
        params = data.get("params")
        names = list(params) if isinstance(params, dict) else []
        for role, name in roles.items():
            if role not in ROLE_NAMES:
                yield CrossFinding(("roles", role), *not_one_of("role", role, ROLE_NAMES))
            elif isinstance(name, str) and name not in names:
                yield CrossFinding(("roles", role), f"{name} is not a parameter", nearest(name, names))


def _check_launcher(launcher: Launcher, programs: Sequence[str], data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """Keys that the launcher lacks or does not use."""
    if len(programs) == 1 and launcher.takes_command != (programs == ["command"]):
        wanted = (
            f"the key command, not {programs[0]}"
            if launcher.takes_command
            else f"a script or a module; for a command write launcher: {FOR_COMMAND.name}"
        )
        yield CrossFinding(("launcher",), f"launcher {launcher.name} takes {wanted}")
    if launcher.takes_command and "python" in data:
        yield CrossFinding(("python",), f"launcher {launcher.name} uses no interpreter of its own; name it in command")
    if not launcher.starts_ranks and "nproc" in data:
        yield CrossFinding(("nproc",), f"launcher {launcher.name} starts one process; remove the line")


def _check_phases(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """Phases must follow each other by the steps of their checkpoints."""
    given = data.get("phases")
    phases = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    if phases and "checkpoints" not in data:
        yield CrossFinding(("phases",), "each phase continues from a checkpoint; give checkpoints, too")
    params = data.get("params")
    names = list(params) if isinstance(params, dict) else []
    before = 0
    for number, phase in enumerate(phases):
        until = phase.get("until")
        if until is None and number < len(phases) - 1:
            yield CrossFinding(("phases", number), "only the last phase may leave out until")
        elif isinstance(until, int) and until <= before:
            yield CrossFinding(("phases", number, "until"), f"is not behind the phase before, which ends at {before}")
        before = until if isinstance(until, int) else before
        changed = phase.get("params")
        for name in changed if isinstance(changed, dict) else ():
            if name not in names:
                yield CrossFinding(
                    ("phases", number, "params", name), f"{name} is not a parameter", nearest(name, names)
                )


def _check_scopes(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """A scope matters only for the factors of the effective batch size."""
    params, roles = data.get("params"), data.get("roles")
    mapped = roles if isinstance(roles, dict) else {}
    for name, form in params.items() if isinstance(params, dict) else ():
        if isinstance(form, dict) and "scope" in form:
            counts = [name in (mapped.get(role), *ROLE_NAMES[role]) for role in ("batch_size", "grad_accum")]
            if not any(counts):
                yield CrossFinding(
                    ("params", name, "scope"), "only the batch size and the accumulation have a scope; see roles"
                )
