"""The program of one attempt on another machine: ssh_runner.py FOLDER. Files are sent once and
asked for as they grow."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from gputui.runs.executors import remote
from gputui.runs.executors.commands import CommandResult, TargetRefusalError, UnreachableError
from gputui.runs.executors.job_status import JobStatus
from gputui.runs.executors.mirror import RUN_FOLDER, MirrorRunner
from gputui.runs.executors.remote_runner import python_of, serve
from gputui.runs.executors.ssh.connection import PYTHON, UNUSABLE, SshShell, script
from gputui.runs.shim_records import read_record
from gputui.runs.submission import write_private

CODE_SENT = "code.json"
# The folder is relative to the home directory, which a login may have left.
MAKE = (
    'umask 077; cd && mkdir -p "$1/attempts/$2/remote" "$1/attempts/$2/nodes/0" "$1/checkpoints" "$1/code" && '
    'cd "$1" && pwd -P'
)

# In a list of commands a shell would stay behind the job, and the connection with it.
START = (
    'umask 077; cd "$1" || exit; '
    'setsid nohup flock -n start.lock bash "$1/job.sh" >> job.log 2>&1 < /dev/null & sleep 0.2'
)


def remove_run_folder(folder: Path, target: Mapping[str, Any]) -> None:
    """Remove a run's folder there, which the records of its attempts in ``folder`` name. Raises
    OSError."""
    roots = {str(record["path"]): path for path in folder.glob("attempts/*/root.json") if (record := read_record(path))}
    for root, path in roots.items():
        if not RUN_FOLDER.fullmatch(root):
            continue
        shell = SshShell(target)
        shell.environment = (read_record(path.with_name("attempt.json")) or {}).get("client_environment")
        try:
            done = shell.call(["rm", "-rf", "--", root], seconds=600.0)
        except UnreachableError as error:
            raise OSError(str(error)) from error
        if done.code != 0:
            raise OSError(done.words)


class SshMirror(MirrorRunner):
    """The run has a folder there, which is the same for all its attempts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shell = SshShell(self.target)
        self.answer: dict[str, Any] | None = None

    @property
    def root(self) -> str:
        """The run's folder there, once it was made."""
        return str((read_record(self.folder / "root.json") or {})["path"])

    @property
    def remote_folder(self) -> str:
        return f"{self.root}/attempts/{self.plan['attempt']}/remote"

    # --- what is sent -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        wanted_root = self.wanted_root
        answer = self.shell.call(script(MAKE, wanted_root, str(self.plan["attempt"])))
        if answer.code != 0:
            raise TargetRefusalError(f"no folder {wanted_root} on {self.target['name']}: {answer.words}")
        root = answer.output.rstrip("\n").rpartition("\n")[2]
        write_private(self.folder / "root.json", {"path": root})
        python = python_of(self.plan)
        tried = self.shell.call([python, "-c", PYTHON])
        if tried.code in UNUSABLE:
            raise TargetRefusalError(
                f"python: {python} cannot run {remote.PROGRAM} on {self.target['name']}: {tried.words}"
            )
        self.send_code(f"{root}/code")
        super().send()
        self.check_copied(self.shell.send(self.remote, files=None, destination=self.remote_folder))

    def plan_to_send(self) -> dict[str, Any]:
        return self.plan_there(self.root, f"{self.root}/code")

    def send_code(self, remote_code: str) -> None:
        """Copy the working directory as it is now, unless the attempt runs the code of an earlier
        one. What was copied before and is gone here is removed there."""
        workdir = self.workdir
        sent = read_record(self.run_dir / CODE_SENT)
        # In recovery it runs the code of the attempt before.
        is_kept = self.plan.get("keeps_code") and sent is not None and sent.get("is_whole", True)
        if workdir is None or is_kept:
            return
        names = self.code_files(workdir)
        before = set() if sent is None else set(sent.get("names", ()))
        # Until all of it is there, it is copied again, and what is there may be of both.
        record = {"path": remote_code, "names": sorted({*names, *before}), "is_whole": False}
        write_private(self.run_dir / CODE_SENT, record)
        folders = {str(parent) for name in names for parent in PurePath(name).parents}
        if gone := sorted(before - {*names, *folders}):
            remove = script('cd -- "$1" && xargs -0 rm -f --', remote_code)
            self.check_copied(self.shell.call(remove, "\0".join(gone)))
        self.check_copied(self.shell.send(workdir, "\0".join(names), remote_code))
        write_private(self.run_dir / CODE_SENT, {"path": remote_code, "names": names, "is_whole": True})

    def check_copied(self, done: CommandResult) -> None:
        """Raise TargetRefusalError if a copy failed."""
        if done.code != 0:
            raise TargetRefusalError(f"not copied to {self.target['name']}: {done.words}")

    def remote_program(self, verb: str, *arguments: str) -> list[str]:
        folder = self.remote_folder
        return [python_of(self.plan), "-I", "-S", f"{folder}/{remote.PROGRAM}", verb, folder, *arguments]

    def mark_over(self) -> None:
        self.shell.call(["touch", "--", f"{self.remote_folder}/{remote.OVER}"])

    # --- what comes back ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Fetch the state of the attempt and the new data of its files. Raises UnreachableError."""
        cuts = {name: shift["cut"] for name, shift in self.shifts.items()}
        request = json.dumps({"known": self.known(), "cuts": cuts, "metrics": self.metrics_globs()})
        done = self.shell.call(self.remote_program("report"), request, seconds=60.0)
        answer = next(filter(None, map(remote.framed, done.output.splitlines())), None)
        if answer is None:
            why = f"none in {len(done.output)} characters" if done.code == 0 else done.words
            raise UnreachableError(f"no report from there: {why}")
        self.answer = answer
        self.apply(answer["grown"], answer["whole"])
        self.contacts.is_behind = bool(answer.get("is_partial"))

    def unwritable(self) -> str | None:
        if self.answer is None:
            return None
        return self.answer.get("unwritable")

    def drain(self) -> None:
        while self.answer is None or self.answer["grown"]:
            self.ask()


def job_script(plan: Mapping[str, Any], folder: str, claim: str) -> str:
    """The script that is started there: it notes its process, and runs the set-up and the attempt's
    body."""
    target = plan["target"]
    lines = ["#!/bin/bash", f"echo $$ > {shlex.quote(folder + '/pid')}"]
    if target.get("gpus") or not plan["asks"]["gpus"]:
        visible = target["gpus"] if plan["asks"]["gpus"] else ""
        lines.append(f"export CUDA_VISIBLE_DEVICES={shlex.quote(visible)}")
    argv = [python_of(plan), "-I", "-S", f"{folder}/{remote.PROGRAM}", "body", folder, claim]
    return "\n".join([*lines, *target.get("setup", ()), f"exec {shlex.join(argv)}", ""])


class SshRunner(SshMirror):
    """The attempt's body is started there, detached from the connection."""

    def submit(self, token: str) -> str:
        # One that was started by a runner which died over it holds the lock, and no second one
        # begins.
        put = script('umask 077; cat > "$1/job.sh"', self.remote_folder)
        self.check_copied(self.shell.call(put, job_script(self.plan, self.remote_folder, token)))
        self.check_copied(self.shell.call(script(START, self.remote_folder)))
        return token

    def jobs(self, token: str) -> list[JobStatus]:
        self.ask()
        claim = self.claimed()
        if claim is None:
            return []
        return [self.state_of(claim)]

    def unlisted_status(self, job: str) -> JobStatus | None:
        return self.state_of(job)

    def state_of(self, job: str) -> JobStatus:
        assert self.answer is not None
        node = (str(self.answer["host"]),)
        if self.answer["is_alive"]:
            state = "running" if "started.json" in self.answer["whole"] else "configuring"
            return JobStatus(job, state, nodes=node)
        return JobStatus(job, "ended", reason=None, nodes=node)

    def signal_job(self, job: str, *, at_once: bool) -> None:
        number = "12" if at_once else "15"
        self.shell.call(self.remote_program("signal", number))

    def cancel(self, job: str) -> None:
        self.shell.call(self.remote_program("signal", "12"))


if __name__ == "__main__":
    serve(SshRunner)
