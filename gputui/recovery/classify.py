"""Why an attempt ended: from its evidence to one incident. Pure, so that stored evidence can be judged again."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gputui.charts.safe_text import clean
from gputui.charts.units import bytes_text
from gputui.host.child import signal_name
from gputui.recovery.evidence import Evidence
from gputui.recovery.findings import Finding, gather, last_message, reports_of
from gputui.recovery.kinds import KINDS, SHARED_OOM, Tier
from gputui.recovery.signatures import without_advice
from gputui.redaction import redact_text
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport

MAX_EVIDENCE_LINES = 20
MAX_LINE_CHARACTERS = 400
MAX_DETAIL_CHARACTERS = 160

# Too little for a log to grow by its next buffer on a file system with large blocks.
FULL_BYTES = 1 << 20
_SAYS_NOTHING = ("nonzero_exit", "unknown")

Outcome = Literal["succeeded", "stopped", "failed"]

_CUDA_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")
_HOST_WANTED = re.compile(r"tried to allocate (\d+) bytes")
_AT_STEP = re.compile(r"\bat step (\d{1,15})\b")
_PATHS = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@+~-]+)+/?")
_ADDRESSES = re.compile(r"0x[0-9a-fA-F]+")
_NUMBERS = re.compile(r"\d+")


Witness = Literal["exit", "kernel", "launcher", "finding", "context"]
"""Who says a line of evidence: the exit record, the kernel, the launcher's report, a finding, or what is around."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Why an attempt ended.

    Attributes:
        kind: one of KINDS.
        rank: whose it was; None if it was the launcher's, the machine's or a single process's.
        step: the last step of the attempt, or the one that the message names; None is unknown.
        summary: one plain sentence without its full stop.
        fingerprint: identifies the incident, independent of ranks, numbers, addresses and paths in it.
        evidence_lines: what it was concluded from, harmless for a terminal; witnesses: who says each of them.
        gpu: the UUID of the faulty GPU, if the driver named one; contained: it may be used again.
    """

    kind: str
    rank: int | None
    step: int | None
    summary: str
    fingerprint: str
    evidence_lines: tuple[str, ...]
    gpu: str | None = None
    contained: bool = False
    witnesses: tuple[Witness, ...] = ()


def outcome(evidence: Evidence, *, stop_intended: bool) -> Outcome:
    """How an attempt ended. ``stop_intended`` says that a person asked gputui to stop the run.

    A stop is known by the intent noted before it: its exit status is that of a crash, or of success. What lives on has
    not been stopped.
    """
    record = evidence.exit
    if record is not None and record.is_unkillable:
        return "failed"
    done = record is not None and record.clean and not record.stop_requested
    if stop_intended:
        return "succeeded" if done else "stopped"
    return "succeeded" if done and not any(seen.ended_run for seen in evidence.observed) else "failed"


def classify(evidence: Evidence, hide: Callable[[str], str] = redact_text) -> Incident:
    """The incident that ended an attempt. Call it where `outcome` says failed.

    The evidence may hold secrets, because a secret's value may identify the cause; ``hide`` redacts the incident's
    texts.
    """
    reports = reports_of(evidence)
    found = _by_target(evidence) or gather(evidence, reports)
    primary = min(found, key=_order) if found else _without_findings(evidence)
    if primary.kind in _SAYS_NOTHING and (full := _full_disk(evidence, primary)) is not None:
        primary = full
    if primary.kind == "cuda_oom" and evidence.shared_with:
        primary = replace(primary, kind=SHARED_OOM)
    who = _who(primary, evidence)
    detail = _detail(primary, evidence, hide)
    summary = KINDS[primary.kind].says.format(who=who) + (f" ({detail})" if detail else "")
    step = _AT_STEP.search(primary.text)
    observed = next((seen.step for seen in evidence.observed if seen.kind == primary.kind), None)
    lines = _evidence(evidence, reports, primary, found)[:MAX_EVIDENCE_LINES]
    return Incident(
        kind=primary.kind,
        rank=primary.rank,
        step=observed if observed is not None else int(step[1]) if step else evidence.last_step,
        summary=_line(summary, hide),
        fingerprint=fingerprint(primary.kind, hide(primary.text)),
        evidence_lines=tuple(_line(text, hide) for _, text in lines),
        gpu=primary.gpu,
        contained=primary.contained,
        witnesses=tuple(witness for witness, _ in lines),
    )


_BY_TARGET = {"cancelled": "stopped_outside"}
"""Who ended an attempt elsewhere → kind, where the names differ."""


def _by_target(evidence: Evidence) -> list[Finding]:
    """The run's target ended it, which also explains any message in its logs."""
    record = evidence.exit
    if record is None or record.ended_by is None:
        return []
    kind = _BY_TARGET.get(record.ended_by, record.ended_by)
    if kind not in KINDS:
        return []
    text = record.ended_reason or record.ended_by
    return [Finding(kind, None, Tier.CAUSE, text, detail=record.ended_reason)]


def fingerprint(kind: str, message: str) -> str:
    """Sixteen hexadecimal digits that stay the same when only ranks, numbers, addresses or paths differ."""
    first = next((line for line in without_advice(message).splitlines() if line.strip()), "")
    text = _NUMBERS.sub("#", _ADDRESSES.sub("#", _PATHS.sub("/", first)))
    return hashlib.sha256(f"{kind}\n{' '.join(text.split())}".encode("utf-8", "replace")).hexdigest()[:16]


def _order(finding: Finding) -> tuple[int, bool, float, bool, int]:
    """Causes before symptoms before consequences; a process that cannot be killed before all, for nothing can be
    started in its place; then the earliest; then what is known better."""
    return (
        finding.tier,
        finding.kind != "unkillable",
        math.inf if finding.at is None else finding.at,
        not finding.specific,
        -1 if finding.rank is None else finding.rank,
    )


def _full_disk(evidence: Evidence, primary: Finding) -> Finding | None:
    """Where a run ends without a word on a disk that is full, there was no room for one."""
    free = None if evidence.exit is None else evidence.exit.disk_free_bytes
    if free is None or free >= FULL_BYTES:
        return None
    text = f"{bytes_text(free)} were left on the disk of its logs when it ended"
    return Finding("disk_full", primary.rank, Tier.CAUSE, text, specific=False, detail=text)


def _without_findings(evidence: Evidence) -> Finding:
    record = evidence.exit
    if record is None:
        return Finding("shim_lost", None, Tier.CAUSE, "no exit record")
    text = f"code {record.code}"
    return Finding("unknown", None, Tier.CAUSE, f"ended with {text}", specific=False, detail=text)


_OF_THE_RUN = (
    "hang", "nan_loss", "memory_leak", "unkillable", "stopped_outside", "preempted", "time_limit", "node_fail",
)  # fmt: skip


def _who(finding: Finding, evidence: Evidence) -> str:
    if finding.rank is not None:
        return f"rank {finding.rank}"
    if finding.kind in _OF_THE_RUN:
        return "the run" if finding.kind != "unkillable" else "a process of the run"
    return LAUNCHERS[evidence.launcher].title or "the run"


def _detail(finding: Finding, evidence: Evidence, hide: Callable[[str], str]) -> str | None:
    """What a summary says in parentheses."""
    if finding.kind == SHARED_OOM:
        wanted = _CUDA_WANTED.search(finding.text)
        beside = f"beside {', '.join(evidence.shared_with)}"
        return _at(finding, beside if wanted is None else f"tried to allocate {wanted[1]}, {beside}")
    if finding.kind == "cuda_oom" and (wanted := _CUDA_WANTED.search(finding.text)):
        return _at(finding, f"tried to allocate {wanted[1]}")
    if finding.kind == "host_oom" and (wanted := _HOST_WANTED.search(finding.text)):
        return _at(finding, f"tried to allocate {bytes_text(int(wanted[1]))}")
    if finding.kind == "disk_full" and evidence.exit is not None and evidence.exit.target is not None:
        finding = replace(finding, detail=", ".join(filter(None, (f"on {evidence.exit.target}", finding.detail))))
    if finding.detail is None:
        return None
    # Redacted before it is cut, or half a secret would look like none.
    text = hide(without_advice(finding.detail))
    return text if len(text) <= MAX_DETAIL_CHARACTERS else text[: MAX_DETAIL_CHARACTERS - 1] + "…"


def _at(finding: Finding, text: str) -> str:
    return f"{text}, {finding.where}" if finding.where else text


def _evidence(
    evidence: Evidence, reports: list[LauncherReport], primary: Finding, found: list[Finding]
) -> list[tuple[Witness, str]]:
    others = (other for other in found if other is not primary)
    sources: list[tuple[Witness, Iterable[str]]] = [
        ("exit", _exit_lines(evidence)),
        ("kernel", _kernel_lines(evidence)),
        ("launcher", (line for report in reports for line in _report_lines(report))),
        ("finding", _finding_lines(primary, evidence)),
        ("finding", (line for other in others for line in _other_lines(other, primary, evidence))),
        ("context", _context_lines(evidence, primary)),
    ]
    return [(witness, line) for witness, lines in sources for line in lines]


def _exit_lines(evidence: Evidence) -> Iterator[str]:
    record = evidence.exit
    name = LAUNCHERS[evidence.launcher].title or "the command"
    if record is None:
        yield "exit: no exit record was left"
    elif record.signal is not None:
        yield f"exit: {name} was ended by {signal_name(record.signal)}"
    elif record.code is not None:
        yield f"exit: {name} ended with code {record.code}"
    if record is not None and record.stop_requested:
        yield "exit: a stop had been asked for" + (", and force was needed" if record.forced else "")


def _kernel_lines(evidence: Evidence) -> Iterator[str]:
    record = evidence.exit
    if record is not None and record.oom_victims:
        pids = ", ".join(f"pid {pid}" for pid in record.oom_victims)
        yield f"kernel: its log names as killed for lack of memory {pids}"
    if record is not None and record.oom_killed:
        counts = [
            f"{count} {place}"
            for count, place in (
                (record.oom_kills_cgroup, "in its control group"),
                (record.oom_kills_processes, "in its processes' control groups"),
                (record.oom_kills_host, "on the host"),
            )
            if count
        ]
        yield f"kernel: the OOM killer struck shortly before: {', '.join(counts)}"


def _report_lines(report: LauncherReport) -> Iterator[str]:
    if report.root is not None:
        code = report.root.exit_code
        how = signal_name(-code) if code < 0 else f"code {code}"
        yield f"{report.launcher}: saw rank {report.root.rank} fail first, with {how}"
    for failure in report.failures:
        if failure.pid in report.forced:
            yield f"{report.launcher}: rank {failure.rank} did not react when it was asked to end, and was killed"


def _finding_lines(finding: Finding, evidence: Evidence) -> Iterator[str]:
    who = _who(finding, evidence)
    lines = [line for line in finding.text.splitlines() if line.strip()]
    for line in lines[:4]:
        yield f"{who}: {line.strip()}"
    if len(lines) > 4:
        yield f"{who}: {lines[-1].strip()}"
    if finding.where:
        yield f"{who}: raised at {finding.where}"


def _other_lines(finding: Finding, primary: Finding, evidence: Evidence) -> Iterator[str]:
    who = _who(finding, evidence)
    text = next((line.strip() for line in finding.text.splitlines() if line.strip()), "")
    if finding.tier > primary.tier:
        yield f"{who}, as a consequence: {text}"
    elif fingerprint(finding.kind, finding.text) == fingerprint(primary.kind, primary.text):
        yield f"{who}: the same"
    else:
        yield f"{who}, too: {text}"


def _context_lines(evidence: Evidence, primary: Finding) -> Iterator[str]:
    if evidence.last_step is not None:
        yield f"metrics: the last step was {evidence.last_step}"
    if primary.kind in ("nonzero_exit", "unknown", "killed", "segfault", "shim_lost") and (
        message := last_message(evidence, primary.rank)
    ):
        yield f"last line of its log: {message}"
    for problem in evidence.problems:
        yield f"not readable: {problem}"


def _line(text: str, hide: Callable[[str], str]) -> str:
    """One line without secrets, cleaned and of bounded length."""
    text = clean(" ".join(hide(text).split()))
    return text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 1] + "…"
