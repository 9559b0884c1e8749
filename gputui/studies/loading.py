"""Make a study from a file, or from values on the command line, reporting every mistake at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from gputui.core.config import Workspace, shipped_studies
from gputui.core.yaml_forms.document import Document
from gputui.core.yaml_forms.file import given_twice, parse_file, problem_at, read_text, whole_file
from gputui.core.yaml_forms.forms import findings
from gputui.core.yaml_forms.problems import Problem, ProfileError, did_you_mean, nearest
from gputui.profiles.crosscheck import CrossFinding
from gputui.profiles.loading import SUFFIXES, Profile, ProfileNotFoundError, load
from gputui.profiles.loading import find as find_profile
from gputui.profiles.params import Parameter, ParameterError, UnfitValueError, unknown_parameter
from gputui.profiles.targets import TargetNotFoundError, find_target
from gputui.recovery.policies import policy_from
from gputui.runs.spec import ROLE_NAMES, Scalar
from gputui.studies.schema import StudyForm
from gputui.studies.spec import MAX_POINTS, Budget, Dimension, StudySpec

_TRIALS_ON_TARGET = "the number of trials at a time: the GPUs of a target are not known here"
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
STEPS_NAMES = ("steps", "max_steps")
"""Usual names of the parameter for the number of steps."""


class StudyFileNotFoundError(LookupError):
    """No study file has this name. One line, with the nearest name."""


class StudyFile(Struct, frozen=True):
    """A valid study with its profile. ``source`` is the file's text."""

    path: Path
    source: str
    spec: StudySpec
    profile: Profile


def list_study_files(workspace: Workspace, cwd: Path) -> list[Path]:
    """Every study file that has a name: those in ``./studies``, of the home, and the shipped ones.
    The first of each name wins."""
    found: dict[str, Path] = {}
    for folder in (cwd / "studies", workspace.study_files, shipped_studies()):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix in SUFFIXES and path.is_file():
                found.setdefault(path.stem, path)
    return list(found.values())


def find_study_file(name_or_path: str, workspace: Workspace, cwd: Path) -> Path:
    """The file of a study, by path or by name. Raises StudyFileNotFoundError."""
    if "/" in name_or_path or name_or_path.endswith(SUFFIXES):
        path = cwd / Path(name_or_path).expanduser()
        if path.exists():
            return path
        raise StudyFileNotFoundError(f"{name_or_path}: no such file")
    known = {path.stem: path for path in list_study_files(workspace, cwd)}
    if name_or_path in known:
        return known[name_or_path]
    hint = did_you_mean(name_or_path, known) or f"there are {', '.join(sorted(known))}"
    raise StudyFileNotFoundError(f"no study file {name_or_path!r}; {hint}")


def load_study(path: Path, workspace: Workspace, cwd: Path, target: str | None = None) -> StudyFile:
    """Read a study's file; ``target`` replaces its own. Raises ProfileError with every problem,
    each with its line."""
    return read_study(read_text(path, "study"), path, workspace, cwd, target)


def read_study(text: str, path: Path, workspace: Workspace, cwd: Path, target: str | None = None) -> StudyFile:
    """Parse a study's text from ``path``. Raises ProfileError."""
    document = parse_file(text, path)
    if not isinstance(document.data, dict):
        raise whole_file(path, "is no study; one is a mapping with at least profile, space and objective")
    if target is not None:
        document.data["target"] = target
    problems = given_twice(path, document)
    form: StudyForm | None = None
    try:
        form = StudyForm.model_validate(document.data)
    except ValidationError as error:
        is_one = isinstance(document.data.get("objective"), dict)
        for place, what in findings(error, StudyForm):
            if is_one and place[:2] == ("objective", 0):
                place = ("objective", *place[2:])
            problems.append(problem_at(path, document, place, **what))
    profile, of_profile = _profile(document, path, workspace, cwd)
    problems += of_profile
    spec = None
    if profile is not None:
        # What is wrong about names is said beside what is wrong in the form.
        crossed = list(check_names(document.data, profile))
        if form is not None:
            spec = _spec(form, path, profile)
            if form.target is not None:
                try:
                    spec = replace(spec, target=find_target(form.target, profile.form.targets, workspace))
                except TargetNotFoundError as error:
                    crossed.append(CrossFinding(("target",), str(error)))
                except ProfileError as error:
                    problems += error.problems
            crossed += cross_check(form, spec, profile)
        problems += [problem_at(path, document, one.place, one.problem, nearest=one.nearest) for one in crossed]
    if problems or spec is None or profile is None:
        raise ProfileError(problems)
    return StudyFile(path, text, spec, profile)


def _profile(document: Document, path: Path, workspace: Workspace, cwd: Path) -> tuple[Profile | None, list[Problem]]:
    name = document.data.get("profile")
    if not isinstance(name, str) or not name:
        return None, []  # reported already
    is_path = "/" in name or name.endswith(SUFFIXES)
    try:
        return load(find_profile(name, workspace, path.resolve().parent if is_path else cwd)), []
    except ProfileNotFoundError as error:
        return None, [problem_at(path, document, ("profile",), str(error))]
    except ProfileError as error:
        return None, [problem_at(path, document, ("profile",), "the profile is not valid"), *error.problems]


def _spec(form: StudyForm, path: Path, profile: Profile) -> StudySpec:
    def number_of(given: Any) -> Any:
        """A length, or the value of the parameter that it names; None if that is no number."""
        if not isinstance(given, str):
            return given
        value = form.params.get(given, profile.parameters[given].default if given in profile.parameters else None)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    resolved: dict[str, Any] = {
        "name": form.name or path.stem,
        "profile": profile.name,
        "pruner": {**form.pruner.model_dump(), "length": number_of(form.pruner.length)},
        "gpus_per_trial": gpus_of(profile) if form.gpus_per_trial is None else form.gpus_per_trial,
    }
    if form.pbt is not None:
        fixed = (name for name in STEPS_NAMES if name in profile.parameters and name not in form.space)
        length = number_of(form.pbt.length or next(fixed, None))
        resolved["pbt"] = {**form.pbt.model_dump(), "length": length}
    return form.spec(**resolved)


def gpus_of(profile: Profile) -> int:
    """How many GPUs a profile asks for, 0 where that depends on the machine."""
    return profile.form.gpus.count or len(profile.form.gpus.devices)


def check_names(data: Mapping[str, Any], profile: Profile) -> Iterator[CrossFinding]:
    """Check the parameters that a study's file names against its profile. ``data`` may have any
    other mistake."""
    parameters = profile.parameters
    sections = {name: data[name] for name in ("space", "params") if isinstance(data.get(name), dict)}
    for section, given in sections.items():
        for name in given:
            if name not in parameters:
                what = unknown_parameter(str(name), parameters)
                yield CrossFinding((section, name), f"{what}; the profile is {profile.name}")
    space, params = sections.get("space", {}), sections.get("params", {})
    for name, value in params.items():
        if name in space:
            yield CrossFinding(("params", name), "is tuned, too; remove it here or from space")
        if name in parameters and not isinstance(value, (dict, list)) and (why := _unfit(parameters[name], value)):
            yield CrossFinding(("params", name), why)
    for name, problem in overlaps(space, profile):
        yield CrossFinding(("space", name), problem)


def overlaps(tuned: Collection[str], profile: Profile) -> Iterator[tuple[str, str]]:
    """Tuned parameters that something else changes while a trial runs, each with what to do."""
    changed = {name for phase in profile.form.phases for name in phase.params}
    for name in tuned:
        if name in changed:
            yield name, "the profile's phases change it; remove one of the two"
    yield from _in_recovery(tuned, profile)


def cross_check(form: StudyForm, spec: StudySpec, profile: Profile) -> Iterator[CrossFinding]:
    """Check the keys of a study against each other, and its space against its profile."""
    for place, dimension in enumerate(spec.space):
        if dimension.name in profile.parameters:
            yield from _check_dimension(dimension, profile.parameters[dimension.name])
        yield from _check_condition(dimension, spec.space[:place])
    yield from _check_sampler(form, spec, profile)
    yield from _check_pruner(form, spec, profile)
    if spec.target is not None:
        yield from _check_target(spec)
    elif form.budget.gpu_hours and profile.form.gpus.is_none and not form.gpus_per_trial:
        yield CrossFinding(("budget", "gpu_hours"), "its trials use no GPU; give trials or wall")
    if not spec.is_grid and spec.pbt is None and spec.budget == Budget() and spec.stop_after is None:
        what = f"a budget is needed (trials, gpu_hours or wall), or stop_after: {spec.sampler.kind} has no end"
        yield CrossFinding((), what)
    if spec.trials_per_gpu > 1 and spec.gpus_per_trial != 1:
        yield CrossFinding(("trials_per_gpu",), "only trials with one GPU share it; write gpus_per_trial: 1")
    named = [objective.metric for objective in spec.objectives]
    for number, metric in enumerate(named):
        if metric in named[:number]:
            yield CrossFinding(("objective", number, "metric"), f"{metric} is an objective already")


def _check_target(spec: StudySpec) -> Iterator[CrossFinding]:
    """Find what trials on a target cannot have."""
    if spec.parallel is None:
        yield CrossFinding(("target",), f"a target needs parallel: N (with --grid: --parallel N), {_TRIALS_ON_TARGET}")
    if spec.trials_per_gpu > 1:
        yield CrossFinding(("trials_per_gpu",), "a target chooses the GPUs of each trial; remove the line")
    if spec.budget.gpu_hours is not None:
        yield CrossFinding(("budget", "gpu_hours"), "not counted on a target; give trials or wall")
    if spec.pbt is not None:
        what = "members continue from each other's checkpoints, which are kept on this machine only"
        yield CrossFinding(("pbt",), what)


def _check_condition(dimension: Dimension, earlier: Sequence[Dimension]) -> Iterator[CrossFinding]:
    """Check that the values which a parameter depends on exist."""
    known = {other.name: other for other in earlier}
    for name, values in dimension.when.items():
        place = ("space", dimension.name, "when", name)
        if name not in known:
            yield CrossFinding(place, "no parameter above it in the space has this name", nearest(name, known))
        for value in values if name in known else ():
            if not known[name].holds(value):
                yield CrossFinding(place, f"{name} is never {value}")


def _check_dimension(dimension: Dimension, parameter: Parameter) -> Iterator[CrossFinding]:
    place = ("space", dimension.name)
    if dimension.kind == "choice":
        for number, value in enumerate(dimension.choices):
            if why := _unfit(parameter, value):
                yield CrossFinding((*place, "values", number), why)
        return
    if dimension.kind == "float" and parameter.kind == "int":
        yield CrossFinding((*place, "type"), "the parameter takes whole numbers; write type: int")
        return
    for key, bound in (("min", dimension.low), ("max", dimension.high)):
        if why := _unfit(parameter, int(bound or 0) if dimension.kind == "int" else bound):
            yield CrossFinding((*place, key), why)
    multiple = parameter.multiple_of
    if multiple is not None and ((dimension.step or 1) % multiple or (dimension.low or 0) % multiple):
        yield CrossFinding(place, f"its values must be multiples of {multiple}; give min and step so")


def _unfit(parameter: Parameter, value: Scalar) -> str:
    try:
        parameter.parse(value)
    except UnfitValueError as error:
        return error.what
    except ParameterError as error:
        return str(error)
    return ""


def _in_recovery(tuned: Collection[str], profile: Profile) -> Iterator[tuple[str, str]]:
    """Parameters that the profile's own ladders change cannot be tuned. The built-in policies do
    not change tuned values."""
    recovery = profile.form.recovery
    if not recovery.get("ladders"):
        return
    ladders = policy_from(recovery).ladders
    roles = profile.form.roles
    for kind in recovery["ladders"]:
        for rung in ladders.get(kind, ()):
            for action in rung:
                role = _ROLE_OF_ACTION.get(action.name)
                named = () if role is None else (roles[role],) if role in roles else ROLE_NAMES[role]
                for name in set(named) & set(tuned):
                    yield name, f"the profile's recovery changes it ({action.name} for {kind}); remove one of the two"


def _check_sampler(form: StudyForm, spec: StudySpec, profile: Profile) -> Iterator[CrossFinding]:
    kind, place = spec.sampler.kind, ("sampler",)
    numbers = [dimension for dimension in spec.space if dimension.kind != "choice"]
    if spec.pbt is not None:
        for key in ("sampler", "pruner", "stop_after"):
            if key in form.model_fields_set:
                yield CrossFinding((key,), "pbt has its own way; remove the line")
        for dimension in spec.space:
            if dimension.when:
                yield CrossFinding(("space", dimension.name, "when"), "members of a population have every parameter")
        if len(spec.objectives) > 1:
            yield CrossFinding(("objective",), "pbt compares members by one objective")
        of_length = list(_check_length(("pbt", "length"), spec.pbt.length, form.pbt and form.pbt.length, spec, profile))
        yield from of_length
        if not of_length and spec.pbt.length is not None and spec.pbt.length <= spec.pbt.every:
            what = f"nothing is ever compared: a full run has {spec.pbt.length:g} steps"
            yield CrossFinding(("pbt", "every"), what)
        if profile.form.checkpoints is None:
            yield CrossFinding(("pbt",), f"members continue from checkpoints, and {profile.name} names none")
        return
    if kind == "grid":
        for dimension in spec.space:
            if dimension.grid() is None:
                yield CrossFinding(("space", dimension.name), "a grid needs a step or a list of values")
        if len(spec.grid()) > MAX_POINTS:
            yield CrossFinding(place, f"the grid has more than {MAX_POINTS} points")
    if kind == "cmaes" and len(numbers) < 2:
        yield CrossFinding(place, "cmaes needs two parameters that are numbers")
    if kind == "nsga2" and len(spec.objectives) < 2:
        yield CrossFinding(place, "nsga2 is for several objectives; tpe learns from one")
    if kind == "cmaes" and len(spec.objectives) > 1:
        yield CrossFinding(place, f"{kind} has one objective; tpe and nsga2 take several")


def _check_pruner(form: StudyForm, spec: StudySpec, profile: Profile) -> Iterator[CrossFinding]:
    pruner = spec.pruner
    if pruner.kind == "none":
        return
    if len(spec.objectives) > 1:
        yield CrossFinding(("pruner",), "trials with several objectives cannot be pruned; write pruner: none")
    yield from _check_length(("pruner", "length"), pruner.length, form.pruner.length, spec, profile)


def _check_length(
    place: tuple[str, str], length: float | None, given: object, spec: StudySpec, profile: Profile
) -> Iterator[CrossFinding]:
    """Check the parameter ``given`` that names the length of a full run."""
    if not isinstance(given, str):
        return
    if given not in profile.parameters:
        meant = nearest(given, profile.parameters)
        yield CrossFinding(place, f"{given} is not a parameter of {profile.name}", meant)
    elif given in spec.tuned:
        yield CrossFinding(place, f"{given} is tuned, so that trials have no common length")
    elif not length or length <= 0:
        yield CrossFinding(place, f"{given} is no number greater than 0 in {profile.name}")


def grid_source(profile: Profile, values: Mapping[str, Sequence[str]], settings: Mapping[str, Any]) -> str:
    """The text of a study's file: a grid over typed values of a profile's parameters. ``settings``
    are other keys; those that are None are left out. Raises ParameterError with every value that a
    parameter cannot have."""
    space: dict[str, list[Scalar]] = {}
    problems: list[str] = []
    for name, texts in values.items():
        parameter = profile.parameters.get(name)
        if parameter is None:
            problems.append(f"{name}: {unknown_parameter(name, profile.parameters)}")
            continue
        parsed: list[Scalar] = []
        for text in texts:
            try:
                parsed.append(parameter.parse(text))
            except ParameterError as error:
                problems += error.problems
        space[name] = list(dict.fromkeys(parsed))
    if problems:
        raise ParameterError(problems)
    data = {
        "name": f"{profile.name}-grid",
        "profile": str(profile.path.resolve()),
        "space": space,
        "sampler": "grid",
        **{key: value for key, value in settings.items() if value is not None},
    }
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None)
