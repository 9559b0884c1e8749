"""Parse the output of squeue and sacct into job statuses; pure."""

from __future__ import annotations

import re
import time

from gputui.runs.executors.courier import EndedBy, JobStatus

# Fields of squeue since release 22.05: id, state, reason, expected or real start, nodes, end by the limit, comment.
FORMAT = "%i|%T|%r|%S|%N|%e|%k"

_STATES = {
    "PENDING": "pending",
    "CONFIGURING": "configuring",
    "RUNNING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "ending",
    "COMPLETING": "ending",
    "SUSPENDED": "pending",
    "STOPPED": "pending",
    "RESIZING": "running",
    "REQUEUED": "requeued",
    "REQUEUE_HOLD": "requeued",
    "REQUEUE_FED": "requeued",
    "SPECIAL_EXIT": "requeued",
    "RESV_DEL_HOLD": "pending",
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
    """The status of a job from the fields of a listing. An unknown state counts as pending, never as ended."""
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
    """The job in the output of ``sbatch --parsable``, to which a site may add text; None if there is none."""
    found = re.findall(r"^\s*(\d+)(?:;\S+)?\s*$", output, re.M | re.A)
    return found[-1] if found else None


def node_names(nodes: str) -> list[str]:
    """The names in a node list. One with brackets, such as ``n[1-3,7],login``, stays one name, because it may stand for
    a thousand."""
    if not nodes or nodes.startswith("("):
        return []
    return [nodes] if "[" in nodes else nodes.split(",")


def _parse_time(text: str) -> float | None:
    """squeue's local time as UTC unix seconds."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
