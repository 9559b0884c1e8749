"""Runners of targets without a shared file system: they send the code as of the launch, and fetch
the attempt's files by byte offset.

The target reports how much its files grew (`remote.report`); the copies here only grow. Read first:
`apply`.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputui.runs.executors import remote
from gputui.runs.executors.commands import TargetRefusalError
from gputui.runs.executors.remote_runner import RemoteRunner, python_of, text_of
from gputui.runs.shim_records import read_record
from gputui.runs.submission import write_private

GIT_SECONDS = 60.0  # a large repository on a disk of the network
RUN_FOLDER = re.compile(r"/.+/[0-9a-f]{8}/[A-Za-z0-9][^/]*")
"""The only folders that are ever removed on a target: those of ``wanted_root``."""
RECORDS = ("started.json", "exit.json", "claim", remote.RESUMED)


class MirrorRunner(RemoteRunner):
    """A runner that copies the target's files.

    A file's offset on the target is the length of its copy, less the length that the copy had when the file was last
    truncated there.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run_dir = folder.parents[1]
        self.shifts: dict[str, Any] = read_record(self.folder / "shifts.json") or {}

    @property
    def wanted_root(self) -> str:
        """The run's folder there, below the home directory unless absolute. A tag tells runs of one
        name in several homes apart."""
        tag = hashlib.sha256(str(self.run_dir).encode()).hexdigest()[:8]
        return f"{self.target.get('folder') or 'gputui-runs'}/{tag}/{self.run_dir.name}"

    @property
    def workdir(self) -> Path | None:
        """The working directory, whose code is sent; None if it is inside the run's folder."""
        workdir = Path(self.plan["cwd"])
        if workdir.is_relative_to(self.run_dir):
            return None
        return workdir

    def code_files(self, workdir: Path) -> list[str]:
        """The files of the working directory to send: those of git, and the target's ``files``.
        Raises TargetRefusalError."""
        names = sent_files(workdir)
        if names is None:
            raise TargetRefusalError(f"{workdir} is no git checkout, so that what to copy is not known")
        for name in self.target.get("files", ()):
            path = workdir / name
            if not path.exists():
                raise TargetRefusalError(f"files: {path} does not exist")
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            names += [str(file.relative_to(workdir)) for file in files]
        return sorted(set(names))

    def plan_there(self, run_dir: str, code: str) -> dict[str, Any]:
        """attempt.json with the target's paths."""
        paths = {str(self.run_dir): run_dir}
        if self.workdir is not None:
            paths[str(self.workdir)] = code
        return {**with_remote_paths(self.plan, paths, python_of(self.plan)), "mirrored": self.metrics_globs()}

    def known(self) -> dict[str, int]:
        """The number of bytes copied of each file as it is on the target now."""
        metrics = (path for glob in self.metrics_globs() for path in self.run_dir.glob(glob) if path.is_file())
        paths = (*self.folder.rglob("*.log"), *self.remote.glob("*.jsonl"), *metrics)
        names = (str(path.relative_to(self.run_dir)) for path in paths)
        return {name: self.known_of(name) for name in names}

    def known_of(self, name: str) -> int:
        return _size_bytes(self.run_dir / name) - int(self.shifts.get(name, {}).get("base", 0))

    def apply(self, grown: Mapping[str, Mapping[str, Any]], whole: Mapping[str, str]) -> None:
        """Append the data of one report that is not copied yet.

        A file that was truncated on the target is copied from its new beginning.

        Args:
            grown: the new data of each growing file; ``cut`` counts how often it was truncated.
            whole: the small records of the attempt.
        """
        for name, part in grown.items():
            path = self.run_dir / name
            if not path.resolve().is_relative_to(self.run_dir.resolve()):
                continue
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            cut = int(part["cut"])
            before = int(self.shifts.get(name, {}).get("cut", 0))
            if cut > before:
                self.shifts[name] = {"cut": cut, "base": _size_bytes(path)}
                write_private(self.folder / "shifts.json", self.shifts)
            offset = int(part["at"])
            copied = self.known_of(name)
            data = base64.b64decode(part["data"])
            if cut >= before and offset <= copied < offset + len(data):
                with path.open("ab") as file:
                    file.write(data[copied - offset :])
        for name in RECORDS:
            text = whole.get(name)
            if text is not None and text_of(self.remote / name) != text:
                temporary = self.remote / f"{name}.new"
                temporary.write_text(text, "utf-8")
                temporary.replace(self.remote / name)

    def metrics_globs(self) -> list[str]:
        """The globs of metrics files below the run's folder, relative to it."""
        paths = [Path(path) for path in self.plan["metrics"]]
        return [str(path.relative_to(self.run_dir)) for path in paths if path.is_relative_to(self.run_dir)]


def sent_files(workdir: Path) -> list[str] | None:
    """The tracked files of a folder and the untracked ones that git does not ignore; None if it is in no checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(workdir), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True, text=True, errors="surrogateescape", timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return [name for name in done.stdout.split("\0") if name and (workdir / name).is_file()]


def _size_bytes(path: Path) -> int:
    """The size of a file, 0 if there is none."""
    if path.exists():
        return path.stat().st_size
    return 0


def with_remote_paths(plan: Mapping[str, Any], paths: Mapping[str, str], python: str | None = None) -> dict[str, Any]:
    """Replace local paths in a plan by the target's, wherever a path may begin in a word.

    The interpreter ``python`` stays: its environment is not sent.
    """
    longest = sorted(paths, key=len, reverse=True)

    def word(text: str) -> str:
        if text == python:
            return text
        for old in longest:
            text = re.sub(rf"(?<![^=:,]){re.escape(old)}(?=[/:,]|$)", paths[old].replace("\\", r"\\"), text)
        return text

    fields = ("argv", "env", "cwd", "resume", "resume_from")
    return {**plan, **{name: remote.with_texts(plan[name], word) for name in fields if name in plan}}
