"""The program of one attempt on a Slurm cluster: slurm_courier.py FOLDER."""

from __future__ import annotations

from gputui.runs.executors.courier import (
    Called,
    Courier,
    JobStatus,
    TargetRefusalError,
    TargetShell,
    UnreachableError,
    serve,
)
from gputui.runs.executors.slurm.listing import FORMAT, jobs, recorded
from gputui.runs.executors.slurm.script import CONFIGURATION, batch_script, comment, job_name

# What a controller that cannot be asked now says; all else that sbatch says is its answer.
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted", "Connection refused",
         "Resource temporarily unavailable", "slurm_persist_conn", "Protocol authentication error", "Munge",
         "Connection timed out", "No route to host")  # fmt: skip
SUBMIT_SECONDS = 60.0
SHELL = TargetShell(CONFIGURATION)


class SlurmCourier(Courier):
    """One job by sbatch; squeue, then sacct, then the attempt's folder say how it is."""

    def call(self, *argv: str, given: str = "", seconds: float = 30.0) -> Called:
        """A command of the cluster. Raises UnreachableError where its controller cannot be asked."""
        done = SHELL.call(argv, given, seconds)
        if done.code != 0 and any(words in done.errors for words in _AWAY):
            raise UnreachableError(f"{argv[0]}: {done.words}")
        return done

    def submit(self, token: str) -> str:
        script = batch_script(self.plan, str(self.far), token=token)
        (self.far / "job.sh").write_text(script, "utf-8")
        done = self.call("sbatch", "--parsable", given=script, seconds=SUBMIT_SECONDS)
        job = done.output.strip().partition(";")[0]
        if done.code != 0 or not job.isdigit():
            raise TargetRefusalError(done.words.removeprefix("sbatch: error: "))
        return job

    def jobs(self, token: str) -> list[JobStatus]:
        name = job_name(self.plan["run_id"], self.plan["attempt"])
        done = self.call("squeue", "--noheader", f"--name={name}", "--states=all", f"--format={FORMAT}")
        if done.code != 0:
            raise UnreachableError(f"squeue: {done.words}")
        return jobs(done.output, comment(token))

    def forgotten(self, job: str) -> JobStatus | None:
        done = self.call(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,NodeList"
        )
        return recorded(job, done.output) if done.code == 0 else None

    def signal_job(self, job: str, *, at_once: bool) -> None:
        self.call("scancel", "--batch", f"--signal={'USR2' if at_once else 'TERM'}", job)

    def cancel(self, job: str) -> None:
        self.call("scancel", job)


if __name__ == "__main__":
    serve(SlurmCourier)
