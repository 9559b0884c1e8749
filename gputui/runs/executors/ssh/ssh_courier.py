"""The program of one attempt on another machine: ssh_courier.py FOLDER."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from gputui.runs.executors import far
from gputui.runs.executors.courier import Courier, JobStatus, TargetRefusalError, UnreachableError, serve
from gputui.runs.executors.ssh.connection import SshShell
from gputui.runs.submission import write_private

GIT_SECONDS = 60.0
START = (
    'umask 077; cd "$1" && setsid nohup flock -n start.lock bash "$1/job.sh" >> job.log 2>&1 < /dev/null & sleep 0.2'
)
MAKE = (
    'umask 077; mkdir -p "$1/attempts/$2/far" "$1/attempts/$2/nodes/0" "$1/checkpoints" "$1/code" && cd "$1" && pwd -P'
)


def job_script(plan: Mapping[str, Any], folder: str, claim: str) -> str:
    """What is started there: who serves the attempt, the set-up, the attempt's body."""
    target = plan["target"]
    lines = ["#!/bin/bash", f"echo $$ > {shlex.quote(folder + '/pid')}"]
    if target.get("gpus") or not plan["asks"]["gpus"]:
        lines.append(f"export CUDA_VISIBLE_DEVICES={shlex.quote(target['gpus'] if plan['asks']['gpus'] else '')}")
    words = [python_of(plan), "-I", "-S", f"{folder}/far.py", "body", folder, claim]
    return "\n".join([*lines, *target.get("setup", ()), f"exec {shlex.join(words)}", ""])


def python_of(plan: Mapping[str, Any]) -> str:
    """An interpreter there: the target's, else that of the training."""
    if plan["target"].get("python"):
        return str(plan["target"]["python"])
    first = str(plan["argv"][0])
    return first if re.fullmatch(r"python[0-9.]*", PurePath(first).name) else "python3"


class SshCourier(Courier):
    """Files are sent once and asked for as they grow; a far file is known here by its own length."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run_dir = folder.parents[1]
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
        tag = hashlib.sha256(str(self.run_dir).encode()).hexdigest()[:8]
        wanted = f"{self.target.get('folder') or 'gputui-runs'}/{tag}/{self.run_dir.name}"
        made = self.shell.call(["bash", "-c", MAKE, "bash", wanted, str(self.plan["attempt"])])
        root = made.output.strip()
        if made.code != 0 or not root.startswith("/"):
            raise TargetRefusalError(f"no folder {wanted} there: {made.words}")
        write_private(self.folder / "root.json", {"path": root})
        self.send_code(root)
        local = self.plan
        self.plan = moved(local, {str(self.run_dir): root, **self.code_paths(root)})
        try:
            super().send()
        finally:
            self.plan = local
        self.sent(self.shell.send(self.far, None, self.far_folder))

    def code_paths(self, root: str) -> dict[str, str]:
        """The working directory here → there; nothing where it is the run's own folder."""
        workdir = str(self.plan["cwd"])
        return {} if Path(workdir).is_relative_to(self.run_dir) else {workdir: f"{root}/code"}

    def send_code(self, root: str) -> None:
        """Copy what git knows of the working directory and the target's ``files``, as they are now."""
        for workdir in self.code_paths(root):
            names = known_files(Path(workdir))
            if names is None:
                raise TargetRefusalError(f"{workdir} is no git checkout, so that what to copy is not known")
            listed = [name for name in self.target.get("files", ()) if (Path(workdir) / name).exists()]
            self.sent(self.shell.send(Path(workdir), "\0".join([*names, *listed]), f"{root}/code"))

    def sent(self, done: Any) -> None:
        if done.code != 0:
            raise TargetRefusalError(f"not copied: {done.words}")

    # --- the job ------------------------------------------------------------------------------------------------------

    def submit(self, token: str) -> str:
        # One that was started by a courier which died over it holds the lock, and no second one begins.
        script = job_script(self.plan, self.far_folder, token)
        put = ["bash", "-c", 'umask 077; cat > "$1/job.sh"', "bash", self.far_folder]
        self.sent(self.shell.call(put, script))
        self.sent(self.shell.call(["bash", "-c", START, "bash", self.far_folder]))
        return token

    def jobs(self, token: str) -> list[JobStatus]:
        self.ask()
        claim = self.claimed()
        return [] if claim is None else [self.state_of(claim)]

    def forgotten(self, job: str) -> JobStatus | None:
        return self.state_of(job)

    def state_of(self, job: str) -> JobStatus:
        assert self.answer is not None
        node = (str(self.answer["host"]),)
        if self.answer["is_alive"]:
            return JobStatus(job, "running" if "started.json" in self.answer["whole"] else "configuring", nodes=node)
        return JobStatus(job, "ended", None, nodes=node)

    def signal_job(self, job: str, *, at_once: bool) -> None:
        self.shell.call(self.far_program("signal", "12" if at_once else "15"))

    def cancel(self, job: str) -> None:
        self.shell.call(self.far_program("signal", "12"))

    def far_program(self, verb: str, *words: str) -> list[str]:
        folder = self.far_folder
        return [python_of(self.plan), "-I", "-S", f"{folder}/far.py", verb, folder, *words]

    # --- what comes back ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """How the attempt is, and what its files grew by. Raises UnreachableError."""
        shifts = far.read_record(self.folder / "shifts.json") or {}
        known = {}
        for path in (*self.folder.rglob("*.log"), *self.far.glob("*.jsonl"), *self.metrics_here()):
            name = str(path.relative_to(self.run_dir))
            known[name] = path.stat().st_size - int(shifts.get(name, 0))
        request = json.dumps({"known": known, "metrics": self.metrics_globs()})
        done = self.shell.call(self.far_program("report"), request, seconds=60.0)
        try:
            self.answer = json.loads(done.output)
        except ValueError:
            raise UnreachableError(f"no report from there: {done.words}") from None
        assert self.answer is not None
        for name, part in self.answer["grown"].items():
            self.append(name, part, known.get(name, 0), shifts)
        for name in ("started.json", "exit.json", "claim"):
            text = self.answer["whole"].get(name)
            if text is not None and (not (self.far / name).exists() or (self.far / name).read_text("utf-8") != text):
                (self.far / name).write_text(text, "utf-8")

    def drain(self) -> None:
        while self.answer is None or self.answer["grown"]:
            self.ask()

    def append(self, name: str, part: Mapping[str, Any], known: int, shifts: dict[str, Any]) -> None:
        """Add what a file there grew by. One that was cut off there is followed from its new beginning."""
        path = self.run_dir / name
        if path.resolve().is_relative_to(self.run_dir.resolve()):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if int(part["at"]) != known:
                shifts[name] = path.stat().st_size
                write_private(self.folder / "shifts.json", shifts)
            with path.open("ab") as file:
                file.write(base64.b64decode(part["data"]))

    def metrics_globs(self) -> list[str]:
        """The metrics files below the run's folder, from there."""
        below = [Path(path) for path in self.plan["metrics"]]
        return [str(path.relative_to(self.run_dir)) for path in below if path.is_relative_to(self.run_dir)]

    def metrics_here(self) -> list[Path]:
        return [path for glob in self.metrics_globs() for path in self.run_dir.glob(glob) if path.is_file()]


def known_files(workdir: Path) -> list[str] | None:
    """What git knows of a folder, changed files and new ones that it does not ignore included; None where it is none of
    git's."""
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


def moved(plan: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """The plan with paths here replaced by those there, wherever a path may begin in a word."""
    longest = sorted(paths, key=len, reverse=True)

    def word(text: str) -> str:
        for old in longest:
            text = re.sub(rf"(?<![^=:,]){re.escape(old)}(?=[/:,]|$)", paths[old].replace("\\", r"\\"), text)
        return text

    def value(given: Any) -> Any:
        if isinstance(given, str):
            return word(given)
        if isinstance(given, list):
            return [value(each) for each in given]
        return {name: value(each) for name, each in given.items()} if isinstance(given, dict) else given

    parts = {name: value(plan[name]) for name in ("argv", "env", "cwd", "resume", "resume_from") if name in plan}
    return {**plan, **parts}


if __name__ == "__main__":
    serve(SshCourier)
