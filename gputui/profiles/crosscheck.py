"""Check the keys of a profile against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gputui.core.redaction import redact_params
from gputui.core.yaml_forms.document import KeyPath
from gputui.core.yaml_forms.problems import nearest, not_one_of
from gputui.profiles.sink_checks import RUN_ID
from gputui.reports.export.formats import FORMATS, Format, is_format
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
    """Find problems between keys, in the raw mapping: single values may be wrong."""
    yield from _check_programs(data)
    for name in _mapping(data, "gates"):
        if name not in GATE_THRESHOLDS:
            yield CrossFinding(("gates", name), *not_one_of("gate", name, GATE_THRESHOLDS))
    yield from _check_sinks(data.get("sinks"))
    yield from _check_scopes(data)
    gpus = data.get("gpus")
    ranks = data.get("nproc", 1)
    if isinstance(gpus, float) and ranks not in (1, "gpus"):
        yield CrossFinding(("nproc",), f"{ranks} processes do not share {gpus:g} of a GPU; write nproc: 1")
    yield from _check_phases(data)
    yield from _check_roles(data)


def _check_programs(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """One program is needed, and it must suit the launcher."""
    programs = [key for key in ("script", "module", "command") if key in data]
    if not programs:
        yield CrossFinding((), "one of script, module or command is needed")
    for extra in programs[1:]:
        yield CrossFinding((extra,), f"give {programs[0]} or {extra}, not both")
    usual: Launcher = FOR_RANKS
    if programs == ["command"]:
        usual = FOR_COMMAND
    launcher = LAUNCHERS.get(str(data.get("launcher", usual.name)))
    if launcher is not None:
        yield from _check_launcher(launcher, programs, data)


def _check_launcher(launcher: Launcher, programs: Sequence[str], data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """Keys that the launcher lacks or does not use."""
    if len(programs) == 1 and launcher.takes_command != (programs == ["command"]):
        expected = f"a script or a module; for a command write launcher: {FOR_COMMAND.name}"
        if launcher.takes_command:
            expected = f"the key command, not {programs[0]}"
        yield CrossFinding(("launcher",), f"launcher {launcher.name} takes {expected}")
    if launcher.takes_command and "python" in data:
        yield CrossFinding(("python",), f"launcher {launcher.name} uses no interpreter of its own; name it in command")
    if not launcher.starts_ranks and "nproc" in data:
        yield CrossFinding(("nproc",), f"launcher {launcher.name} starts one process; remove the line")


def _check_sinks(sinks: object) -> Iterator[CrossFinding]:
    """Sinks as one name, a list of names, or names with their targets. No problem shows a target:
    it may hold a password."""
    entries: list[tuple[KeyPath, Any, object]] = []
    if isinstance(sinks, Mapping):
        entries = [(("sinks", name), name, target) for name, target in sinks.items()]
    elif isinstance(sinks, list):
        entries = [(("sinks", index), name, None) for index, name in enumerate(sinks) if isinstance(name, str)]
    elif isinstance(sinks, str):
        entries = [(("sinks",), sinks, None)]
    for place, name, target in entries:
        if not is_format(name):
            yield CrossFinding(place, *not_one_of("sink", name, FORMATS))
        elif (problem := _target_problem(name, target)) is not None:
            yield CrossFinding(place, problem)


def _target_problem(name: Format, target: object) -> str | None:
    """What is wrong with a sink's target; None if nothing is."""
    if target is None:
        if FORMATS[name].place is not None:
            return None
        return f"needs its address: {name}: sqlite:////path/{name}.db, or a server's http://…"
    is_text = isinstance(target, str) and target != "" and "\0" not in target
    if FORMATS[name].is_address:
        if not is_text:
            return "expected an address as text"
        return _address_problem(name, str(target))
    if not is_text:
        return "expected a path as text"
    if f"{{{RUN_ID}}}" not in str(target) and "{run_dir}" not in str(target):
        return f"every run would write to the same place; add {{{RUN_ID}}} to it"
    return None


def _address_problem(name: Format, address: str) -> str | None:
    """What is wrong with a sink's address; None if nothing is."""
    if "://" not in address:
        return f"expected an address such as sqlite:////path/{name}.db or http://127.0.0.1:5000"
    if address.startswith("sqlite:///") and not address.startswith("sqlite:////"):
        return "the path of the database is relative; sqlite: takes four slashes before a full path"
    return None


def _check_scopes(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """A scope matters only for the factors of the effective batch size."""
    roles = _mapping(data, "roles")
    factors = {roles.get(role) for role in ("batch_size", "grad_accum")}
    factors |= {*ROLE_NAMES["batch_size"], *ROLE_NAMES["grad_accum"]}
    for name, form in _mapping(data, "params").items():
        if isinstance(form, dict) and "scope" in form and name not in factors:
            problem = "only the batch size and the accumulation have a scope; see roles"
            yield CrossFinding(("params", name, "scope"), problem)


def _check_phases(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """Phases must follow each other by the steps of their checkpoints."""
    content = data.get("phases")
    phases = []
    if isinstance(content, list):
        phases = [phase for phase in content if isinstance(phase, dict)]
    if phases and "checkpoints" not in data:
        yield CrossFinding(("phases",), "each phase continues from a checkpoint; give checkpoints, too")
    params = _mapping(data, "params")
    end_before = 0
    for number, phase in enumerate(phases):
        end = phase.get("until")
        if end is None and number < len(phases) - 1:
            yield CrossFinding(("phases", number), "only the last phase may leave out until")
        elif isinstance(end, int) and end <= end_before:
            yield CrossFinding(
                ("phases", number, "until"), f"is not behind the phase before, which ends at {end_before}"
            )
        if isinstance(end, int):
            end_before = end
        for name, value in _mapping(phase, "params").items():
            changed = {name: value}
            if redact_params(changed) != changed:
                problem = f"{name} is a secret, which is not stored; give it in params, for all phases"
                yield CrossFinding(("phases", number, "params", name), problem)
            elif name not in params:
                meant = nearest(name, list(params))
                yield CrossFinding(("phases", number, "params", name), f"{name} is not a parameter", meant)


def _check_roles(data: Mapping[str, Any]) -> Iterator[CrossFinding]:
    """A role must exist, and be that of a parameter."""
    params = _mapping(data, "params")
    for role, name in _mapping(data, "roles").items():
        if role not in ROLE_NAMES:
            yield CrossFinding(("roles", role), *not_one_of("role", role, ROLE_NAMES))
        elif isinstance(name, str) and name not in params:
            yield CrossFinding(("roles", role), f"{name} is not a parameter", nearest(name, list(params)))


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[Any, Any]:
    """The mapping of a key, an empty one if something else was given."""
    content = data.get(key)
    if not isinstance(content, Mapping):
        return {}
    return content
