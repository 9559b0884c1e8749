"""The program of one attempt on another machine: ssh_courier.py FOLDER."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gputui.runs.executors.courier import JobStatus, python_of, serve
from gputui.runs.executors.far import PROGRAM
from gputui.runs.executors.ssh.transport import SshMirror

# In a list of commands a shell would stay behind the job, and the connection with it.
START = (
    'umask 077; cd "$1" || exit; '
    'setsid nohup flock -n start.lock bash "$1/job.sh" >> job.log 2>&1 < /dev/null & sleep 0.2'
)


def job_script(plan: Mapping[str, Any], folder: str, claim: str) -> str:
    """What is started there: who serves the attempt, the set-up, the attempt's body."""
    target = plan["target"]
    lines = ["#!/bin/bash", f"echo $$ > {shlex.quote(folder + '/pid')}"]
    if target.get("gpus") or not plan["asks"]["gpus"]:
        lines.append(f"export CUDA_VISIBLE_DEVICES={shlex.quote(target['gpus'] if plan['asks']['gpus'] else '')}")
    words = [python_of(plan), "-I", "-S", f"{folder}/{PROGRAM}", "body", folder, claim]
    return "\n".join([*lines, *target.get("setup", ()), f"exec {shlex.join(words)}", ""])


class SshCourier(SshMirror):
    """The attempt's body is started there, detached from the connection."""

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


if __name__ == "__main__":
    serve(SshCourier)
