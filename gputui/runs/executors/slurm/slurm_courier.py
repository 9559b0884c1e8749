"""The program of one attempt on a Slurm cluster: slurm_courier.py FOLDER."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gputui.runs.executors.courier import (
    CALL_SECONDS,
    Called,
    Courier,
    JobStatus,
    TargetRefusalError,
    TargetShell,
    UnreachableError,
    serve,
)
from gputui.runs.executors.slurm import nodes
from gputui.runs.executors.slurm.job_table import FORMAT, jobs, recorded
from gputui.runs.executors.slurm.script import CONFIGURATION, batch_script, comment, job_name, nodes_of
from gputui.runs.executors.ssh.connection import SshShell
from gputui.runs.executors.ssh.transport import SshMirror

# What a controller that cannot be asked now says; all else that sbatch says is its answer.
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted", "Connection refused",
         "Resource temporarily unavailable", "slurm_persist_conn", "Protocol authentication error", "Munge",
         "Connection timed out", "No route to host")  # fmt: skip
SUBMIT_SECONDS = 60.0
# Serves an attempt on several nodes.
SERVER = Path(nodes.__file__)


class LoginShell(SshShell):
    """The shell that a person has on a login node: what its profile sets up is there."""

    def call(self, argv: Sequence[str], given: str = "", seconds: float = CALL_SECONDS) -> Called:
        return super().call(["bash", "-lc", 'exec "$@"', "bash", *argv], given, seconds)


class SlurmJobs(Courier):
    """One job by sbatch; squeue, then sacct, then the attempt's folder say how it is."""

    shell: TargetShell

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if nodes_of(self.target) > 1:
            self.plan |= {"nodes": nodes_of(self.target), "server": SERVER.name}
            self.programs = (*self.programs, SERVER)

    def call(self, *argv: str, given: str = "", seconds: float = 30.0) -> Called:
        """A command of the cluster. Raises UnreachableError where its controller cannot be asked."""
        done = self.shell.call(argv, given, seconds)
        if done.code != 0 and any(words in done.errors for words in _AWAY):
            raise UnreachableError(f"{argv[0]}: {done.words}")
        return done

    def submit(self, token: str) -> str:
        lost = self.lost_nodes()
        done = self.sbatch(token, lost)
        if lost and done.code != 0:
            # Where there are no others, these may be well again.
            done = self.sbatch(token, [])
        job = done.output.strip().partition(";")[0]
        if done.code != 0 or not job.isdigit():
            raise TargetRefusalError(done.words.removeprefix("sbatch: error: "))
        return job

    def sbatch(self, token: str, lost: Sequence[str]) -> Called:
        script = batch_script(self.plan, self.far_folder, token=token, lost=lost)
        (self.far / "job.sh").write_text(script, "utf-8")
        return self.call("sbatch", "--parsable", given=script, seconds=SUBMIT_SECONDS)

    def jobs(self, token: str) -> list[JobStatus]:
        name = job_name(self.plan["run_id"], self.plan["attempt"])
        done = self.call("squeue", "--noheader", f"--name={name}", "--states=all", f"--format={FORMAT}")
        if done.code != 0:
            raise UnreachableError(f"squeue: {done.words}")
        return jobs(done.output, comment(token))

    def forgotten(self, job: str) -> JobStatus | None:
        # A site or a person may have changed its name or comment.
        done = self.call("squeue", "--noheader", f"--jobs={job}", "--states=all", f"--format={FORMAT}")
        found = jobs(done.output) if done.code == 0 else []
        if found:
            return found[0]
        done = self.call(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,NodeList"
        )
        return recorded(job, done.output) if done.code == 0 else None

    def signal_job(self, job: str, *, at_once: bool) -> None:
        self.call("scancel", "--batch", f"--signal={'USR2' if at_once else 'TERM'}", job)

    def cancel(self, job: str) -> None:
        self.call("scancel", job)


class SlurmCourier(SlurmJobs):
    """This machine is a login node and shares its files with the nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shell = TargetShell(CONFIGURATION)


class FarSlurmCourier(SlurmJobs, SshMirror):
    """The login node is reached by SSH; it shares its files with the nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shell: SshShell = LoginShell(self.target)

    def fetch(self) -> None:
        self.ask()


def courier_of(folder: Path) -> Courier:
    target = json.loads((folder / "attempt.json").read_text("utf-8"))["target"]
    return FarSlurmCourier(folder) if target.get("host") else SlurmCourier(folder)


if __name__ == "__main__":
    serve(courier_of)
