"""Checks before a launch. Each failed one has a remedy.

`quick_checks` reads the file system and takes no noticeable time. `check_interpreter` (in `interpreter_checks`) starts
a process. A screen shows the first results at once and the second later; `check` is both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.core.config import Workspace
from gputui.core.redaction import redact_params
from gputui.core.units import bytes_text
from gputui.core.yaml_forms.problems import ProfileError, nearest, nearest_file
from gputui.profiles.gpu_checks import GpuSituation, check_gpus, check_memory
from gputui.profiles.interpreter_checks import check_interpreter, chosen_interpreter, other_interpreter
from gputui.profiles.params import RESERVED_NAMES, RUN_DIR, UNDECIDED
from gputui.profiles.probe import DEADLINE_SECONDS
from gputui.profiles.profile_file import Profile, valid_part
from gputui.profiles.resolve import (
    GpuChoice,
    ResolveError,
    interpreter_of,
    resolve,
    shell_interpreter,
    working_directory,
)
from gputui.profiles.sink_checks import RUN_ID, check_sinks
from gputui.runs.checks import CheckResult, graded
from gputui.runs.command import PLACEHOLDER, checkpoint_location
from gputui.runs.executors import Executors
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import ROLE_NAMES, RunSpec
from gputui.store.gpu_use import PastPeak

RESUME_REMEDY = (
    'write checkpoints: {resume: "--resume {checkpoint}"} with the argument that the script takes, or let it load '
    "$GPUTUI_CHECKPOINT where that is set"
)
_DATA_NAME = re.compile(
    r"(?:.*_)?(?:data|dataset|train|valid|val|eval|test|input|images?|corpus)_?(?:dir|directory|folder|path|root|file)",
    re.IGNORECASE,
)
_UNCLOSED = re.compile(r"\{(?P<name>[A-Za-z_][\w.-]*)(?=[^}]*$)")
"""A name behind the last brace of a word, which is not closed."""
_LOW_DISK_BYTES = 1 << 30  # room for logs and a checkpoint of a small model


_OF_KEYS: Mapping[str, frozenset[str]] = {
    "program": frozenset({"script", "module", "command"}),
    "interpreter": frozenset({"python", "command"}),
    "workdir": frozenset({"workdir"}),
    "placeholders": frozenset({"params"}),
    "parameters": frozenset({"params"}),
}
"""Checks of what is written, and the keys of the profile that they depend on."""


def problems_of_rest(path: Path, error: ProfileError, state: Path) -> list[str]:
    """What else is wrong in a profile with mistakes, as far as the keys without one tell it."""
    rest = valid_part(path, error)
    if rest is None:
        return []
    try:
        spec = resolve(rest, GpuChoice(heeds_shell=False))
    except ResolveError:
        return []
    keys = [problem.key for problem in error.problems]
    # The name of a wrong parameter is still known.
    wrong = {key.partition(".")[0] for key in keys if not key.startswith("params.")}
    return [
        f"{result.name}: {result.detail}; {result.remedy}"
        for result in quick_checks(spec, state=state)
        if result.status == "fail" and _OF_KEYS.get(result.name, frozenset(wrong)).isdisjoint(wrong)
    ]


def check(
    spec: RunSpec,
    *,
    state: Path,
    gpus: GpuSituation | None = None,
    past: Sequence[PastPeak] = (),
    environ: Mapping[str, str] | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> list[CheckResult]:
    """Run all checks, in the order shown. ``state`` is the folder of the database and the runs."""
    simulated = Workspace(profiles=state, state=state).scenario.exists()
    env = os.environ if environ is None else environ
    results = quick_checks(spec, state=state, gpus=gpus, past=past, environ=env)
    if any(result.name == "interpreter" and result.status == "fail" for result in results):
        return results
    slow = check_interpreter(spec, env, simulated_gpus=simulated, deadline_seconds=deadline_seconds)
    names = {result.name for result in slow}
    return [result for result in results if result.name not in names] + slow


def quick_checks(
    spec: RunSpec,
    *,
    state: Path,
    gpus: GpuSituation | None = None,
    past: Sequence[PastPeak] = (),
    environ: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run the checks that start no process. ``past`` is the memory that earlier attempts used."""
    env = os.environ if environ is None else environ
    return [
        _program(spec, env),
        _interpreter(spec),
        _workdir(spec),
        _placeholders(spec),
        _parameters(spec),
        _data(spec, env),
        _roles(spec),
        _metrics(spec),
        _checkpoints(spec),
        _resume(spec),
        check_gpus(spec, gpus),
        check_memory(past, spec, gpus),
        _disk(spec, state),
        *LAUNCHERS[spec.launcher].checks(spec),
        *Executors().of(None).checks(spec),
        check_sinks(spec, state),
    ]


def check_elsewhere(spec: RunSpec, state: Path) -> list[CheckResult]:
    """Check a run on a target as far as possible without asking the target."""
    results = [_placeholders(spec), _parameters(spec), _roles(spec), _resume(spec), check_sinks(spec, state)]
    if spec.gpus.uuids:
        remedy = "give a number: the target's own scheduler says which"
        results.append(CheckResult("gpus", "fail", "UUIDs name GPUs of this machine", remedy))
    executor = Executors().of(spec.target)
    shares_files = executor.sees_checkpoints(spec.target or {})
    if spec.phases and not shares_files:
        remedy = "launch the profile here, or on a target that shares the run's folder"
        results.append(CheckResult("phases", "fail", "a phase begins at a checkpoint that is seen from here", remedy))
    workdir = Path(spec.workdir)
    is_checkout = any((folder / ".git").exists() for folder in (workdir, *workdir.parents))
    if not (shares_files or is_checkout or spec.workdir.startswith(RUN_DIR)):
        remedy = "git init && git add . there, so that gputui knows what to copy"
        results.append(CheckResult("code", "fail", f"{workdir} is no git checkout to copy from", remedy))
    return [*results, *executor.checks(spec)]


def _program(spec: RunSpec, environ: Mapping[str, str]) -> CheckResult:
    first = spec.program[0]
    if LAUNCHERS[spec.launcher].takes_command:
        base = spec.workdir if not spec.workdir.startswith(RUN_DIR) else "/"
        path = spec.env.get("PATH") or environ.get("PATH")
        if "/" in first:
            first = str(Path(base) / first)
        executable = shutil.which(first, path=path)
        if executable is None:
            remedy = "install it, or give its path"
            return CheckResult("program", "fail", f"no program {spec.program[0]} that can be run", remedy)
        return CheckResult("program", "pass", executable)
    if first == "-m":
        return CheckResult("program", "pass", f"module {spec.program[1]}")
    script = Path(first)
    if not script.exists():
        beside = [entry.name for entry in script.parent.iterdir()] if script.parent.is_dir() else []
        meant = nearest_file(script.name, beside)
        remedy = f"did you mean {meant}?" if meant else "script: is relative to the profile's folder"
        return CheckResult("program", "fail", f"{script} does not exist", remedy)
    if script.is_file() and os.access(script, os.R_OK):
        return CheckResult("program", "pass", str(script))
    remedy = "script: names a Python file that you may read"
    return CheckResult("program", "fail", f"{script} is no file that can be read", remedy)


def _interpreter(spec: RunSpec) -> CheckResult:
    if spec.python is None:
        return CheckResult("interpreter", "skip", f"launcher {spec.launcher} names its own program")
    if "/" in spec.python and shutil.which(spec.python) is not None:
        return chosen_interpreter(spec)
    state = "is not a program that can be run" if Path(spec.python).exists() else "does not exist"
    return CheckResult("interpreter", "fail", f"{spec.python} {state}", other_interpreter(spec))


def _workdir(spec: RunSpec) -> CheckResult:
    if spec.workdir.startswith(RUN_DIR):
        return CheckResult("workdir", "pass", "the run's own folder")
    path = Path(spec.workdir)
    usable = path.is_dir() and os.access(path, os.R_OK | os.X_OK)
    state = ""
    if not path.exists():
        state = " does not exist"
    elif not usable:
        state = " is no folder that can be entered"
    return graded("workdir", f"{path}{state}", "workdir: is relative to the profile's folder", fails=not usable)


def _placeholders(spec: RunSpec) -> CheckResult:
    of_sinks = [(f"sinks.{name}", target) for name, target in spec.sinks.items()]
    # Each with the nearest known name.
    unknown: dict[str, str | None] = {}
    unclosed: dict[str, str | None] = {}
    for key, text in [*_templates(spec), *of_sinks]:
        reserved = ("run_dir", RUN_ID) if key.startswith("sinks.") else RESERVED_NAMES
        names = [*spec.params, *reserved]
        for name in PLACEHOLDER.findall(text):
            if name not in names:
                unknown[f"{{{name}}} in {key}"] = nearest(name, names)
        match = _UNCLOSED.search(text)
        if match is not None and (meant := nearest(match["name"], names)) is not None:
            unclosed[f"{match[0]} in {key}"] = meant
    if not unknown and not unclosed:
        return CheckResult("placeholders", "pass", "every placeholder is known")
    hints = dict.fromkeys([*unknown.values(), *unclosed.values()])
    meant = " and ".join(f"{{{hint}}}" for hint in hints if hint is not None)
    remedy = f"did you mean {meant}?" if meant else "add the parameter; a literal word in braces can be one's value"
    details = []
    if unknown:
        details.append(f"no parameter for {', '.join(unknown)}")
    if unclosed:
        details.append(f"no closing brace behind {', '.join(unclosed)}")
    return CheckResult("placeholders", "fail", "; ".join(details), remedy)


def _templates(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """The key and the text of everything with placeholders, but for sinks."""
    yield from (("args", token) for token in spec.args or ())
    yield from ((f"env.{name}", text) for name, text in spec.env.items())
    yield from (("metrics.path", source.path) for source in spec.metrics if source.path is not None)
    if LAUNCHERS[spec.launcher].takes_command:
        yield from (("command", token) for token in spec.program)
    if spec.checkpoints is not None:
        yield "checkpoints.dir", spec.checkpoints.directory
        yield from (("checkpoints.resume", token) for token in spec.checkpoints.resume)


def _parameters(spec: RunSpec) -> CheckResult:
    """Check that parameters are used: recovery may change one, and that must have an effect."""
    if not spec.params:
        return CheckResult("parameters", "skip", "the profile has none")
    undecided = [name for name, value in spec.params.items() if value == UNDECIDED]
    if undecided:
        remedy = f"give each a value in params:, or {' '.join(f'--set {name}=…' for name in undecided)}"
        return CheckResult("parameters", "fail", f"{', '.join(undecided)} is still {UNDECIDED}", remedy)
    if spec.args is None:
        return CheckResult("parameters", "pass", f"{len(spec.params)} given as --name value")
    used = {name for _, text in _templates(spec) for name in PLACEHOLDER.findall(text)}
    unused = [name for name in spec.params if name not in used]
    if unused:
        key = "command" if LAUNCHERS[spec.launcher].takes_command else "args"
        remedy = f"add {' '.join(f'{{{name}}}' for name in unused)} to {key}, or remove the parameter"
        return CheckResult("parameters", "warn", f"{', '.join(unused)} is not used in {key} or env", remedy)
    return CheckResult("parameters", "pass", f"{len(spec.params)} used")


def _data(spec: RunSpec, environ: Mapping[str, str]) -> CheckResult:
    """Check that data exists. Only a warning, since a script may download its data."""
    if not any(_DATA_NAME.fullmatch(name) for name in spec.params):
        return CheckResult("data", "skip", "no parameter names a data folder")
    missing = dict(missing_data(spec.params, spec.workdir, environ))
    if not missing:
        return CheckResult("data", "pass", "every folder that the parameters name is there")
    values = redact_params({name: spec.params[name] for name in missing})
    details = []
    for name, path in missing.items():
        if path.is_absolute() or not spec.workdir.startswith(RUN_DIR):
            details.append(f"{name}: {path} is not there")
        else:
            details.append(f"{name}: {values[name]}, relative to the run's own folder, is not there")
    names = " ".join(f"--set {name}=PATH" for name in missing)
    return CheckResult("data", "warn", ", ".join(details), f"name another one ({names}), unless the script fetches it")


def missing_data(params: Mapping[str, object], workdir: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Parameters with the usual name of a data file or folder (``data_dir``, ``train_file``, …)
    that does not exist, and the missing path."""
    for name, value in params.items():
        if not isinstance(value, str) or not value or "://" in value or "{" in value or not _DATA_NAME.fullmatch(name):
            continue
        home = environ.get("HOME")
        path = Path(home, value[2:]) if value.startswith("~/") and home else Path(workdir, value)
        if not path.exists():
            yield name, path


def _roles(spec: RunSpec) -> CheckResult:
    if spec.recovery.get("policy") == "off":
        return CheckResult("recovery", "skip", "recovery is off")
    parameters = {role: name for role in ROLE_NAMES if (name := spec.role(role, spec.params)) is not None}
    batch = parameters.get("batch_size")
    if batch is None:
        detail = "no parameter is the batch size, so that recovery cannot lower it when memory runs out"
        return CheckResult("recovery", "warn", detail, "name it batch_size, or write roles: {batch_size: its_name}")
    value = spec.params[batch]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        detail = f"{batch} is {value!r}; recovery can lower only a whole number above 0"
        return CheckResult("recovery", "warn", detail, f"set {batch} to a whole number of at least 1")
    changeable = []
    for role, name in parameters.items():
        if role == name:
            changeable.append(role)
        else:
            changeable.append(f"{role} ({name})")
    return CheckResult("recovery", "pass", f"may change {', '.join(changeable)}")


def _metrics(spec: RunSpec) -> CheckResult:
    """Check that runs do not share metrics files, which would hide whose a value is."""
    paths = [source.path for source in spec.metrics if source.path is not None]
    if not paths:
        return CheckResult("metrics", "skip", "the profile names no file")
    shared = [path for path in paths if RUN_DIR not in path and not spec.workdir.startswith(RUN_DIR)]
    if not shared:
        return CheckResult("metrics", "pass", "in the run's own folder")
    detail = (
        f"{', '.join(shared)} is the file of every run of this profile: while two of them live, it is read "
        "only if gputui sees whose it is"
    )
    remedy = 'write metrics: {path: "{run_dir}/…"}, and let the script write there ($GPUTUIRUN_DIR)'
    return CheckResult("metrics", "warn", detail, remedy)


def _checkpoints(spec: RunSpec) -> CheckResult:
    """Check that runs do not share a checkpoint folder, which would hide whose a checkpoint is."""
    folder, pattern = checkpoint_location(spec)
    if pattern == LEARNED:
        return CheckResult(
            "checkpoints", "pass", f"those that runs write below {folder} are recognised by their content"
        )
    if RUN_DIR in folder:
        return CheckResult("checkpoints", "pass", f"{pattern} in the run's own folder")
    detail = (
        f"{folder} is the folder of every run of this profile: what lies there before a run "
        "begins is not resumed from, nor what is written while another run has it too"
    )
    remedy = 'write checkpoints: {dir: "{run_dir}/checkpoints"}, and let the script save there ($GPUTUIRUN_DIR)'
    return CheckResult("checkpoints", "warn", detail, remedy)


def _resume(spec: RunSpec) -> CheckResult:
    """Check that a restarted script gets its checkpoint. Whether it loads it cannot be known."""
    if spec.checkpoints is None:
        detail = "the script is given no checkpoint: a new attempt begins from the start, unless it finds its own"
        return CheckResult("resume", "warn", detail, RESUME_REMEDY)
    if any("{checkpoint}" in text or "{checkpoint_step}" in text for _, text in _templates(spec)):
        return CheckResult("resume", "pass", "the script is given the checkpoint")
    if spec.checkpoints.resume:
        arguments = " ".join(spec.checkpoints.resume)
        detail = f"the script is given {arguments} and finds its checkpoint itself: after a NaN it may load a bad one"
        return CheckResult("resume", "pass", detail)
    detail = (
        "checkpoints has no resume: unless the script itself looks at $GPUTUI_CHECKPOINT, or for its own checkpoints, "
        "every attempt after an incident starts from the beginning"
    )
    return CheckResult("resume", "warn", detail, RESUME_REMEDY)


def _disk(spec: RunSpec, state: Path) -> CheckResult:
    folder = next(place for place in (state, *state.parents) if place.exists())
    free_bytes = shutil.disk_usage(folder).free
    detail = f"{bytes_text(free_bytes)} free where runs are kept ({state})"
    remedy = "free some space, or choose another place with --home"
    if spec.disk_bytes is None:
        return graded("disk", detail, remedy, warns=free_bytes < _LOW_DISK_BYTES)
    if free_bytes < spec.disk_bytes:
        return CheckResult("disk", "fail", f"{detail}, {bytes_text(spec.disk_bytes)} needed", remedy)
    return CheckResult("disk", "pass", detail)


def survey_target(target: Mapping[str, Any], profile: Profile | None = None) -> Iterator[CheckResult]:
    """Check step by step whether a target can be used, with the interpreter of a profile."""
    python = target.get("python")
    if not python and profile is None:
        python = shell_interpreter(os.environ).path
    elif not python and profile is not None:
        python = interpreter_of(profile, working_directory(profile, os.environ), os.environ).path
    return Executors().of(target).survey({**target, "python": python})
