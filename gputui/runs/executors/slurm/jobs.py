"""The batch script of an attempt, and the jobs in the output of Slurm's commands. Pure:
``--dry-run`` prints the exact script that is submitted."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.executors.courier import EndedBy, JobStatus, python_of
from gputui.runs.executors.far import PROGRAM

WARN_SECONDS = 120
CONFIGURATION = "SLURM_CONF"
"""The variable that names the cluster of Slurm's commands."""


def job_name(run_id: str, attempt: int) -> str:
    """The attempt's job name in squeue."""
    return f"{run_id}.{attempt}"


def nodes_of(target: Mapping[str, Any]) -> int:
    """The number of nodes of an attempt."""
    return int(target.get("nodes", 1))


def comment(token: str) -> str:
    """The job's comment, by which a courier finds its job."""
    return f"gputui:{token}"


def batch_script(plan: Mapping[str, Any], folder: str, *, token: str) -> str:
    """The script for an attempt's ``plan`` (attempt.json); ``folder`` is its folder on the target."""
    target = plan["target"]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(plan, target, folder, token))]
    # The warning signal may come while these lines run. The program that serves the attempt handles
    # it later.
    lines += ["trap '' USR1", *target.get("setup", ()), ""]
    words = [python_of(plan), "-I", "-S", f"{folder}/{PROGRAM}", "body", folder]
    body = " ".join(shlex.quote(word) for word in words)
    lines += [f'exec {body} "$SLURM_JOB_ID" scontrol requeue "$SLURM_JOB_ID"', ""]
    return "\n".join(lines)


def _options(plan: Mapping[str, Any], target: Mapping[str, Any], folder: str, token: str) -> Iterator[str]:
    yield f"--job-name={job_name(plan['run_id'], plan['attempt'])}"
    yield f"--comment={comment(token)}"
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
    """Convert ``4h``, ``30m`` and ``2d`` to sbatch's minutes. Other forms are sbatch's own."""
    match = re.fullmatch(r"(\d+)([mhd])", text)
    if match is None:
        return text
    return str(int(match[1]) * {"m": 1, "h": 60, "d": 1440}[match[2]])


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_./%:@+=,&|()\[\]-]+", text) else '"' + text.replace('"', '\\"') + '"'


# --- what Slurm answers -----------------------------------------------------------------------------------------------

# Fields of squeue since release 22.05: id, state, reason, expected or real start, nodes, end by the
# limit, comment.
FORMAT = "%i|%T|%r|%S|%N|%e|%k"

# All others of a living job wait.
_STATES = {
    "CONFIGURING": "configuring",
    **dict.fromkeys(("RUNNING", "SIGNALING", "RESIZING"), "running"),
    **dict.fromkeys(("STAGE_OUT", "COMPLETING"), "ending"),
    **dict.fromkeys(("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"), "requeued"),
}
_ENDED_BY: dict[str, EndedBy] = {
    "PREEMPTED": "preempted",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "OUT_OF_MEMORY": "host_oom",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}


def status(job: str, word: str, reason: str, start: str, nodes: str, end: str) -> JobStatus:
    """The status of a job from the fields of a listing. An unknown state counts as pending, never
    as ended."""
    first = word.split(" ")[0].rstrip("+")
    if first in _ENDED_BY or first in ("COMPLETED", "FAILED"):
        return JobStatus(
            job, "ended", word if reason in ("None", "") else f"{word}: {reason}", ended_by=_ENDED_BY.get(first)
        )
    state = _STATES.get(first, "pending")
    shown = reason if reason not in ("None", "") else None
    if first not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
        shown = f"{first}: {shown}" if shown else first
    is_waiting = state in ("pending", "requeued")
    return JobStatus(
        job,
        state,
        shown,
        _parse_time(start) if is_waiting else None,
        tuple(node_names(nodes)),
        None if is_waiting else _parse_time(end),
    )


def jobs(output: str, comment: str | None = None) -> list[JobStatus]:
    """The jobs of a listing in FORMAT that have a ``comment``, or all of them, oldest first."""
    listed = []
    for line in output.splitlines():
        fields = line.split("|", 6)
        if len(fields) == 7 and comment in (None, fields[6].strip()):
            listed.append(status(*(field.strip() for field in fields[:6])))
    return sorted(listed, key=lambda each: (len(each.job), each.job))


def recorded(job: str, output: str) -> JobStatus | None:
    """The end of a job in the output of ``sacct --parsable2 --format=State,NodeList``, or None."""
    for line in output.splitlines():
        word, separator, nodes = line.strip().partition("|")
        if word and separator:
            result = status(job, word, "", "", nodes, "")
            return result if result.state == "ended" else None
    return None


def submitted(output: str) -> str | None:
    """The job in the output of ``sbatch --parsable``, to which a site may add text; None if there
    is none."""
    found = re.findall(r"^\s*(\d+)(?:;\S+)?\s*$", output, re.M | re.A)
    return found[-1] if found else None


def node_names(nodes: str) -> list[str]:
    """The names in a node list. One with brackets, such as ``n[1-3,7],login``, stays one name,
    because it may stand for a thousand."""
    if not nodes or nodes.startswith("("):
        return []
    return [nodes] if "[" in nodes else nodes.split(",")


def _parse_time(text: str) -> float | None:
    """squeue's local time as UTC unix seconds."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
