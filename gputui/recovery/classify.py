"""Classification: from an attempt's evidence to one incident. Pure, so that stored evidence can be classified again."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.core.units import bytes_text
from gputui.machine.child import signal_name
from gputui.recovery.evidence import Evidence
from gputui.recovery.findings import Finding, gather, last_message, reports_of
from gputui.recovery.kinds import KINDS, SHARED_OOM, Tier
from gputui.recovery.signatures import without_advice
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport

MAX_EVIDENCE_LINES = 20
MAX_LINE_CHARACTERS = 400
MAX_DETAIL_CHARACTERS = 160

# With less free space, a log cannot grow by its next buffer on a file system with large blocks.
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
"""The source of a line of evidence: the exit record, the kernel, the launcher's report, a finding, or the context."""


class Incident(Struct, frozen=True):
    """Why an attempt ended.

    Attributes:
        kind: one of KINDS.
        rank: the rank that failed; None if it was the launcher, the machine or a single process.
        step: the last step of the attempt, or the one in the message; None is unknown.
        summary: one sentence without its full stop.
        fingerprint: identifies the incident independent of ranks, numbers, addresses and paths.
        evidence_lines: the lines that led to it, without control characters; witnesses: the source of each.
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
    """How an attempt ended. ``stop_intended``: a person asked gputui to stop the run.

    A stop is recognized by the stored intent, because its exit status may be that of a crash or a success. An attempt
    with unkillable processes is not stopped.
    """
    record = evidence.exit
    if record is not None and record.is_unkillable:
        return "failed"
    done = record is not None and record.clean and not record.stop_requested
    if stop_intended:
        return "succeeded" if done else "stopped"
    return "succeeded" if done and not any(observation.ended_run for observation in evidence.observed) else "failed"


def classify(evidence: Evidence, hide: Callable[[str], str] = redact_text) -> Incident:
    """The incident that ended an attempt for which `outcome` returns failed.

    The evidence may contain secrets, because a secret's value may identify the cause; ``hide`` redacts the incident's
    texts.
    """
    reports = reports_of(evidence)
    findings = _by_target(evidence) or gather(evidence, reports)
    primary = min(findings, key=_order) if findings else _without_findings(evidence)
    if primary.kind in _SAYS_NOTHING and (full := _full_disk(evidence, primary)) is not None:
        primary = full
    if primary.kind == "cuda_oom" and evidence.shared_with:
        primary = replace(primary, kind=SHARED_OOM)
    who = _who(primary, evidence)
    detail = _detail(primary, evidence, hide)
    summary = KINDS[primary.kind].says.format(who=who) + (f" ({detail})" if detail else "")
    step = _AT_STEP.search(primary.text)
    observed = next((observation.step for observation in evidence.observed if observation.kind == primary.kind), None)
    lines = _evidence(evidence, reports, primary, findings)[:MAX_EVIDENCE_LINES]
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
"""``ended_by`` of a remote attempt → kind, if the names differ."""


def _by_target(evidence: Evidence) -> list[Finding]:
    """A finding if the run's target ended the attempt, which also explains any message in its logs."""
    record = evidence.exit
    if record is None or record.ended_by is None:
        return []
    kind = _BY_TARGET.get(record.ended_by, record.ended_by)
    if kind not in KINDS:
        return []
    text = record.ended_reason or record.ended_by
    return [Finding(kind, None, Tier.CAUSE, text, detail=record.ended_reason)]


def fingerprint(kind: str, message: str) -> str:
    """Sixteen hexadecimal digits, independent of ranks, numbers, addresses and paths in the message."""
    first = next((line for line in without_advice(message).splitlines() if line.strip()), "")
    text = _NUMBERS.sub("#", _ADDRESSES.sub("#", _PATHS.sub("/", first)))
    return hashlib.sha256(f"{kind}\n{' '.join(text.split())}".encode("utf-8", "replace")).hexdigest()[:16]


def _order(finding: Finding) -> tuple[int, bool, float, bool, int]:
    """Sort key: causes before symptoms before consequences; unkillable processes first, because nothing can replace
    them; then the earliest, then the more specific finding."""
    return (
        finding.tier,
        finding.kind != "unkillable",
        math.inf if finding.at is None else finding.at,
        not finding.specific,
        -1 if finding.rank is None else finding.rank,
    )


def _full_disk(evidence: Evidence, primary: Finding) -> Finding | None:
    """A finding if the disk of the logs was full, which explains the lack of a message."""
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
    """The detail in parentheses of a summary."""
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
    # Redacted before it is cut, because half a secret is not recognized.
    text = hide(without_advice(finding.detail))
    return text if len(text) <= MAX_DETAIL_CHARACTERS else text[: MAX_DETAIL_CHARACTERS - 1] + "…"


def _at(finding: Finding, text: str) -> str:
    return f"{text}, {finding.where}" if finding.where else text


def _evidence(
    evidence: Evidence, reports: list[LauncherReport], primary: Finding, findings: list[Finding]
) -> list[tuple[Witness, str]]:
    others = (other for other in findings if other is not primary)
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
    """One redacted line without control characters, of bounded length."""
    text = clean(" ".join(hide(text).split()))
    return text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 1] + "…"
