"""The program of one attempt on a Slurm cluster: slurm_runner.py FOLDER."""

from __future__ import annotations

import json
from pathlib import Path

from gputui.runs.executors.commands import (
    CommandResult,
    MissingProgramError,
    TargetRefusalError,
    TargetShell,
    UnreachableError,
)
from gputui.runs.executors.job_status import JobStatus
from gputui.runs.executors.remote_runner import RemoteRunner, serve
from gputui.runs.executors.slurm.jobs import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    SQUEUE_TIMES,
    QueuedJob,
    batch_script,
    job_comment,
    job_name,
    nodes_of,
    queued_jobs,
    recorded_job,
    submitted_job,
)
from gputui.runs.executors.ssh.connection import LoginShell, SshShell
from gputui.runs.executors.ssh.ssh_runner import SshMirror

# Messages of a controller that is unreachable; any other message of sbatch is a refusal.
_UNREACHABLE = (
    "Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted", "Connection refused",
    "Resource temporarily unavailable", "slurm_persist_conn", "Protocol authentication error", "Munge",
    "Connection timed out", "No route to host",
)  # fmt: skip
# Messages of squeue and sacct that are answers. After any other, the job's state is unknown.
_NO_JOB = "Invalid job id specified"
_NO_HISTORY = "accounting storage is disabled"
# The exit codes of a shell, and of env, for a program that cannot be executed or is not there.
_MISSING_PROGRAM = (126, 127)
SUBMIT_SECONDS = 60.0  # twice another call: a submission that is cut off may still be accepted


class SlurmJobs(RemoteRunner):
    """Runners of Slurm jobs, by sbatch, squeue and sacct."""

    shell: TargetShell

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if nodes_of(self.target) > 1:
            self.plan["nodes"] = nodes_of(self.target)

    def call(self, *argv: str, input_text: str = "", seconds: float = 30.0) -> CommandResult:
        """Run a command of the cluster. Raises UnreachableError if its controller is unreachable."""
        settings = ("env", SQUEUE_TIMES) if argv[0] == "squeue" else ()
        done = self.shell.call((*settings, *argv), input_text, seconds)
        if done.code != 0 and any(message in done.errors for message in _UNREACHABLE):
            raise UnreachableError(f"{argv[0]}: {done.words}")
        return done

    def reach(self) -> None:
        name = job_name(self.plan["run_id"], self.plan["attempt"])
        for argv in (("sbatch", "--version"), ("squeue", "--noheader", f"--name={name}")):
            done = self.call(*argv)
            if done.code in _MISSING_PROGRAM:
                raise MissingProgramError(f"{argv[0]}: {done.words}")
            if done.code != 0:
                raise UnreachableError(f"{argv[0]}: {done.words}")

    def submit(self, token: str) -> str | None:
        script = batch_script(self.plan, self.remote_folder, token=token)
        (self.remote / "job.sh").write_text(script, "utf-8")
        done = self.call("sbatch", "--parsable", input_text=script, seconds=SUBMIT_SECONDS)
        if done.code == 0:
            return submitted_job(done.output)
        # A site's own sbatch may fail after it has submitted the job.
        if listed := self.jobs(token):
            return listed[0].job
        raise TargetRefusalError(f"sbatch refused the job: {done.words.removeprefix('sbatch: error: ')}")

    def jobs(self, token: str) -> list[JobStatus]:
        name = job_name(self.plan["run_id"], self.plan["attempt"])
        comment = job_comment(token)
        return [job.status() for job in self.queued(f"--name={name}") if job.comment == comment]

    def unlisted_status(self, job: str) -> JobStatus | None:
        # By its number, because its name or comment may have been changed.
        if listed := self.queued(f"--jobs={job}"):
            return listed[0].status()
        done = self.call("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", SACCT_FORMAT)
        if done.code != 0:
            if _NO_HISTORY in done.errors or done.code in _MISSING_PROGRAM:
                return None
            raise UnreachableError(f"sacct: {done.words}")
        recorded = recorded_job(job, done.output)
        if recorded is not None and recorded.status().state != "ended":
            if self.stop is not None:
                # A person has given it up, and the controller, which would stop it, does not know it.
                return None
            remedy = "see sacctmgr show runawayjobs"
            raise UnreachableError(f"squeue does not know job {job}, which sacct calls {recorded.state}; {remedy}")
        if recorded is None:
            return None
        return recorded.status()

    def queued(self, choice: str) -> list[QueuedJob]:
        """The jobs that squeue lists by an option. Raises UnreachableError if it fails."""
        done = self.call("squeue", "--noheader", choice, "--states=all", SQUEUE_FORMAT)
        if done.code != 0 and _NO_JOB not in done.errors:
            raise UnreachableError(f"squeue: {done.words}")
        return queued_jobs(done.output)

    def signal_job(self, job: str, *, at_once: bool) -> None:
        if self.status is not None and self.status.state == "suspended":
            # Its processes handle no signal before; only an operator may resume it.
            self.call("scontrol", "resume", job)
        name = "USR2" if at_once else "TERM"
        self.call("scancel", "--batch", f"--signal={name}", job)

    def cancel(self, job: str) -> None:
        self.call("scancel", job)


class SlurmRunner(SlurmJobs):
    """For a login node on this machine, which shares a file system with the nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shell = TargetShell()


class SshSlurmRunner(SlurmJobs, SshMirror):
    """For a login node that is reached by SSH, and shares a file system with the nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shell: SshShell = LoginShell(self.target)

    def fetch(self) -> None:
        self.ask()


def runner_of(folder: Path) -> RemoteRunner:
    """The runner of an attempt, by whether its target names a login node."""
    target = json.loads((folder / "attempt.json").read_text("utf-8"))["target"]
    if target.get("host"):
        return SshSlurmRunner(folder)
    return SlurmRunner(folder)


if __name__ == "__main__":
    serve(runner_of)
