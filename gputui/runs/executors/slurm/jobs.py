"""The batch script of an attempt, and the jobs in the output of Slurm's commands. Pure:
``--dry-run`` prints the exact script that is submitted."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gputui.core.yaml_forms.quantities import parse_duration
from gputui.runs.executors.job_status import EndedBy, JobStatus
from gputui.runs.executors.remote import PROGRAM
from gputui.runs.executors.remote_runner import python_of

WARN_SECONDS = 120  # most checkpoints are written within it

# Fields of squeue since release 22.05, those of QueuedJob; its times as UTC unix seconds; and fields
# of sacct.
SQUEUE_TIMES = "SLURM_TIME_FORMAT=%s"
SQUEUE_FORMAT = "--format=%i|%T|%r|%S|%N|%e|%k"
SACCT_FORMAT = "--format=JobIDRaw,State,NodeList"

# The states of a living job; in all others it waits.
_STATES = {
    "CONFIGURING": "configuring",
    **dict.fromkeys(("RUNNING", "SIGNALING", "RESIZING"), "running"),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), "suspended"),
    **dict.fromkeys(("STAGE_OUT", "COMPLETING"), "ending"),
    **dict.fromkeys(("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"), "requeued"),
}
_ENDED_BY: dict[str, EndedBy | None] = {
    "COMPLETED": None,
    "FAILED": None,
    "PREEMPTED": "preempted",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "OUT_OF_MEMORY": "host_oom",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}


def job_name(run_id: str, attempt: int) -> str:
    """The attempt's job name in squeue."""
    return f"{run_id}.{attempt}"


def nodes_of(target: Mapping[str, Any]) -> int:
    """The number of nodes of an attempt."""
    return int(target.get("nodes", 1))


def job_comment(token: str) -> str:
    """The job's comment, by which a runner finds its job."""
    return f"gputui:{token}"


def batch_script(plan: Mapping[str, Any], folder: str, *, token: str) -> str:
    """The script for an attempt's ``plan`` (attempt.json); ``folder`` is its folder on the target."""
    target = plan["target"]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(plan, target, folder, token))]
    # The warning signal may come while these lines run. The program that serves the attempt handles
    # it later.
    lines += ["trap '' USR1", *target.get("setup", ()), ""]
    argv = [python_of(plan), "-I", "-S", f"{folder}/{PROGRAM}", "body", folder]
    body = " ".join(shlex.quote(word) for word in argv)
    lines += [f'exec {body} "$SLURM_JOB_ID" scontrol requeue "$SLURM_JOB_ID"', ""]
    return "\n".join(lines)


def _options(plan: Mapping[str, Any], target: Mapping[str, Any], folder: str, token: str) -> Iterator[str]:
    yield f"--job-name={job_name(plan['run_id'], plan['attempt'])}"
    yield f"--comment={job_comment(token)}"
    yield f"--nodes={nodes_of(target)}"
    yield "--ntasks-per-node=1"
    gpus = int(plan["asks"]["gpus"])
    if gpus:
        kind = f"{target['gpu_type']}:" if target.get("gpu_type") else ""
        yield f"--gres=gpu:{kind}{gpus}"
    names = {"partition": "partition", "account": "account", "qos": "qos", "exclude": "exclude", "memory": "mem"}
    for key, name in names.items():
        if target.get(key):
            yield f"--{name}={target[key]}"
    if target.get("constraint"):
        yield f"--constraint={_quoted(target['constraint'])}"
    if target.get("cpus"):
        yield f"--cpus-per-task={target['cpus']}"
    if target.get("time"):
        yield f"--time={sbatch_time(target['time'])}"
    yield f"--signal=B:USR1@{target.get('warn', WARN_SECONDS)}"
    yield "--requeue"
    yield "--open-mode=append"
    # A % starts a pattern.
    yield f"--output={_quoted(folder.replace('%', '%%') + '/job.log')}"
    yield from target.get("options", ())


def sbatch_time(text: str) -> str:
    """Convert ``4h``, ``1h30m`` and ``2d`` to sbatch's minutes. Other forms are sbatch's own."""
    seconds = parse_duration(text)
    if seconds is None:
        return text
    return str(math.ceil(seconds / 60))


def _quoted(text: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z0-9_./%:@+=,&|()\[\]-]+", text)
    if is_plain:
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


# --- what Slurm answers -----------------------------------------------------------------------------------------------


class QueuedJob(NamedTuple):
    """A job in Slurm's words.

    Attributes:
        job: its number.
        state: as squeue or sacct writes it.
        reason: why it waits.
        start: the expected or real time of its start.
        nodes: a list as Slurm writes it.
        end: when its time limit ends it.
        comment: has the token of the submission.
    """

    job: str
    state: str
    reason: str = ""
    start: str = ""
    nodes: str = ""
    end: str = ""
    comment: str = ""

    def status(self) -> JobStatus:
        """The job's status. An unknown state counts as pending, never as ended."""
        # As in "CANCELLED by 1000" and, cut short, "CANCELLED+".
        word = self.state.split(" ")[0].rstrip("+")
        reason = self.reason if self.reason not in ("None", "") else None
        if word in _ENDED_BY:
            ended_by = _ENDED_BY[word]
            # Of a cancelled job it is why it waited before.
            if ended_by == "cancelled" or reason is None:
                return JobStatus(self.job, "ended", self.state, ended_by=ended_by)
            return JobStatus(self.job, "ended", f"{self.state}: {reason}", ended_by=ended_by)
        if word not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"):
            reason = f"{word}: {reason}" if reason else word
        state = _STATES.get(word, "pending")
        expected_start = limit_at = None
        if state in ("pending", "requeued"):
            expected_start = _parse_time(self.start)
        else:
            limit_at = _parse_time(self.end)
        return JobStatus(
            self.job,
            state,
            reason,
            expected_start=expected_start,
            nodes=self.node_names,
            limit_at=limit_at,
        )

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names in the node list. One with brackets, such as ``n[1-3,7],login``, stays one name,
        because it may stand for a thousand."""
        if not self.nodes or self.nodes.startswith("("):
            return ()
        if "[" in self.nodes:
            return (self.nodes,)
        return tuple(self.nodes.split(","))


def queued_jobs(output: str) -> list[QueuedJob]:
    """The jobs in squeue's output in SQUEUE_FORMAT, oldest first."""
    lines = (line.split("|", 6) for line in output.splitlines())
    jobs = [QueuedJob(*(field.strip() for field in fields)) for fields in lines if len(fields) == 7]
    return sorted(jobs, key=lambda job: (len(job.job), job.job))


def recorded_job(job: str, output: str) -> QueuedJob | None:
    """A job in the output of ``sacct --parsable2`` in SACCT_FORMAT, or None."""
    match = re.search(rf"^\s*{re.escape(job)}\|(?P<state>[^|]+)\|(?P<nodes>.*)$", output, re.M)
    if match is None:
        return None
    return QueuedJob(job, match["state"], nodes=match["nodes"].strip())


def submitted_job(output: str) -> str | None:
    """The job in the output of ``sbatch --parsable``, to which a site may add text; None unless
    exactly one line looks like one."""
    numbers = re.findall(r"^\s*(\d+)(?:;\S+)?\s*$", output, re.M | re.A)
    if len(numbers) == 1:
        return str(numbers[0])
    return None


def _parse_time(text: str) -> float | None:
    """A time of squeue in UTC unix seconds; None for one that is unknown, such as ``N/A``."""
    if text.isascii() and text.isdigit():
        return float(text)
    return None
