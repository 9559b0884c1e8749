"""Resolve a profile and a person's changes to the specification of a run: absolute paths, checked
parameters, found GPUs.

Starts and writes nothing. `gputui.profiles.preflight` checks whether the script and torch exist.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputui.core.config import shipped_profiles
from gputui.core.errors import ExplainedError
from gputui.core.yaml_forms.problems import nearest, shown_path
from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.devices import Selection, SelectionError, parse_selection, request_gpus, shell_selection
from gputui.profiles.params import RUN_DIR, ParameterError, apply, unknown_parameter
from gputui.profiles.profile_file import Profile
from gputui.profiles.schema import Metrics, ProfileForm
from gputui.reports.export.formats import FORMATS, is_format
from gputui.runs.command import format_value, substitute, values_for
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import (
    SHELL_GPUS,
    BestMetric,
    CheckpointSpec,
    GpuRequest,
    MetricsSpec,
    Phase,
    PythonOrigin,
    RunSpec,
    Scalar,
)

INSTALLED = Path(__file__).resolve().parents[2]
OWN_PACKAGE = "trainer"
# The key of a profile that asks for GPUs.
PROFILE_GPUS = "gpus"


class ResolveError(ExplainedError, ValueError):
    """The run cannot be made from this profile; ``problems`` has one line each. ``is_refusal``: the
    input is valid, but this machine cannot serve it."""

    def __init__(self, problems: Sequence[str], *, is_refusal: bool) -> None:
        self.problems = tuple(problems)
        self.is_refusal = is_refusal
        super().__init__("\n".join(problems))


class GpuChoice(NamedTuple):
    """The GPUs that a person asks for, and those that there are.

    Attributes:
        override: ``--gpus``: ``"2"``, ``"0,1"``, ``"0,"`` (index 0 alone), ``"all"`` or UUIDs; None for the profile's.
        inventory: The GPUs of this machine, None if unknown.
        excluded: The UUIDs of those that this home does not use.
        heeds_shell: Without an override, CUDA_VISIBLE_DEVICES of the shell counts.
    """

    override: str | None = None
    inventory: Sequence[GpuFacts] | None = None
    excluded: Collection[str] = ()
    heeds_shell: bool = True


def resolve(
    profile: Profile,
    choice: GpuChoice = GpuChoice(),  # noqa: B008 - immutable
    *,
    overrides: Mapping[str, Scalar] | None = None,
    environ: Mapping[str, str] | None = None,
    target: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The specification of one run.

    Args:
        overrides: Parameters by name, as text (``--set``) or as values of the parameter's type.
        environ: That of the person who launches, None for this process's.
        target: None for this machine.

    Raises:
        ResolveError: The run cannot be made; with every problem.
    """
    env = environ
    if env is None:
        env = os.environ
    form = profile.form
    problems: list[str] = []
    is_refusal = True
    try:
        phases, params = _parameters(profile, overrides or {})
    except ParameterError as error:
        problems = [*error.problems]
        is_refusal = False
    origin = _origin_of_gpus(profile, choice, env, is_here=target is None)
    try:
        gpus = _gpus(profile, choice, origin, env, is_here=target is None)
    except SelectionError as error:
        problems.append(f"{origin}: {error}")
        is_refusal = is_refusal and error.is_refusal
    if problems:
        raise ResolveError(problems, is_refusal=is_refusal)
    workdir = working_directory(profile, env)
    time_limit_seconds = form.time
    if target is not None:
        time_limit_seconds = None
    spec = RunSpec(
        name=profile.name,
        launcher=form.launcher,
        program=_program(profile, env),
        workdir=workdir,
        typed=profile.typed,
        spellings=profile.spellings,
        nproc=_processes(form, gpus, is_overridden=origin != PROFILE_GPUS),
        gpus=gpus,
        visible=form.visible,
        disk_bytes=form.requires.disk,
        params=params,
        env=dict(form.env),
        metrics=tuple(_metrics(source, workdir, params) for source in form.metrics.sources),
        loss=form.metrics.loss,
        checkpoints=_checkpoints(form, workdir, params),
        roles=dict(form.roles),
        multiples={name: param.multiple_of for name, param in form.params.items() if param.multiple_of is not None},
        scopes={name: param.scope for name, param in form.params.items() if param.scope is not None},
        recovery=dict(form.recovery),
        alerts=form.alerts,
        grace_seconds=float(form.grace),
        priority=form.priority,
        time_limit_seconds=time_limit_seconds,
        notify=form.notify,
        gates=dict(form.gates),
        sinks=_sinks(form, workdir, params, env),
        phases=phases,
        target=target,
    )
    if form.args is not None or form.command is not None:
        spec = replace(spec, args=tuple(form.args or ()))
    if form.metrics.best is not None:
        spec = replace(spec, best=BestMetric(form.metrics.best.name, form.metrics.best.mode))
    if profile.path is not None:
        spec = replace(spec, profile_path=str(profile.folder / profile.path.resolve().name))
    return _with_python(spec, profile, env)


def _with_python(spec: RunSpec, profile: Profile, env: Mapping[str, str]) -> RunSpec:
    """The specification with its interpreter: that of its target, or the profile's; none for a command."""
    if spec.target is not None and spec.target.get("python"):
        return replace(spec, python=spec.target["python"])
    if LAUNCHERS[spec.launcher].takes_command:
        return spec
    python = interpreter_of(profile, spec.workdir, env)
    if spec.target is not None:
        return replace(spec, python=python.path)
    return replace(spec, python=python.path, python_origin=python.origin)


def _parameters(profile: Profile, overrides: Mapping[str, Scalar]) -> tuple[tuple[Phase, ...], dict[str, Scalar]]:
    """The phases of a run, and the parameters of the first one. Raises ParameterError."""
    parameters = profile.parameters
    unknown = [
        f"{name}: {_unknown(profile, name, value)}" for name, value in overrides.items() if name not in parameters
    ]
    phases: list[Phase] = []
    changes: dict[str, Scalar] = {}
    try:
        for phase in profile.form.phases:
            values = apply(parameters, phase.params)
            phases.append(Phase(phase.until, {name: values[name] for name in phase.params}))
        if phases:
            changes |= phases[0].params
        changes |= {name: value for name, value in overrides.items() if name in parameters}
        params = apply(parameters, changes)
    except ParameterError as error:
        raise ParameterError([*unknown, *error.problems]) from error
    if unknown:
        raise ParameterError(unknown)
    return tuple(phases), params


def _unknown(profile: Profile, name: str, value: Scalar) -> str:
    """The message for an unknown parameter, with the lines that would add it to the profile."""
    if profile.path is None:
        return (
            f"{unknown_parameter(name, profile.parameters)}; only typed options can be set, so type it in the command"
        )
    from gputui.profiles.init.command_profile import script_option
    from gputui.profiles.init.typed_command import TypedCommand

    form = profile.form
    launcher = LAUNCHERS[form.launcher]
    command = TypedCommand(
        launcher, python=None, script=form.script, module=form.module, program=list(form.command or ())
    )
    option = script_option(command, profile.folder, name)
    if option is None and nearest(name, profile.parameters) is not None:
        return unknown_parameter(name, profile.parameters)
    argument = f"--{name} {{{name}}}"
    if option is not None:
        default, argument = option
        if default is not None:
            value = default
    line = f'"{name}: {format_value(value)}" to params:'
    if launcher.takes_command:
        line += f' and "{argument}" to command:'
    elif form.args is not None:
        line += f' and "{argument}" to args:'
    where = f"add {line} of {shown_path(profile.path)}"
    if option is not None:
        return f"no parameter of the profile, but an option of the script: {where}"
    return f"{unknown_parameter(name, profile.parameters)}; if it is an option of the script, {where}"


def usual_selection(profile: Profile, inventory: Sequence[GpuFacts] | None) -> Selection:
    """The GPUs that a launch asks for by itself: those of the profile; none for a command on a machine without GPUs.
    ``inventory`` is None if they are unknown."""
    if profile.path is None and inventory is not None and not inventory:
        return Selection(count=0)
    return profile.form.gpus


def _shell_gpus(usual: Selection, environ: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES of the launching shell; None without it, for a CPU run, and inside a run, whose variable
    gputui has set."""
    if usual.is_none or "GPUTUI_RUN_DIR" in environ:
        return None
    return environ.get(SHELL_GPUS)


def _origin_of_gpus(profile: Profile, choice: GpuChoice, environ: Mapping[str, str], *, is_here: bool) -> str:
    """What says which GPUs are asked for, as a problem with them names it."""
    if choice.override is not None:
        return "--gpus"
    usual = usual_selection(profile, choice.inventory)
    if is_here and choice.heeds_shell and _shell_gpus(usual, environ) is not None:
        return SHELL_GPUS
    return PROFILE_GPUS


def _gpus(profile: Profile, choice: GpuChoice, origin: str, environ: Mapping[str, str], *, is_here: bool) -> GpuRequest:
    """The request for GPUs of an origin, with what the profile says of them. Raises SelectionError."""
    form = profile.form
    selection = usual_selection(profile, choice.inventory)
    if choice.override is not None:
        selection = parse_selection(choice.override)
    elif origin == SHELL_GPUS:
        selection = shell_selection(environ[SHELL_GPUS])
    if not is_here and selection.share < 1:
        raise SelectionError("a part of a GPU is for this machine; a target gives whole ones")
    request = request_gpus(selection, choice.inventory, form.requires.gpu_memory, choice.excluded)
    request = replace(request, beside_desktop=form.beside_desktop)
    if origin == SHELL_GPUS:
        request = replace(request, shell=environ[SHELL_GPUS])
    if form.min_gpus is None or not request.count:
        return request
    return replace(request, min_count=min(form.min_gpus, request.count))


def _processes(form: ProfileForm, request: GpuRequest, *, is_overridden: bool) -> int:
    """The number of processes: that of the profile, or one per GPU if GPUs are given at the launch.
    A CPU run without a number is one process."""
    if not LAUNCHERS[form.launcher].starts_ranks:
        return 1
    if form.nproc == "gpus" or (is_overridden and request.count):
        return request.count or 1
    return int(form.nproc)


def _program(profile: Profile, environ: Mapping[str, str]) -> tuple[str, ...]:
    form = profile.form
    if form.command is not None:
        return tuple(form.command)
    if form.script is not None:
        return (os.path.normpath(profile.folder / _home(form.script, environ)),)
    return ("-m", form.module or "")


class ChosenPython(NamedTuple):
    """The Python of a run, and why it was taken."""

    path: str
    origin: PythonOrigin


def wants_gpus(profile: Profile, gpus_override: str | None) -> bool:
    """Return whether the run may ask for GPUs, so that resolving it needs the machine's inventory.
    False for an invalid override."""
    if gpus_override is None:
        return not profile.form.gpus.is_none
    try:
        return not parse_selection(gpus_override).is_none
    except SelectionError:
        return False


def interpreter_of(profile: Profile, workdir: str, environ: Mapping[str, str]) -> ChosenPython:
    """The Python of a profile's runs: the one that it names, else that of the person's shell.

    A name is a path (from the working directory, else from the profile's folder) or a program on
    $PATH. Links are not followed: a virtual environment is recognised by the path of its
    interpreter.
    """
    form = profile.form
    folder = profile.folder
    if form.python is None:
        return shell_interpreter(environ, is_own_program=_is_own_program(profile))
    origin: PythonOrigin = "profile"
    if profile.path is None:
        origin = "command"
    path = _home(form.python, environ)
    if "/" not in path:
        path = shutil.which(path, path=environ.get("PATH")) or path
    elif not path.startswith("/"):
        bases = [str(folder)]
        if not workdir.startswith(RUN_DIR):
            bases.insert(0, workdir)
        candidates = [os.path.normpath(Path(base) / path) for base in bases]
        path = next((candidate for candidate in candidates if Path(candidate).exists()), candidates[0])
    return ChosenPython(path, origin)


def shell_interpreter(environ: Mapping[str, str], *, is_own_program: bool = False) -> ChosenPython:
    """The Python that a person's shell would start: that of the active environment, else ``python``,
    or ``python3``, on $PATH, such as a pyenv shim, which is used as it is.

    gputui's own is taken if that is the one, if there is none, and for a program that comes with
    gputui (``is_own_program``).
    """
    origins: tuple[PythonOrigin, ...] = ("VIRTUAL_ENV", "CONDA_PREFIX")
    for name in origins:
        folder = environ.get(name)
        if folder and (python := Path(folder, "bin", "python")).exists():
            return ChosenPython(str(python), name)
    if is_own_program:
        return ChosenPython(sys.executable, "trainer")
    path = environ.get("PATH", "")
    first = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if first is None or Path(first).parent.resolve() == Path(sys.executable).parent.resolve():
        return ChosenPython(sys.executable, "gputui")
    return ChosenPython(str(Path(first).absolute()), "PATH")


def _is_own_program(profile: Profile) -> bool:
    """Return whether the profile runs what comes with gputui and is installed with it: the trainer,
    or the script of a shipped profile."""
    if profile.folder == shipped_profiles().resolve():
        return True
    module = profile.form.module or ""
    near = [root for root in _module_roots(profile.folder) if _holds_module(root, module)]
    return module.partition(".")[0] == OWN_PACKAGE and near in ([], [INSTALLED])


def working_directory(profile: Profile, environ: Mapping[str, str]) -> str:
    """The working directory of the run's processes: the profile's ``workdir``, else the profile's folder, except that

    - a ``module`` starts where it can be imported: in the profile's folder, or in its parent if the folder is named
      ``profiles``;
    - a shipped profile starts in the run's own folder, so that nothing is written beside the program; or where gputui
      is installed if another interpreter must find a module there.
    """
    form = profile.form
    folder = profile.folder
    if form.workdir is not None:
        path = _home(form.workdir, environ)
        if path.startswith(RUN_DIR):
            return path
        return os.path.normpath(folder / path)
    is_shipped = folder == shipped_profiles().resolve()
    if form.module is not None:
        for root in _module_roots(folder):
            if _holds_module(root, form.module):
                return str(root)
        is_foreign = interpreter_of(profile, RUN_DIR, environ).path != sys.executable
        if is_shipped and is_foreign and _holds_module(INSTALLED, form.module):
            return str(INSTALLED)
    if is_shipped:
        return RUN_DIR
    return str(folder)


def _module_roots(folder: Path) -> list[Path]:
    if folder.name == "profiles":
        return [folder, folder.parent]
    return [folder]


def _holds_module(root: Path, module: str) -> bool:
    path = root.joinpath(*module.split("."))
    return path.with_name(f"{path.name}.py").is_file() or (path / "__main__.py").is_file()


def _metrics(source: Metrics, workdir: str, params: Mapping[str, Scalar]) -> MetricsSpec:
    path = source.path
    if path is None and source.source == "jsonl":
        path = f"{RUN_DIR}/metrics.jsonl"
    if path is not None:
        path = _rooted(workdir, path, params)
    return MetricsSpec(source.source, path, tuple(source.patterns or ()), source.step, dict(source.units))


def _checkpoints(form: ProfileForm, workdir: str, params: Mapping[str, Scalar]) -> CheckpointSpec | None:
    if form.checkpoints is None:
        return None
    checkpoints = form.checkpoints
    usual = f"{RUN_DIR}/checkpoints"
    if checkpoints.pattern == LEARNED:
        usual = workdir
    directory = _rooted(workdir, checkpoints.dir or usual, params)
    return CheckpointSpec(
        directory, checkpoints.pattern, tuple(checkpoints.resume), checkpoints.keep, checkpoints.keep_best
    )


def _sinks(form: ProfileForm, workdir: str, params: Mapping[str, Scalar], environ: Mapping[str, str]) -> dict[str, str]:
    sinks: dict[str, str] = {}
    for name, place in form.sinks.items():
        if not is_format(name):
            continue  # which no valid profile has
        target = place or FORMATS[name].place
        if target is not None and FORMATS[name].is_address:
            sinks[name] = target
        elif target is not None:
            sinks[name] = _rooted(workdir, _home(target, environ), params)
    return sinks


def _rooted(workdir: str, path: str, params: Mapping[str, Scalar]) -> str:
    """A path relative to the working directory as a whole one. It remains a template."""
    is_absolute = substitute(path, values_for(params, "/run", checkpoint=None)).startswith("/")
    if is_absolute:
        return path
    return f"{workdir}/{path}"


def _home(path: str, environ: Mapping[str, str]) -> str:
    """Expand ``~`` to the home of the person who launches."""
    home = environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path
