"""Couriers of what is reached by SSH alone: files are sent once and asked for as they grow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from gputui.runs.executors import far
from gputui.runs.executors.courier import PYTHON, UNUSABLE, TargetRefusalError, UnreachableError, python_of
from gputui.runs.executors.mirror import RUN_FOLDER, MirrorCourier
from gputui.runs.executors.ssh.connection import SshShell
from gputui.runs.submission import write_private

CODE_SENT = "code.json"
MAKE = (
    'umask 077; mkdir -p "$1/attempts/$2/far" "$1/attempts/$2/nodes/0" "$1/checkpoints" "$1/code" && cd "$1" && pwd -P'
)


def remove_there(folder: Path, target: Mapping[str, Any]) -> None:
    """Remove a run's folder there, which the records of its attempts in ``folder`` name. Raises OSError."""
    roots = {str(record["path"]) for path in folder.glob("attempts/*/root.json") if (record := far.read_record(path))}
    for root in roots:
        if not RUN_FOLDER.fullmatch(root):
            continue
        try:
            done = SshShell(target).call(["rm", "-rf", "--", root], seconds=600.0)
        except UnreachableError as error:
            raise OSError(str(error)) from error
        if done.code != 0:
            raise OSError(done.words)


class SshMirror(MirrorCourier):
    """The run has a folder there, which is the same for all its attempts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shell = SshShell(self.target)
        self.answer: dict[str, Any] | None = None

    @property
    def root(self) -> str:
        """The run's folder there, once it was made."""
        return str((far.read_record(self.folder / "root.json") or {})["path"])

    @property
    def far_folder(self) -> str:
        return f"{self.root}/attempts/{self.plan['attempt']}/far"

    # --- what is sent -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        wanted = self.wanted_root
        made = self.shell.call(["bash", "-c", MAKE, "bash", wanted, str(self.plan["attempt"])])
        root = made.output.strip()
        if made.code != 0 or not root.startswith("/"):
            raise TargetRefusalError(f"no folder {wanted} on {self.target['name']}: {made.words}")
        write_private(self.folder / "root.json", {"path": root})
        python = python_of(self.plan)
        tried = self.shell.call([python, "-c", PYTHON])
        if tried.code in UNUSABLE:
            raise TargetRefusalError(
                f"python: {python} cannot run {far.PROGRAM} on {self.target['name']}: {tried.words}"
            )
        self.send_code(f"{root}/code")
        super().send()
        self.sent(self.shell.send(self.far, None, self.far_folder))

    def plan_to_send(self) -> dict[str, Any]:
        return self.plan_there(self.root, f"{self.root}/code")

    def send_code(self, there: str) -> None:
        """Copy the working directory as it is now, unless the attempt runs the code of an earlier one. What was copied
        before and is gone here is removed there."""
        sent = far.read_record(self.run_dir / CODE_SENT)
        for workdir in self.code_paths(there):
            if self.keeps_code and sent is not None and sent.get("is_whole", True):
                continue
            names = self.code_files(Path(workdir))
            before = set() if sent is None else set(sent.get("names", ()))
            # Until all of it is there, it is copied again, and what is there may be of both.
            record = {"path": there, "names": sorted({*names, *before}), "is_whole": False}
            write_private(self.run_dir / CODE_SENT, record)
            folders = {str(parent) for name in names for parent in PurePath(name).parents}
            if gone := sorted(before - {*names, *folders}):
                remove = ["bash", "-c", 'cd -- "$1" && xargs -0 rm -f --', "bash", there]
                self.sent(self.shell.call(remove, "\0".join(gone)))
            self.sent(self.shell.send(Path(workdir), "\0".join(names), there))
            write_private(self.run_dir / CODE_SENT, {"path": there, "names": names, "is_whole": True})

    def sent(self, done: Any) -> None:
        if done.code != 0:
            raise TargetRefusalError(f"not copied to {self.target['name']}: {done.words}")

    def far_program(self, verb: str, *words: str) -> list[str]:
        folder = self.far_folder
        return [python_of(self.plan), "-I", "-S", f"{folder}/{far.PROGRAM}", verb, folder, *words]

    def mark_over(self) -> None:
        self.shell.call(["touch", "--", f"{self.far_folder}/{far.OVER}"])

    # --- what comes back ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """How the attempt is, and what its files grew by. Raises UnreachableError."""
        cuts = {name: shift["cut"] for name, shift in self.shifts.items()}
        request = json.dumps({"known": self.known(), "cuts": cuts, "metrics": self.metrics_globs()})
        done = self.shell.call(self.far_program("report"), request, seconds=60.0)
        try:
            self.answer = json.loads(done.output)
        except ValueError:
            why = f"its answer is not JSON ({len(done.output)} characters)" if done.code == 0 else done.words
            raise UnreachableError(f"no report from there: {why}") from None
        assert self.answer is not None
        self.apply(self.answer["grown"], self.answer["whole"])

    def unwritable(self) -> str | None:
        return None if self.answer is None else self.answer.get("unwritable")

    def drain(self) -> None:
        while self.answer is None or self.answer["grown"]:
            self.ask()
