"""``alerts.yaml``, ``notify.yaml``, ``record.yaml`` and ``gpus.yaml`` of a home: overrides of alert
rules, the recipients of messages, the retention of samples, and the GPUs for its runs.

Most homes have none of them, and the agent then does not import pydantic.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from gputui.core.config import Workspace, file_identity
from gputui.core.yaml_forms.problems import ProfileError
from gputui.recovery.watch.overrides import Overrides, overrides_from
from gputui.runs.notices import Recipient
from gputui.store.agent import Retention

T = TypeVar("T")


class FileVersion(NamedTuple, Generic[T]):
    """One version of a file: its content, or what is wrong with it."""

    content: T | ProfileError
    identity: tuple[int, int, int] | None


class SettingsFile(Generic[T]):
    """A settings file that the agent reads again when it changes."""

    def __init__(self, path: Path, load: Callable[[Path], T]) -> None:
        self.path = path
        self._load = load
        self._followed: FileVersion[T] | None = None

    def newer(self) -> FileVersion[T] | None:
        """Read the file, unless the version that is followed is the newest."""
        identity = file_identity(self.path)
        if self._followed is not None and identity == self._followed.identity:
            return None
        try:
            return FileVersion(self._load(self.path), identity)
        except ProfileError as error:
            return FileVersion(error, identity)

    def follow(self, version: FileVersion[T]) -> None:
        """Take note that a version is followed, valid or not; until then `newer` returns it again."""
        self._followed = version


def mistakes(workspace: Workspace, *, is_anothers: bool = False) -> list[str]:
    """The first mistake in each settings file of a home, with its place. Another user may keep some private."""
    from gputui.profiles.targets import load_targets

    loaders: dict[Path, Callable[[Path], object]] = {
        workspace.alerts: load_alerts,
        workspace.notify: load_recipients,
        workspace.gpus: load_used_gpus,
        workspace.record: load_retention,
        workspace.targets: load_targets,
    }
    problems = []
    for path, load in loaders.items():
        if is_anothers and path.exists() and not os.access(path, os.R_OK):
            continue
        try:
            load(path)
        except ProfileError as error:
            problems.append(str(error.problems[0]))
    return problems


def load_retention(path: Path) -> Retention:
    """The retention that the file sets; the default without a file. Raises ProfileError with every
    problem and its line."""
    if not path.exists():
        return Retention()
    from gputui.core.yaml_forms.file import read_text
    from gputui.profiles.record_form import read_retention

    return read_retention(read_text(path, "file of settings for the record"), path)


def load_recipients(path: Path) -> tuple[Recipient, ...]:
    """The recipients in the file; none without a file. Raises ProfileError with all problems."""
    if not path.exists():
        return ()
    from gputui.core.yaml_forms.file import read_text
    from gputui.profiles.notify_form import read_recipients

    return read_recipients(read_text(path, "file of recipients"), path)


def load_group(path: Path) -> int | None:
    """The group that may read the home; None without one. Raises ProfileError."""
    if not path.exists():
        return None
    from gputui.core.yaml_forms.file import read_text
    from gputui.profiles.record_form import parse_record_form

    return parse_record_form(read_text(path, "file of settings for the record"), path).group


def load_used_gpus(path: Path) -> frozenset[int | str] | None:
    """The indices and UUIDs of the GPUs that the file gives to runs; None without a file: all.
    Raises ProfileError with every problem and its line."""
    if not path.exists():
        return None
    from gputui.core.yaml_forms.file import parse_file, read_text
    from gputui.core.yaml_forms.forms import validated
    from gputui.profiles.devices import GpusForm

    return validated(parse_file(read_text(path, "file of GPUs"), path), path, GpusForm).use


def load_alerts(path: Path) -> Overrides:
    """The overrides in the file; none without a file. Raises ProfileError with all problems."""
    if not path.exists():
        return Overrides()
    from gputui.core.yaml_forms.file import read_text

    return read_alerts(read_text(path, "file of alert rules"), path)


def read_alerts(text: str, path: Path) -> Overrides:
    """The overrides in a file's text. Raises ProfileError."""
    from gputui.core.yaml_forms.file import parse_file
    from gputui.core.yaml_forms.forms import validated
    from gputui.profiles.alerts_form import OF_MACHINE, AlertsForm

    document = parse_file(text, path)
    validated(document, path, AlertsForm, OF_MACHINE)
    return overrides_from(document.data or {})
