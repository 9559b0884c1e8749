"""Read profiles, reporting every mistake at once, and find them by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from pydantic import ValidationError

from gputui.core.config import Workspace, shipped_profiles
from gputui.core.errors import ExplainedError
from gputui.core.text import clean
from gputui.core.yaml_forms.document import KeyPath
from gputui.core.yaml_forms.file import given_twice, parse_file, problem_at, read_text, whole_file
from gputui.core.yaml_forms.forms import findings
from gputui.core.yaml_forms.problems import ProfileError, did_you_mean, nearest_file, shown_path
from gputui.profiles.crosscheck import cross_check
from gputui.profiles.params import Parameter
from gputui.profiles.schema import ProfileForm, is_literal, metrics_place
from gputui.profiles.targets import target_findings
from gputui.runs.launchers import FOR_COMMAND

SUFFIXES = (".yaml", ".yml")

Source = Literal["here", "home", "shipped", "file", "typed"]
"""``file``: named by its path alone; ``typed``: a command, whose path is the folder where it was typed."""


class ProfileNotFoundError(ExplainedError, LookupError):
    """No profile has this name. One line: the searched folders and the nearest name."""


class Profile(Struct, frozen=True):
    """A valid profile.

    Attributes:
        path: The file as it was named, None for the profile of a typed command.
        folder: Holds the real file, behind symbolic links, or is where the command was typed: relative paths start
            there.
        typed: The command, empty for a file.
        spellings: How a typed command spells its options, by parameter.
    """

    name: str
    path: Path | None
    folder: Path
    form: ProfileForm
    parameters: Mapping[str, Parameter] = msgspec.field(default_factory=dict)
    typed: tuple[str, ...] = ()
    spellings: Mapping[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of_form(
        cls, form: ProfileForm, name: str, path: Path | None, folder: Path, typed: Sequence[str] = ()
    ) -> Profile:
        """The profile of a valid form."""
        parameters = {key: parameter.parameter(key) for key, parameter in form.params.items()}
        return cls(name, path, folder, form, parameters=parameters, typed=tuple(typed))

    @property
    def description(self) -> str:
        return self.form.description or ""


class ProfileEntry(Struct, frozen=True):
    """A profile in a list: its name, and either the profile or its mistakes."""

    name: str
    path: Path
    source: Source
    profile: Profile | None
    error: ProfileError | None


def load(path: Path) -> Profile:
    """Read a profile. Raises ProfileError with every problem, each with its line."""
    return read_profile(read_text(path), path)


def read_profile(text: str, path: Path) -> Profile:
    """Parse the text of a profile from ``path``. Raises ProfileError."""
    document = parse_file(text, path, is_literal)
    data = document.data
    if data is None:
        raise whole_file(path, "is empty; a profile names at least a script, module or command")
    if not isinstance(data, dict):
        kind = "list" if isinstance(data, list) else "single value"
        raise ProfileError(
            [problem_at(path, document, (), problem=f"a profile is a mapping (key: value), this is a {kind}")]
        )
    conflicts = list(cross_check(data))
    empty = list(_drop_empty(data))
    mistakes: list[tuple[KeyPath, dict[str, Any]]] = [
        *((place, {"problem": "has no value; give one or remove the line"}) for place in empty),
        *((conflict.place, {"problem": conflict.problem, "nearest": conflict.nearest}) for conflict in conflicts),
        *target_findings(data.get("targets", {}), ("targets",)),
    ]
    form = None
    try:
        form = ProfileForm.model_validate(_with_launcher(data))
    except ValidationError as error:
        place_in_file = partial(metrics_place, data.get("metrics"))
        mistakes += findings(error, ProfileForm, empty=empty, place_in_file=place_in_file)
    problems = given_twice(path, document) + [problem_at(path, document, place, **what) for place, what in mistakes]
    if problems or form is None:
        raise ProfileError(problems)
    return Profile.of_form(form, form.name or _run_name(path), path, path.resolve().parent)


def valid_part(path: Path, error: ProfileError) -> Profile | None:
    """The profile without the keys that ``error`` names; None if the rest is none. A wrong parameter keeps its name."""
    try:
        data = parse_file(read_text(path), path, is_literal).data
    except ProfileError:
        return None
    if not isinstance(data, dict):
        return None
    wrong = [problem.key.split(".") for problem in error.problems]
    rest = {key: value for key, value in data.items() if [key] not in [place[:1] for place in wrong]}
    params = data.get("params")
    if isinstance(params, dict) and ["params"] not in wrong:
        rest["params"] = {**params, **{place[1]: None for place in wrong if place[0] == "params"}}
    try:
        form = ProfileForm.model_validate(_with_launcher(rest))
    except ValidationError:
        return None
    return Profile.of_form(form, form.name or _run_name(path), path, path.resolve().parent)


def _with_launcher(data: dict[str, Any]) -> dict[str, Any]:
    """The keys of a profile with the launcher of a command, if that is all that it starts."""
    if "command" in data and not {"launcher", "script", "module"} & data.keys():
        return {**data, "launcher": FOR_COMMAND.name}
    return data


def find(name_or_path: str, workspace: Workspace, cwd: Path) -> Path:
    """The file of a profile, given by path or by name. A name is looked up in ``./profiles``, in the home's profiles
    and in the shipped ones: first as a file's name, then as a profile's ``name``; last among the files beside.

    Raises ProfileNotFoundError.
    """
    if "/" in name_or_path or name_or_path.endswith(SUFFIXES):
        return _by_path(name_or_path, cwd)
    folders = _folders(workspace, cwd)
    for folder, _ in folders:
        for suffix in SUFFIXES:
            path = folder / f"{name_or_path}{suffix}"
            if name_or_path and os.path.lexists(path):
                return path
    entries = list_profiles(workspace, cwd)
    for entry in entries:
        if entry.profile is not None and entry.profile.name == name_or_path:
            return entry.path
    for suffix in SUFFIXES:
        path = cwd / f"{name_or_path}{suffix}"
        if name_or_path and os.path.lexists(path):
            return path
    looked = ", ".join(shown_path(folder) for folder, _ in folders)
    names = {entry.name for entry in entries} | {entry.profile.name for entry in entries if entry.profile is not None}
    hint = did_you_mean(name_or_path, sorted(names)) or "list them with gputui profile list"
    raise ProfileNotFoundError(f"no profile {name_or_path!r} in {looked}; {hint}")


def list_profiles(workspace: Workspace, cwd: Path) -> list[ProfileEntry]:
    """Every profile that can be named, also broken ones; the first of each file name wins."""
    entries: dict[str, ProfileEntry] = {}
    for folder, source in _folders(workspace, cwd):
        for path in _files(folder):
            if path.stem not in entries:
                entries[path.stem] = read_entry(path.stem, path, source)
    return list(entries.values())


def profiles_in(folder: Path) -> list[ProfileEntry]:
    """The profiles among the YAML files of a folder, also broken ones that still name what they start."""
    entries = []
    for path in _files(folder):
        entry = read_entry(path.stem, path, "file")
        profile = entry.profile
        if entry.error is not None:
            profile = valid_part(path, entry.error)
        if profile is not None and (profile.form.script or profile.form.module or profile.form.command):
            entries.append(entry)
    return entries


def read_entry(name: str, path: Path, source: Source) -> ProfileEntry:
    """Read a profile for a list, which has broken ones too."""
    try:
        return ProfileEntry(name, path, source, load(path), error=None)
    except ProfileError as error:
        return ProfileEntry(name, path, source, profile=None, error=error)


def _folders(workspace: Workspace, cwd: Path) -> list[tuple[Path, Source]]:
    """The folders in which names are looked up, without repetitions."""
    candidates: list[tuple[Path, Source]] = [
        (cwd / "profiles", "here"), (workspace.profiles, "home"), (shipped_profiles(), "shipped")
    ]  # fmt: skip
    folders: dict[Path, tuple[Path, Source]] = {}
    for folder, source in candidates:
        folders.setdefault(folder.resolve(), (folder, source))
    return list(folders.values())


def _by_path(text: str, cwd: Path) -> Path:
    path = cwd / os.path.expanduser(text)  # noqa: PTH111 - leaves an unknown user's home as it is
    if os.path.lexists(path):  # a broken link too: `load` reports what is wrong
        return path
    meant = nearest_file(path.name, [entry.name for entry in _files(path.parent)])
    hint = f"; did you mean {shown_path(path.with_name(meant))}?" if meant else ""
    raise ProfileNotFoundError(clean(f"{text}: no such file{hint}"))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError:
        return []


def _run_name(path: Path) -> str:
    """The file's name without the characters that a run's name may not have."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem)
    return name.lstrip("_.-")[:64] or "profile"


def _drop_empty(data: dict[str, Any]) -> Iterator[KeyPath]:
    """Remove keys without a value, which would otherwise get their defaults, and yield them.
    Parameters may be empty."""
    for key in list(data):
        if data[key] is None:
            del data[key]
            yield (key,)
        elif key in ("requires", "metrics", "checkpoints", "roles"):
            for place, section in _sections(key, data[key]):
                for inner in [name for name, value in section.items() if value is None]:
                    del section[inner]
                    yield (*place, inner)


def _sections(key: str, content: Any) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """The mapping of a key, and those in the list of sources of ``metrics``, with their places."""
    place: KeyPath = (key,)
    if isinstance(content, dict):
        yield place, content
        place = (key, "sources")
        content = content.get("sources")
    if isinstance(content, list):
        for position, source in enumerate(content):
            if isinstance(source, dict):
                yield (*place, position), source
