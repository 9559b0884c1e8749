"""The bundle for a bug report: versions, checks, the end of the agent's log, settings and the last
incidents, without secrets. It contains no metrics and no output of runs."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.core.redaction import Redactor, redact_named, secrets_in
from gputui.core.secret_patterns import REDACTED, is_secret_parameter, is_secret_variable
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.notify_form import read_recipients
from gputui.runs.checks import CheckResult
from gputui.runs.logs import tail_text
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.database import StoreError, open_reader
from gputui.store.run_history import read_incidents
from gputui.version import VERSION

LOG_TAIL_BYTES = 256 * 2**10
INCIDENTS = 30  # the newest, with their reports some megabytes
_SPECS = 200  # of the newest runs, a few kilobytes each
_PACKAGES = ("textual", "rich", "click", "psutil", "pydantic", "pyyaml", "nvidia-ml-py", "plotext", "watchdog")
_SHOWN_ENVIRONMENT = (
    "GPUTUI_", "CUDA_", "NCCL_", "TORCH", "NVIDIA_", "OMP_", "TERM", "COLORTERM", "LANG", "LC_", "SSH_TTY", "TMUX",
)  # fmt: skip

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s\"']+", re.IGNORECASE)
_ADDRESS_NAMES = ("webhook", "url")


def write_bundle(
    path: Path, workspace: Workspace, results: Sequence[CheckResult], environ: Mapping[str, str], now: float
) -> tuple[list[str], dict[str, str]]:
    """Write the bundle, readable only by its owner.

    Returns:
        The names of its files, and why others were left out, by name.

    Raises:
        FileExistsError: The file exists.
        OSError: It cannot be written.
    """
    scrubber = Scrubber(known_secrets(workspace, environ), str(Path.home()))
    members, left_out = _members(workspace, results, environ, scrubber)
    if left_out:
        members["left_out.json"] = _dump(left_out, scrubber)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in members.items():
                data = text.encode("utf-8", "replace")
                member = tarfile.TarInfo(f"gputui-bundle/{name}")
                member.size = len(data)
                member.mtime = int(now)
                member.mode = PRIVATE_FILE_MODE
                archive.addfile(member, io.BytesIO(data))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return list(members), left_out


def known_secrets(workspace: Workspace, environ: Mapping[str, str]) -> set[str]:
    """Secret values of the environment and of the newest runs, whose files hold them as text."""
    secrets = secrets_in(environ, {})
    specs = sorted(workspace.runs.glob(f"*/{SPEC_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in specs[:_SPECS]:
        try:
            secrets |= secrets_of(read_spec(path))
        except SpecError:
            continue
    return secrets


def _members(
    workspace: Workspace, results: Sequence[CheckResult], environ: Mapping[str, str], scrubber: Scrubber
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the bundle, and why others are left out, by name."""
    environment = {name: value for name, value in environ.items() if name.startswith(_SHOWN_ENVIRONMENT)}
    texts = {
        "versions.json": _dump(_versions(workspace), scrubber),
        "doctor.json": _dump([result.to_json() for result in results], scrubber),
        "environment.json": _dump(dict(sorted(environment.items())), scrubber),
        "incidents.json": _dump(_incidents(workspace), scrubber),
    }
    left_out = {}
    settings = (workspace.settings, workspace.alerts, workspace.record, workspace.gpus)
    readers: dict[str, Callable[[], str]] = {
        **{f"{path.stem}.json": partial(_settings, path, scrubber) for path in settings},
        "notify.json": lambda: _dump(_recipients(workspace.notify), scrubber),
        "agent.log": lambda: scrubber.text(tail_text(workspace.agent_log, LOG_TAIL_BYTES)),
    }
    for name, read in readers.items():
        try:
            texts[name] = read()
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out[name] = error.strerror or str(error)
        except (ValueError, yaml.YAMLError, ProfileError):
            left_out[name] = "not valid"
    return texts, left_out


def _dump(value: Any, scrubber: Scrubber) -> str:
    return json.dumps(scrubber.value(value), indent=1, ensure_ascii=False, default=str) + "\n"


def _versions(workspace: Workspace) -> dict[str, Any]:
    versions: dict[str, Any] = {
        "gputui": VERSION,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "sqlite": sqlite3.sqlite_version,
        "schema": None,
        "packages": {},
    }
    for name in _PACKAGES:
        try:
            versions["packages"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions["packages"][name] = None
    try:
        with closing(open_reader(workspace.database)) as connection:
            versions["schema"] = int(connection.execute("PRAGMA user_version").fetchone()[0])
    except (StoreError, sqlite3.Error) as error:
        versions["schema_problem"] = str(error)
    return versions


def _incidents(workspace: Workspace) -> Any:
    try:
        with closing(open_reader(workspace.database)) as connection:
            return [
                msgspec.to_builtins(incident) | {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(incident.at))}
                for incident in read_incidents(connection, limit=INCIDENTS)
            ]
    except (StoreError, sqlite3.Error) as error:
        return str(error)


def _recipients(path: Path) -> list[dict[str, Any]]:
    """Who is told of what, without addresses and commands."""
    recipients = read_recipients(path.read_text("utf-8"), path)
    return [{"to": entry.label, "events": entry.events, "min_severity": entry.min_severity} for entry in recipients]


def _settings(path: Path, scrubber: Scrubber) -> str:
    """A small YAML or JSON file."""
    return _dump(yaml.safe_load(path.read_text("utf-8")), scrubber)


class Scrubber(Redactor):
    """Removes secrets from the texts of a bundle. ``secrets`` are values that must not appear;
    ``home`` is shown as ~.

    It is stricter than `gputui.core.redaction`: a name that would be a secret in an environment is
    one in every text, and addresses of webhooks are removed. Hiding too much does no harm here.
    """

    def __init__(self, secrets: Iterable[str] = (), home: str | None = None) -> None:
        super().__init__(secrets)
        self._home = home if home and home != "/" else None

    def text(self, text: str) -> str:
        """A text, such as a log."""
        text = redact_named(super().text(text), lambda name, value, _: is_secret(name, value))
        if self._home:
            return text.replace(self._home, "~")
        return text

    def named(self, name: str, value: Any) -> Any:
        """A JSON value with its name."""
        if isinstance(value, str | int) and is_secret(name, str(value)) and value != REDACTED:
            return REDACTED
        scrubbed = self.value(value)
        is_address = isinstance(scrubbed, str) and any(word in name.lower() for word in _ADDRESS_NAMES)
        if is_address:
            return _URL.sub(rf"\g<scheme>{REDACTED}", scrubbed)
        return scrubbed

    def value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): self.named(str(name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            if all(isinstance(item, str) for item in value):
                value = self.argv(value)
            return [self.value(item) for item in value]
        return super().value(value)


def is_secret(name: str, value: str) -> bool:
    """Return whether the name of an environment variable or parameter indicates a secret."""
    plain = name.replace("-", "_")
    return bool(value) and (is_secret_variable(plain, value) or is_secret_parameter(plain))
