"""What squeue and sacct print, as job statuses; pure."""

from __future__ import annotations

import time

from gputui.runs.executors.courier import EndedBy, JobStatus

# Fields of squeue that 22.05 and every later release have: id, state, reason, expected or real start, nodes, end by the
# limit, comment.
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
    """One job from the words of a listing; a word that is not known counts as pending, never as an end."""
    first = word.split(" ")[0].rstrip("+")
    if first in _ENDED_BY or first in ("COMPLETED", "FAILED"):
        return JobStatus(
            job, "ended", word if reason in ("None", "") else f"{word}: {reason}", ended_by=_ENDED_BY.get(first)
        )
    state = _STATES.get(first, "pending")
    why = reason if reason not in ("None", "") else None
    if first not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
        why = f"{first}: {why}" if why else first
    is_waiting = state in ("pending", "requeued")
    return JobStatus(
        job,
        state,
        why,
        _at(start) if is_waiting else None,
        tuple(expanded(nodes)),
        None if is_waiting else _at(end),
    )


def jobs(output: str, comment: str | None = None) -> list[JobStatus]:
    """The jobs of a listing in FORMAT that have a ``comment``, or all of them, oldest first."""
    found = []
    for line in output.splitlines():
        fields = line.split("|", 6)
        if len(fields) == 7 and comment in (None, fields[6].strip()):
            found.append(status(*(field.strip() for field in fields[:6])))
    return sorted(found, key=lambda one: (len(one.job), one.job))


def recorded(job: str, output: str) -> JobStatus | None:
    """The end of a job in what ``sacct --parsable2 --format=State,NodeList`` prints; None where there is none."""
    for line in output.splitlines():
        word, _, nodes = line.strip().partition("|")
        if word:
            found = status(job, word, "", "", nodes, "")
            return found if found.state == "ended" else None
    return None


def expanded(nodes: str) -> list[str]:
    """``n[1-3,7],login`` as it is where it has brackets, because a list of a thousand names is of no use."""
    if not nodes or nodes.startswith("("):
        return []
    return [nodes] if "[" in nodes else nodes.split(",")


def _at(text: str) -> float | None:
    """squeue's local time as UTC unix seconds."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
