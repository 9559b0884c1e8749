"""Make a study from a file, or from values on the command line, reporting every mistake at once."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from gputui.core.config import Workspace, shipped_studies
from gputui.core.errors import ExplainedError
from gputui.core.yaml_forms.document import Document, KeyPath
from gputui.core.yaml_forms.file import given_twice, parse_file, problem_at, read_text, whole_file
from gputui.core.yaml_forms.forms import findings, with_summaries
from gputui.core.yaml_forms.problems import Problem, ProfileError, did_you_mean, nearest, shown_value
from gputui.profiles.crosscheck import CrossFinding
from gputui.profiles.init.command_profile import command_profile
from gputui.profiles.init.typed_command import DraftError
from gputui.profiles.params import Parameter, ParameterError, UnfitValueError, unknown_parameter
from gputui.profiles.profile_file import SUFFIXES, Profile, ProfileNotFoundError, load
from gputui.profiles.profile_file import find as find_profile
from gputui.profiles.targets import TargetNotFoundError, find_target
from gputui.recovery.policies import policy_from
from gputui.runs.spec import ROLE_NAMES, Scalar
from gputui.studies.spec import MAX_POINTS, NAME_KEY, Budget, Dimension, StudySpec

_ROLE_OF_ACTION = {
    "shrink_batch": "batch_size",
    "gradient_checkpointing": "gradient_checkpointing",
    "cpu_offload": "cpu_offload",
    "lower_lr": "lr",
    "tighter_clip": "grad_clip",
    "fewer_workers": "num_workers",
    "longer_timeout": "timeout",
}
"""The parameter that each action of recovery changes."""
_MAY_BE_EMPTY = ("name", "gpus_per_trial")
"""Keys for which the file's name and the profile speak otherwise."""
_STEPS_NAMES = ("steps", "max_steps")
"""Usual names of the parameter for the number of steps."""


class StudyFileNotFoundError(ExplainedError, LookupError):
    """No study file has this name. One line, with the nearest name."""


class StudyFile(Struct, frozen=True):
    """A valid study with its profile.

    Attributes:
        path: the file.
        source: its text.
        spec: the study's specification.
        profile: the profile of its runs.
    """

    path: Path
    source: str
    spec: StudySpec
    profile: Profile


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a study, for editors."""
    schema = with_summaries(TypeAdapter(StudySpec).json_schema())
    dimension = schema["$defs"]["Dimension"]
    del dimension["properties"][NAME_KEY]
    dimension["required"].remove(NAME_KEY)
    schema["required"].remove("name")
    for name in _MAY_BE_EMPTY:
        schema["properties"][name] = {"anyOf": [schema["properties"][name], {"type": "null"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "gputui study"}


# --- files ------------------------------------------------------------------------------------------------------------


def list_study_files(workspace: Workspace, cwd: Path) -> list[Path]:
    """Every study file that has a name: those in ``./studies``, of the home, and the shipped ones.
    The first of each name wins."""
    files: dict[str, Path] = {}
    for folder in (cwd / "studies", workspace.study_files, shipped_studies()):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.suffix in SUFFIXES and path.is_file():
                files.setdefault(path.stem, path)
    return list(files.values())


def find_study_file(name_or_path: str, workspace: Workspace, cwd: Path) -> Path:
    """The file of a study, by path or by name. Raises StudyFileNotFoundError."""
    if "/" in name_or_path or name_or_path.endswith(SUFFIXES):
        path = cwd / Path(name_or_path).expanduser()
        if path.exists():
            return path
        raise StudyFileNotFoundError(f"{name_or_path}: no such file")
    files = {path.stem: path for path in list_study_files(workspace, cwd)}
    if name_or_path in files:
        return files[name_or_path]
    hint = did_you_mean(name_or_path, files) or f"there are {', '.join(sorted(files))}"
    raise StudyFileNotFoundError(f"no study file {name_or_path!r}; {hint}")


def load_study(path: Path, workspace: Workspace, cwd: Path, target: str | None = None) -> StudyFile:
    """Read a study's file; ``target`` replaces its own. Raises ProfileError with every problem,
    each with its line."""
    return read_study(read_text(path, "study"), path, workspace, cwd, target)


def read_study(text: str, path: Path, workspace: Workspace, cwd: Path, target: str | None = None) -> StudyFile:
    """Parse a study's text from ``path``. Raises ProfileError with every problem."""
    document = parse_file(text, path)
    form = document.data
    if not isinstance(form, dict):
        raise whole_file(path, "is no study; one is a mapping with at least profile, space and objective")
    if target is not None:
        form["target"] = target
    problems = given_twice(path, document)
    profile, of_profile = _profile(document, path, workspace, cwd)
    problems += of_profile
    crossed: list[CrossFinding] = []
    data = {key: value for key, value in form.items() if value is not None or key not in _MAY_BE_EMPTY}
    data.setdefault("name", path.stem)
    if profile is not None:
        data["profile"] = profile.name
        # What is wrong about names is said beside what is wrong in the form.
        crossed += _check_names(form, profile)
    try:
        crossed += _resolve_lengths(data, profile)
        crossed += _resolve_target(data, profile, workspace)
    except ProfileError as error:
        problems += error.problems
    spec = None
    try:
        spec = TypeAdapter(StudySpec).validate_python(data)
    except ValidationError as error:
        for key_path, what in findings(error, StudySpec):
            problems.append(problem_at(path, document, _path_in_file(key_path, data), **what))
    if spec is not None and profile is not None:
        spec = _with_defaults_of(profile, spec, data.keys())
        crossed += _cross_check(spec, profile, data.keys())
    problems += [
        problem_at(path, document, finding.place, problem=finding.problem, nearest=finding.nearest)
        for finding in crossed
    ]
    if problems or spec is None or profile is None:
        raise ProfileError(problems)
    return StudyFile(path, text, spec, profile)


def _with_defaults_of(profile: Profile, spec: StudySpec, keys: Collection[str]) -> StudySpec:
    """The study with what its profile says where its own ``keys`` do not."""
    gpus = spec.gpus_per_trial
    if "gpus_per_trial" not in keys:
        gpus = gpus_of(profile)
    rerun = spec.rerun
    if spec.pruner.kind == "none":
        rerun = 0
    return replace(spec, profile=profile.name, gpus_per_trial=gpus, rerun=rerun)


def _path_in_file(key_path: tuple[Any, ...], data: Mapping[str, Any]) -> tuple[Any, ...]:
    """A path in the list of dimensions or objectives as the file has it."""
    if key_path[:1] == ("space",) and len(key_path) > 1:
        return ("space", list(data["space"])[key_path[1]], *key_path[2:])
    is_one = isinstance(data.get("objective"), dict)
    if is_one and key_path[:2] == ("objective", 0):
        return ("objective", *key_path[2:])
    return key_path


def _profile(document: Document, path: Path, workspace: Workspace, cwd: Path) -> tuple[Profile | None, list[Problem]]:
    """The profile that a study names; the words of a command are a list."""
    name = document.data.get("profile")
    if isinstance(name, list) and all(isinstance(word, str) for word in name):
        try:
            return command_profile(name, path.resolve().parent), []
        except DraftError as error:
            return None, [problem_at(path, document, ("profile",), problem=str(error))]
    if not isinstance(name, str) or not name:
        return None, []  # reported already
    is_path = "/" in name or name.endswith(SUFFIXES)
    try:
        if is_path:
            cwd = path.resolve().parent
        return load(find_profile(name, workspace, cwd)), []
    except ProfileNotFoundError as error:
        return None, [problem_at(path, document, ("profile",), problem=str(error))]
    except ProfileError as error:
        return None, [problem_at(path, document, ("profile",), problem="the profile is not valid"), *error.problems]


def gpus_of(profile: Profile) -> int:
    """The number of GPUs that a profile asks for, 0 where that depends on the machine."""
    return profile.form.gpus.count or len(profile.form.gpus.devices)


def _mapping(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A section; empty where it is missing or no mapping, which is reported elsewhere."""
    section = data.get(key)
    if isinstance(section, dict):
        return section
    return {}


# --- what a file names ------------------------------------------------------------------------------------------------


def _resolve_lengths(data: dict[str, Any], profile: Profile | None) -> Iterator[CrossFinding]:
    """Put the value of a parameter in place of its name in ``length`` of pruner and pbt."""
    parameters = {} if profile is None else profile.parameters
    space = _mapping(data, "space")
    usual_name = next((name for name in _STEPS_NAMES if name in parameters and name not in space), None)
    for key, default_name in (("pruner", None), ("pbt", usual_name)):
        section = _mapping(data, key)
        typed_length = section.get("length")
        name = default_name if typed_length is None else typed_length
        if not section or not isinstance(name, str) or not name:
            continue
        length = _length_of(name, _mapping(data, "params"), parameters)
        problem = None
        is_used = typed_length is not None and section.get("kind") != "none"
        if profile is not None and is_used:
            problem = _length_problem(name, profile, is_tuned=name in space, is_length=length is not None)
        if problem is not None:
            meant = None if name in parameters else nearest(name, parameters)
            yield CrossFinding((key, "length"), problem, meant)
            length = None
        if length is None and key == "pruner":
            length = 1.0  # where the study is refused, any length of a pruner does
        data[key] = {**section, "length": length}


def _length_of(name: str, params: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> float | None:
    """The value of a parameter as the length of a full run; None if it is no number greater than 0."""
    value = None
    if name in params:
        value = params[name]
    elif name in parameters:
        value = parameters[name].default
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if value > 0:
        return value
    return None


def _length_problem(name: str, profile: Profile, *, is_tuned: bool, is_length: bool) -> str | None:
    """Why a parameter cannot be the length of a full run; None if it can."""
    if name not in profile.parameters:
        return f"{name} is not a parameter of {profile.name}"
    if is_tuned:
        return f"{name} is tuned, so that trials have no common length"
    if not is_length:
        return f"{name} is no number greater than 0 in {profile.name}"
    return None


def _resolve_target(data: dict[str, Any], profile: Profile | None, workspace: Workspace) -> Iterator[CrossFinding]:
    """Put a target in place of its name."""
    name = data.pop("target", None)
    if name is not None and not (isinstance(name, str) and name):
        yield CrossFinding(("target",), f"expected the name of a target, found {shown_value(name)}")
    elif name is not None and profile is not None:
        try:
            data["target"] = find_target(name, profile.form.targets, workspace)
        except TargetNotFoundError as error:
            yield CrossFinding(("target",), str(error))


def _check_names(data: Mapping[str, Any], profile: Profile) -> Iterator[CrossFinding]:
    """Check the parameters that a study's file names against its profile. ``data`` may have any
    other mistake."""
    parameters = profile.parameters
    space = _mapping(data, "space")
    params = _mapping(data, "params")
    for section, names in (("space", space), ("params", params)):
        for name in names:
            if name not in parameters:
                what = f"{unknown_parameter(str(name), parameters)}; the profile is {profile.name}"
                yield CrossFinding((section, name), what)
    for name, value in params.items():
        if name in space:
            yield CrossFinding(("params", name), "is tuned, too; remove it here or from space")
        if name in parameters and not isinstance(value, (dict, list)):
            problem = _unfit(parameters[name], value)
            if problem:
                yield CrossFinding(("params", name), problem)
    changed = {name for phase in profile.form.phases for name in phase.params}
    for name in space:
        if name in changed:
            yield CrossFinding(("space", name), "the profile's phases change it; remove one of the two")
    yield from _changed_by_recovery(space, profile)


def _changed_by_recovery(tuned: Collection[str], profile: Profile) -> Iterator[CrossFinding]:
    """Parameters that the profile's own ladders change cannot be tuned. The built-in policies do
    not change tuned values."""
    recovery = profile.form.recovery
    roles = profile.form.roles
    own_ladders = recovery.get("ladders") or {}
    if not own_ladders:
        return
    ladders = policy_from(recovery).ladders
    for kind in own_ladders:
        for action in itertools.chain.from_iterable(ladders.get(kind, ())):
            role = _ROLE_OF_ACTION.get(action.name)
            if role is None:
                continue
            parameters = (roles[role],) if role in roles else ROLE_NAMES[role]
            for name in set(parameters) & set(tuned):
                what = f"the profile's recovery changes it ({action.name} for {kind}); remove one of the two"
                yield CrossFinding(("space", name), what)


def _unfit(parameter: Parameter, value: Scalar) -> str:
    """The sentence of a value that the parameter cannot take, else empty."""
    try:
        parameter.parse(value)
    except UnfitValueError as error:
        return error.what
    return ""


# --- keys against each other ------------------------------------------------------------------------------------------


def _cross_check(spec: StudySpec, profile: Profile, keys: Collection[str]) -> Iterator[CrossFinding]:
    """Check the keys of a study against each other, and its space against its profile. ``keys``
    are the keys of the file."""
    for number, dimension in enumerate(spec.space):
        key_path = ("space", dimension.name)
        if dimension.name in profile.parameters:
            yield from _check_dimension(dimension, profile.parameters[dimension.name])
        yield from _check_condition(dimension, spec.space[:number])
        if spec.is_grid and dimension.grid() is None:
            yield CrossFinding(key_path, "a grid needs a step or a list of values")
        if spec.pbt is not None and dimension.when:
            yield CrossFinding((*key_path, "when"), "members of a population have every parameter")
    metrics = [objective.metric for objective in spec.objectives]
    for number, metric in enumerate(metrics):
        if metric in metrics[:number]:
            yield CrossFinding(("objective", number, "metric"), f"{metric} is an objective already")
    for is_wrong, at, what in _rules(spec, profile, keys):
        if is_wrong:
            yield CrossFinding(at, what)


def _rules(spec: StudySpec, profile: Profile, keys: Collection[str]) -> Iterator[tuple[bool, KeyPath, str]]:
    """Rules over several keys: whether one is broken, the key to name, and what to do."""
    kind = spec.sampler.kind
    several = len(spec.objectives) > 1
    budget = spec.budget
    has_end = spec.is_grid or spec.pbt is not None or budget != Budget() or spec.stop_after is not None
    uses_gpus = not profile.form.gpus.is_none or "gpus_per_trial" in keys
    of_one_gpu = ("trials_per_gpu",)
    gpu_hours = ("budget", "gpu_hours")

    what = f"a budget is needed (trials, gpu_hours or wall), or stop_after: {kind} has no end"
    yield not has_end, (), what
    what = "trials with several objectives cannot be pruned; write pruner: none"
    yield several and spec.pruner.kind != "none", ("pruner",), what
    what = "only trials with one GPU share it; write gpus_per_trial: 1"
    yield spec.trials_per_gpu > 1 and spec.gpus_per_trial != 1, of_one_gpu, what

    what = "its trials use no GPU; give trials or wall"
    yield budget.gpu_hours is not None and not uses_gpus, gpu_hours, what
    if spec.target is not None:
        what = "a target needs parallel: N (with --grid: --parallel N), the number of trials at a time: the GPUs of a "
        yield spec.parallel is None, ("target",), f"{what}target are not known here"
        yield spec.trials_per_gpu > 1, of_one_gpu, "a target chooses the GPUs of each trial; remove the line"
        what = "members continue from each other's checkpoints, which are kept on this machine only"
        yield spec.pbt is not None, ("pbt",), what

    if spec.pbt is None:
        is_large = kind == "grid" and len(spec.grid()) > MAX_POINTS
        numbers = sum(dimension.kind != "choice" for dimension in spec.space)
        yield is_large, ("sampler",), f"the grid has more than {MAX_POINTS} points"
        yield kind == "cmaes" and numbers < 2, ("sampler",), "cmaes needs two parameters that are numbers"
        yield kind == "cmaes" and several, ("sampler",), "cmaes has one objective; tpe and nsga2 take several"
        yield kind == "nsga2" and not several, ("sampler",), "nsga2 is for several objectives; tpe learns from one"
    else:
        length = spec.pbt.length
        every = spec.pbt.every
        for key in ("sampler", "pruner", "stop_after", "warm_start"):
            yield key in keys, (key,), "pbt has its own way; remove the line"
        yield several, ("objective",), "pbt compares members by one objective"
        if length is not None:
            yield length <= every, ("pbt", "every"), f"nothing is ever compared: a full run has {length:g} steps"
        what = f"members continue from checkpoints, and {profile.name} names none"
        yield profile.form.checkpoints is None, ("pbt",), what


def _check_dimension(dimension: Dimension, parameter: Parameter) -> Iterator[CrossFinding]:
    key_path = ("space", dimension.name)
    if dimension.kind == "choice":
        for number, value in enumerate(dimension.choices):
            if why := _unfit(parameter, value):
                yield CrossFinding((*key_path, "values", number), why)
        return
    if dimension.kind == "float" and parameter.kind == "int":
        why = "the parameter takes whole numbers"
        if parameter.is_whole_by_default:
            why = parameter.by_example
        yield CrossFinding((*key_path, "type"), f"{why}; or write type: int here")
        return
    for key, bound in zip(("min", "max"), dimension.bounds, strict=True):
        if dimension.kind == "int":
            bound = int(bound)
        if why := _unfit(parameter, bound):
            yield CrossFinding((*key_path, key), why)
    multiple = parameter.multiple_of
    if multiple is not None:
        least, _ = dimension.bounds
        step = dimension.step or 1
        if step % multiple or least % multiple:
            yield CrossFinding(key_path, f"its values must be multiples of {multiple}; give min and step so")


def _check_condition(dimension: Dimension, earlier: Sequence[Dimension]) -> Iterator[CrossFinding]:
    """Check that the values which a parameter depends on exist."""
    by_name = {ancestor.name: ancestor for ancestor in earlier}
    for name, values in dimension.when.items():
        key_path = ("space", dimension.name, "when", name)
        if name not in by_name:
            yield CrossFinding(key_path, "no parameter above it in the space has this name", nearest(name, by_name))
            continue
        for value in values:
            if not by_name[name].holds(value):
                yield CrossFinding(key_path, f"{name} is never {value}")


# --- a grid of the command line ---------------------------------------------------------------------------------------


def grid_source(
    profile: Profile, values: Mapping[str, Sequence[str]], fixed: Mapping[str, str], settings: Mapping[str, Any]
) -> str:
    """Write a study's file: a grid over typed values of a profile's parameters.

    Args:
        profile: the profile of the runs.
        values: the typed values of each tuned parameter.
        fixed: the typed value of parameters that every trial shares.
        settings: other keys of the file; those that are None are left out.

    Returns:
        The file's text.

    Raises:
        ParameterError: with every value that a parameter cannot have.
    """
    space: dict[str, list[Scalar]] = {}
    params: dict[str, Scalar] = {}
    problems: list[str] = []
    for name, texts in values.items():
        try:
            space[name] = list(dict.fromkeys(_parsed(profile, name, texts)))
        except ParameterError as error:
            problems += error.problems
    for name, text in fixed.items():
        try:
            (params[name],) = _parsed(profile, name, [text])
        except ParameterError as error:
            problems += error.problems
    problems += [f"{name}: given to --grid and to --set" for name in values.keys() & fixed.keys()]
    if problems:
        raise ParameterError(problems)
    data: dict[str, Any] = {"name": f"{profile.name}-grid"}
    if profile.path is None:
        data["profile"] = list(profile.typed)
    else:
        data["profile"] = str(profile.path.resolve())
    data["space"] = space
    if params:
        data["params"] = params
    data["sampler"] = "grid"
    data |= {key: value for key, value in settings.items() if value is not None}
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None)


def _parsed(profile: Profile, name: str, texts: Sequence[str]) -> list[Scalar]:
    """Typed values of a parameter. Raises ParameterError with every one that it cannot have."""
    parameter = profile.parameters.get(name)
    if parameter is None:
        raise ParameterError([f"{name}: {unknown_parameter(name, profile.parameters)}"])
    parsed: list[Scalar] = []
    problems: list[str] = []
    for text in texts:
        try:
            parsed.append(parameter.parse(text))
        except ParameterError as error:
            problems += error.problems
    if problems:
        raise ParameterError(problems)
    return parsed
