"""Classification: from an attempt's evidence to one incident. Pure, so that stored evidence can be
classified again."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.core.units import bytes_text
from gputui.machine.child import signal_name
from gputui.recovery.evidence import Evidence
from gputui.recovery.findings import gather, reports_of
from gputui.recovery.kinds import KINDS, SHARED_OOM, Tier
from gputui.recovery.process_ends import Finding, last_message
from gputui.recovery.signatures import without_advice
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport
from gputui.store.gpu_use import CUDA_OOM

MAX_EVIDENCE_LINES = 20  # a screen
# Room for any sentence; a list cuts it to its width.
MAX_LINE_CHARACTERS = 2000

# With less free space, a log cannot grow by its next buffer on a file system with large blocks.
FULL_BYTES = 1 << 20

Outcome = Literal["succeeded", "stopped", "failed"]

_CUDA_WANTED = re.compile(r"[Tt]ried to allocate (?P<size>[\d.]+ \w+)")
# PyTorch's allocator requests these for any tensor below 1 MiB, and for any below 10 MiB.
_ALLOCATOR_BLOCKS = ("2.00 MiB", "20.00 MiB")
_HOST_WANTED = re.compile(r"tried to allocate (?P<bytes>\d+) bytes")
_AT_STEP = re.compile(r"\bat step (?P<step>\d{1,15})\b")
_PATHS = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@+~-]+)+/?")
_ADDRESSES = re.compile(r"0x[0-9a-fA-F]+")
_NUMBERS = re.compile(r"\d+")

Witness = Literal["exit", "kernel", "launcher", "finding", "context"]
"""The source of a line of evidence: the exit record, the kernel, the launcher's report, a finding,
or the context."""


class Incident(Struct, frozen=True):
    """The cause of an attempt's end.

    Attributes:
        kind: one of KINDS.
        rank: the rank that failed; None if it was the launcher, the machine or a single process.
        step: the last step of the attempt, or the one in the message; None is unknown.
        summary: one sentence without its full stop.
        fingerprint: identifies it independent of ranks, numbers, addresses and paths.
        evidence_lines: the lines that led to it, without control characters.
        gpu: the UUID of the faulty GPU, if the driver named one.
        contained: that GPU may be used again.
        witnesses: the source of each line.
        exit_code: that of the rank that failed first, else of the command; None after a signal.
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
    exit_code: int | None = None


def outcome(evidence: Evidence, *, stop_intended: bool) -> Outcome:
    """The outcome of an attempt; ``stop_intended``: a person asked gputui to stop the run.

    A stop is recognized by the stored intent, because its exit status may be that of a crash or a
    success. An attempt with unkillable processes is not stopped.
    """
    record = evidence.exit
    if record is not None and record.is_unkillable:
        return "failed"
    is_done = record is not None and record.clean and not record.stop_requested
    if stop_intended:
        if is_done:
            return "succeeded"
        return "stopped"
    is_ended = any(observation.ended_run for observation in evidence.observed)
    if is_done and not is_ended:
        return "succeeded"
    return "failed"


def classify(evidence: Evidence, hide: Callable[[str], str] = redact_text) -> Incident:
    """The incident that ended an attempt for which `outcome` returns failed.

    The evidence may contain secrets, because a secret's value may identify the cause; ``hide``
    redacts the incident's texts.
    """
    reports = reports_of(evidence)
    findings = _by_target(evidence) or gather(evidence, reports)
    primary = _primary(findings, evidence, reports)
    lines = [*_evidence(evidence, reports, primary, findings)][:MAX_EVIDENCE_LINES]
    return Incident(
        kind=primary.kind,
        rank=primary.rank,
        step=_step(primary, evidence),
        summary=_line(_summary(primary, findings, evidence), hide),
        fingerprint=fingerprint(primary.kind, hide(primary.text)),
        evidence_lines=tuple(_line(text, hide) for _, text in lines),
        gpu=primary.gpu,
        contained=primary.contained,
        witnesses=tuple(witness for witness, _ in lines),
        exit_code=_exit_code(evidence, reports),
    )


def _primary(findings: Sequence[Finding], evidence: Evidence, reports: Sequence[LauncherReport]) -> Finding:
    """The finding that is nearest to the cause."""
    roots = {report.root.rank for report in reports if report.root is not None}
    primary = _without_findings(evidence)
    if findings:
        primary = min(findings, key=lambda finding: _order(finding, roots))
    free_bytes = None if evidence.exit is None else evidence.exit.disk_free_bytes
    kind = KINDS[primary.kind]
    is_unexplained = kind.seen_in == "status" and kind.fault == "parameters"
    if is_unexplained and free_bytes is not None and free_bytes < FULL_BYTES:
        # The disk of the logs was full, which explains the lack of a message.
        text = f"{bytes_text(free_bytes)} were left on the disk of its logs when it ended"
        return Finding("disk_full", primary.rank, Tier.CAUSE, text, specific=False, detail=text)
    if primary.kind == CUDA_OOM and evidence.shared_with:
        return replace(primary, kind=SHARED_OOM)
    return primary


def _summary(primary: Finding, findings: Sequence[Finding], evidence: Evidence) -> str:
    """``rank 1 ran out of GPU memory (tried to allocate 2.50 GiB, train.py:31)``."""
    says = KINDS[primary.kind].says
    who = _who(primary, evidence)
    ranks = _ranks_alike(primary, findings, evidence)
    if len(ranks) > 1:
        says = says.replace("{who} was", "{who} were").replace(" its ", " their ")
        who = _several(ranks, {tail.rank for tail in evidence.tails} - {None})
    summary = says.format(who=who)
    if detail := _detail(primary, evidence):
        summary += f" ({detail})"
    if primary.kind == "import_error" and evidence.python is not None:
        summary += f"; it was started by {evidence.python}"
    return summary


def _step(primary: Finding, evidence: Evidence) -> int | None:
    """The step of the failure: as it was observed, as the message names it, or the last one."""
    observed = next((cause.step for cause in evidence.observed if cause.kind == primary.kind), None)
    if observed is not None:
        return observed
    if in_text := _AT_STEP.search(primary.text):
        return int(in_text["step"])
    return evidence.last_step


def _exit_code(evidence: Evidence, reports: Sequence[LauncherReport]) -> int | None:
    roots = [report.root.exit_code for report in reports if report.root is not None and report.root.exit_code > 0]
    if roots:
        return roots[-1]
    if evidence.exit is None:
        return None
    return evidence.exit.code


def _by_target(evidence: Evidence) -> list[Finding]:
    """A finding if the run's target ended the attempt, which explains any message in its logs."""
    record = evidence.exit
    if record is None or record.ended_by is None:
        return []
    kind = "stopped_outside" if record.ended_by == "cancelled" else record.ended_by
    text = record.ended_reason or record.ended_by
    if kind not in KINDS:
        return []
    return [Finding(kind, rank=None, tier=Tier.CAUSE, text=text, detail=record.ended_reason)]


def detail_of(summary: str) -> str:
    """The detail of an incident's summary, such as the requested memory and the line of code; "" without one."""
    _, _, detail = summary.partition(" (")
    return detail.removesuffix(")")


def names_request(detail: str) -> bool:
    """Return whether a detail has the size of the tensor for which memory was missing."""
    request = _CUDA_WANTED.search(detail)
    return request is not None and request["size"] not in _ALLOCATOR_BLOCKS


def fingerprint(kind: str, message: str) -> str:
    """Sixteen hexadecimal digits, independent of ranks, numbers, addresses and paths."""
    lines = (line for line in without_advice(message).splitlines() if line.strip())
    text = _NUMBERS.sub("#", _ADDRESSES.sub("#", _PATHS.sub("/", next(lines, ""))))
    data = f"{kind}\n{' '.join(text.split())}".encode("utf-8", "replace")
    return hashlib.sha256(data).hexdigest()[:16]


def _ranks_alike(primary: Finding, findings: Sequence[Finding], evidence: Evidence) -> list[int]:
    """The ranks that failed by the same cause in the same place. Several symptoms are of one cause elsewhere."""
    if primary.tier is not Tier.CAUSE:
        return []
    alike = (finding for finding in findings if (finding.kind, finding.tier) == (primary.kind, primary.tier))
    detail = _detail(primary, evidence)
    same = (finding for finding in alike if _detail(finding, evidence) == detail)
    return sorted({finding.rank for finding in same if finding.rank is not None})


def _several(ranks: Sequence[int], all_ranks: Collection[int | None]) -> str:
    """``both ranks``, ``all 4 ranks`` or ``ranks 0 and 2``."""
    if len(all_ranks) != len(ranks):
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    if len(ranks) == 2:
        return "both ranks"
    return f"all {len(ranks)} ranks"


def _order(finding: Finding, roots: Collection[int]) -> tuple[float, ...]:
    """A sort key by how near a finding is to the cause.

    Causes come before symptoms and consequences; unkillable processes first, because nothing can
    replace them; then the earliest, then the more specific finding, then that of the ranks that
    launchers saw first (``roots``).
    """
    at = math.inf if finding.at is None else finding.at
    rank = -1 if finding.rank is None else finding.rank
    is_beside_roots = finding.rank is not None and rank not in roots
    return (finding.tier, finding.kind != "unkillable", at, not finding.specific, is_beside_roots, rank)


def _without_findings(evidence: Evidence) -> Finding:
    if evidence.exit is None:
        return Finding("shim_lost", rank=None, tier=Tier.CAUSE, text="no exit record")
    code = f"code {evidence.exit.code}"
    text = f"ended with {code}"
    return Finding("unknown", rank=None, tier=Tier.CAUSE, text=text, specific=False, detail=code)


def _who(finding: Finding, evidence: Evidence) -> str:
    if finding.rank is not None:
        return f"rank {finding.rank}"
    match KINDS[finding.kind].subject:
        case "process":
            return "a process of the run"
        case "run":
            return "the run"
        case "launcher":
            return LAUNCHERS[evidence.launcher].title or "the run"


def _detail(finding: Finding, evidence: Evidence) -> str | None:
    """The detail in parentheses of a summary."""
    parts: list[str | None] = []
    stated_in = KINDS[finding.kind].missing_memory
    if stated_in == "units" and (request := _CUDA_WANTED.search(finding.text)):
        parts.append(f"tried to allocate {request['size']}")
    if stated_in == "bytes" and (request := _HOST_WANTED.search(finding.text)):
        parts.append(f"tried to allocate {bytes_text(int(request['bytes']))}")
    if finding.kind == SHARED_OOM:
        parts.append(f"beside {', '.join(evidence.shared_with)}")
    if parts:
        return ", ".join(part for part in (*parts, finding.where) if part)
    if finding.kind == "disk_full" and evidence.exit is not None and evidence.exit.target is not None:
        parts.append(f"on {evidence.exit.target}")
    detail = ", ".join(part for part in (*parts, finding.detail) if part)
    if detail:
        return without_advice(detail)
    return None


def _evidence(
    evidence: Evidence, reports: Sequence[LauncherReport], primary: Finding, findings: Sequence[Finding]
) -> Iterator[tuple[Witness, str]]:
    yield from _exit_lines(evidence)
    for report in reports:
        if report.root is not None:
            code = report.root.exit_code
            how = signal_name(-code) if code < 0 else f"code {code}"
            what = f"saw rank {report.root.rank} fail first, with {how}"
            if primary.rank not in (report.root.rank, None):
                what = f"named rank {report.root.rank} first, with {how}"
            yield "launcher", f"{report.launcher}: {what}"
        for failure in report.failures:
            if failure.pid in report.forced:
                what = "did not react when it was asked to end, and was killed"
                yield "launcher", f"{report.launcher}: rank {failure.rank} {what}"
    who = _who(primary, evidence)
    lines = [line.strip() for line in without_advice(primary.text).splitlines() if line.strip()]
    if len(lines) > 5:
        lines[4:-1] = []
    for line in lines:
        yield "finding", f"{who}: {line}"
    if primary.where:
        yield "finding", f"{who}: raised at {primary.where}"
    primary_print = fingerprint(primary.kind, primary.text)
    for finding in findings:
        if finding is not primary:
            text = next((line.strip() for line in finding.text.splitlines() if line.strip()), "")
            is_same = fingerprint(finding.kind, finding.text) == primary_print
            relation = f", too: {text}"
            if finding.tier > primary.tier:
                relation = f", as a consequence: {text}"
            elif is_same:
                relation = ": the same"
            yield "finding", f"{_who(finding, evidence)}{relation}"
    if evidence.last_step is not None:
        yield "context", f"metrics: the last step was {evidence.last_step}"
    if KINDS[primary.kind].seen_in == "status" and (message := last_message(evidence, primary.rank)):
        yield "context", f"last line of its log: {message}"
    for problem in evidence.problems:
        yield "context", f"not readable: {problem}"


def _exit_lines(evidence: Evidence) -> Iterator[tuple[Witness, str]]:
    record = evidence.exit
    name = LAUNCHERS[evidence.launcher].title or "the command"
    if record is None:
        yield "exit", "exit: no exit record was left"
        return
    if record.signal is not None:
        yield "exit", f"exit: {name} was ended by {signal_name(record.signal)}"
    elif record.code is not None:
        yield "exit", f"exit: {name} ended with code {record.code}"
    if record.stop_requested:
        forced = ", and force was needed" if record.forced else ""
        yield "exit", f"exit: a stop had been asked for{forced}"
    if record.oom_killed:
        counts = (
            (record.oom_kills_cgroup, "in its control group"),
            (record.oom_kills_host, "on the host"),
        )
        places = ", ".join(f"{count} {place}" for count, place in counts if count)
        yield "kernel", f"kernel: the OOM killer struck shortly before: {places}"


def _line(text: str, hide: Callable[[str], str]) -> str:
    """One line without control characters, redacted before it is cut, because half a secret is not recognized."""
    return _cut(clean(" ".join(hide(text).split())), MAX_LINE_CHARACTERS)


def _cut(text: str, most: int) -> str:
    """A text of at most ``most`` characters, cut at the end of a word if it has any."""
    if len(text) <= most:
        return text
    head = text[: most - 1]
    return (head.rpartition(" ")[0] or head) + "…"
