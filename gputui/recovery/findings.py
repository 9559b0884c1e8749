"""Findings: what each process of an attempt reports about its own end; `classify` selects. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.machine.child import signal_name
from gputui.recovery.evidence import ErrorFile, Evidence, ExitRecord
from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.signatures import match_chain, match_exception, match_lines, terminate_message
from gputui.recovery.stacks import fatal_where
from gputui.recovery.tracebacks import (
    Chain,
    Raised,
    by_rank,
    is_wrapper,
    is_wrapper_line,
    last_chain,
    parse_message,
    shell_code,
    without_commands,
    wrapped_code,
)
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport, RankFailure, parse_reports
from gputui.runs.logs import lines_of

# Lines of other threads and libraries that may follow the exception that ended a process.
TRAILING_LINES = 20
# Without an error file, torchrun dates a death when it notices it, in whole seconds.
NOTICED_LATE_SECONDS = 2.0
# Delay of driver reports, which are polled once a second, relative to exceptions.
SEEN_LATE_SECONDS = 3.0
REMARK_CHARACTERS = 160
# Earlier native messages belong to errors that the process survived.
LAST_LINES = 200

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})
_USAGE_EXIT = 2
_OUR_DOING = frozenset({"killed", "segfault", "stopped_outside"})
_ANNOUNCED = re.compile(r"^\S+: \S")
# How argparse and click reject arguments; the launcher may print more lines after it.
_REFUSED = re.compile(r"^(?:\S+: error|Error): \S")
_IGNORED = re.compile(r"(?m)^Exception ignored (?:in|while)\b.*\n(?:Traceback .*\n(?:\s.*\n)*.*\n?)?")
# Exceptions that only report a failed communication or worker; a native message may have the cause.
_EXPLAINED_BY_LINES = frozenset({"nccl_error", "nccl_timeout", "peer_lost", "dataloader_killed"})


class Finding(Struct, frozen=True):
    """A possible explanation of an end, from one process or from the agent's observations.

    Attributes:
        text: the message; where: the location in the user's code.
        at: seconds, comparable among the findings of one attempt; None is unknown.
        specific: recognised by a signature or an exit status, not merely an exception.
        detail: the detail in parentheses of a summary.
        gpu: the UUID of the faulty GPU; contained: that GPU remains usable.
    """

    kind: str
    rank: int | None
    tier: Tier
    text: str
    at: float | None = None
    where: str | None = None
    specific: bool = True
    detail: str | None = None
    gpu: str | None = None
    contained: bool = False


class _Process(Struct, frozen=True):
    """A process whose end is to be explained. ``code`` is negative for a signal and None if
    unknown."""

    rank: int | None
    code: int | None
    at: float | None = None
    ended_by_launcher: bool = False
    error: ErrorFile | None = None
    traceback: str | None = None
    stderr: str = ""
    stdout: str = ""


def reports_of(evidence: Evidence) -> list[LauncherReport]:
    """The reports of an attempt's launchers in their order; the last one is about the end."""
    return parse_reports(_text(evidence, None, "output")) or [LauncherReport(None)]


def gather(evidence: Evidence, reports: Sequence[LauncherReport]) -> list[Finding]:
    """All possible explanations of the end, unordered."""
    record, only_relays = evidence.exit, LAUNCHERS[evidence.launcher].only_relays
    got_signal = next((each.got_signal for each in reports if each.got_signal is not None), None)
    findings = list(_supervision(evidence, got_signal))
    of_ranks: list[Finding] = []
    # Launchers of several nodes report their own ranks; consecutive ones of a command the same.
    named = {failure.rank: report for report in reports for failure in report.failures}
    ranks = {*_ranks(evidence), *(each.rank for each in evidence.errors if each.rank is not None)}
    for report in reports:
        own = {rank for rank in ranks if named.get(rank, reports[-1]) is report}
        for process in _rank_processes(evidence, report, own, is_last=report is reports[-1]):
            of_ranks += _explain_process(process, evidence)
    findings += of_ranks
    if only_relays:
        for report in reports:
            findings += _explain_launcher(evidence, report)
    else:
        # Launchers without a report: the first rank that the shim saw killed by a signal.
        killed: list[Finding] = []
        if record is not None and not any(report.root for report in reports):
            for rank in record.killed_ranks[:1]:
                killed = _explain_process(_Process(rank.rank, -rank.signal), evidence)
        findings += killed
        findings += _explain_command(evidence, reports[-1], of_ranks, with_ranks=bool(killed))
    kinds = {each.kind for each in evidence.observed}
    is_ended = any(each.ended_run for each in evidence.observed)
    is_stopped = record is not None and (record.stop_requested or record.signal is not None)
    # If gputui ended it for an observation, killed ranks are a consequence; and so they are of a
    # lost GPU, without which the next attempt would fail too.
    consequences = _OUR_DOING if is_ended else {"killed"} if "gpu_lost" in kinds else set()
    # Exceptions during a stop are no cause unless they are specific.
    is_disturbed = is_ended or is_stopped or got_signal is not None
    findings = [
        replace(each, tier=Tier.CONSEQUENCE)
        if each.kind in consequences or (is_disturbed and not each.specific)
        else each
        for each in findings
    ]
    if not any(finding.tier is Tier.CAUSE for finding in findings):
        for report in reports:
            findings += _left_early(evidence, report, named, findings)
    return findings


def last_message(evidence: Evidence, rank: int | None) -> str | None:
    """The last message on standard error of a rank, else of another one."""
    own = [tail for tail in evidence.tails if tail.rank == rank and tail.stream in ("stderr", "output")]
    others = [tail for tail in evidence.tails if tail.rank not in (rank, None) and tail.stream == "stderr"]
    for tail in (*own, *others):
        lines = [each for each in lines_of(tail.text) if each.strip() and not is_wrapper_line(each)]
        announced = [line for line in lines[-5:] if _ANNOUNCED.match(line)]
        if announced or (lines and tail in own):
            return announced[-1] if announced else lines[-1]
    return None


def printed_at_end(evidence: Evidence) -> list[str]:
    """Exceptions that processes printed last although they ended with code 0, such as `rank 0
    printed KeyError: 'x'`. What Python prints for a destructor that fails at exit does not
    count."""
    remarks = []
    for tail in evidence.tails:
        chain = last_chain(_IGNORED.sub("", tail.text), is_wrapper)
        if chain is not None and chain.trailing == 0:
            raised, _ = match_chain(chain)
            who = "it" if tail.rank is None else f"rank {tail.rank}"
            remarks.append(f"{who} printed at its end {clean(_headline(raised)[:REMARK_CHARACTERS])}")
    return remarks


# --- supervision ------------------------------------------------------------------------------


def _supervision(evidence: Evidence, got_signal: int | None) -> Iterator[Finding]:
    """Findings from the agent's observations and the exit record."""
    first, cause = float("-inf"), Tier.CAUSE
    for seen in evidence.observed:
        # Driver reports are ordered by time: they explain only what happened after them.
        at = first if seen.ended_run else seen.at - SEEN_LATE_SECONDS
        tier = Tier.SYMPTOM if seen.distant else KINDS[seen.kind].tier
        found = Finding(seen.kind, seen.rank, tier, seen.text, at, detail=seen.text)
        yield replace(found, gpu=seen.gpu, contained=seen.contained)
    record = evidence.exit
    # An exit record without a stop was written before the reboot: it had ended by itself.
    if evidence.rebooted and (record is None or record.stop_requested):
        yield Finding("interrupted", None, cause, "the boot id has changed", first)
    if record is None:
        return
    if record.error is not None:
        yield Finding("launch_failed", None, cause, record.error, first, detail=record.error)
    if record.lease_conflict:
        text, names = "lock held by another process", ", ".join(record.lease_conflict)
        yield Finding("lease_conflict", None, cause, text, first, detail=names)
    if record.survivors:
        pids = "pid " + ", ".join(map(str, record.survivors))
        yield Finding("unkillable", None, cause, "survives SIGKILL", first, detail=pids)
    if record.stop_requested or got_signal is not None:
        name = signal_name(record.stop_signal or got_signal or signal.SIGTERM)
        yield Finding("stopped_outside", None, Tier.SYMPTOM, "asked to stop", detail=name)


# --- processes --------------------------------------------------------------------------------


def _rank_processes(
    evidence: Evidence, report: LauncherReport, own_ranks: Collection[int], *, is_last: bool
) -> Iterator[_Process]:
    """The ranks in a report's table and output, and ``own_ranks`` with their files."""
    failures = {failure.rank: failure for failure in reversed(report.failures)}
    unranked_output, output_by_rank = by_rank(report.rest)
    errors: dict[int | None, ErrorFile] = {}
    for file in evidence.errors:
        earlier = errors.get(file.rank)
        is_newer = file.at is not None and (earlier is None or earlier.at is None or file.at >= earlier.at)
        if earlier is None or (is_newer and file.rank is not None):
            errors[file.rank] = file
    logged = {tail.rank for tail in evidence.tails}.intersection(own_ranks)
    for rank in sorted({*failures, *output_by_rank, *own_ranks}):
        failure, is_own = failures.get(rank), rank in own_ranks
        is_ended = failure is not None and _ended_by_launcher(failure, report)
        stderr = output_by_rank.get(rank, "") + (_text(evidence, rank, "stderr") if is_own else "")
        error = errors.get(rank) if is_own else None
        if failure is not None and not is_ended and error is None and last_chain(stderr) is None:
            has_failed = failure.exit_code > 0 or -failure.exit_code in _CRASHES
            if rank not in logged and has_failed:
                # Before it joined a process group, its messages have no rank prefix.
                stderr += unranked_output
            is_root = failure is report.root and failure.traceback is None
            if is_root and is_last and not LAUNCHERS[evidence.launcher].only_relays:
                error = errors.get(None)
        yield _Process(
            rank=rank,
            code=failure.exit_code if failure else None,
            at=failure.at if failure else None,
            ended_by_launcher=is_ended,
            error=error,
            traceback=failure.traceback if failure else None,
            stderr=stderr,
            stdout=_text(evidence, rank, "stdout") if is_own else "",
        )


def _explain_command(
    evidence: Evidence, report: LauncherReport, of_ranks: Sequence[Finding], *, with_ranks: bool
) -> list[Finding]:
    """Findings about the command itself, which may be the ranks' launcher. ``with_ranks``: signals
    killed ranks, and a process that starts ranks often kills itself along with them."""
    unranked_output, _ = by_rank(report.rest)
    code, record = None, evidence.exit
    if record is not None:
        code = record.code if record.signal is None else -record.signal
        if LAUNCHERS[evidence.launcher].takes_command and (code or 0) > 128:
            code = shell_code(code or 0)
        if (code or 0) > 0 and (wrapped := wrapped_code(unranked_output)) is not None:
            code = wrapped
    process = _Process(
        rank=None,
        code=code,
        ended_by_launcher=report.ended_itself or (with_ranks and (code or 0) < 0),
        error=next((error for error in evidence.errors if error.rank is None), None),
        stderr=unranked_output if report.root is None else "",
    )
    texts, kinds = {each.text for each in of_ranks}, {each.kind for each in of_ranks}
    found = [each for each in _explain_process(process, evidence) if each.text not in texts]
    if any(finding.tier is Tier.CAUSE for finding in of_ranks):
        return [
            replace(finding, tier=Tier.CONSEQUENCE)
            for finding in found
            if finding.specific and finding.kind not in _OUR_DOING
        ]
    # NCCL's watchdog logs with its rank's prefix, then aborts its process.
    is_watchdog = code == -signal.SIGABRT and bool(kinds & {"nccl_timeout", "nccl_error"})
    implied = {"segfault"} if is_watchdog else set()
    implied |= {"nonzero_exit"} if kinds else set()
    return [finding for finding in found if finding.kind not in implied]


def _explain_process(process: _Process, evidence: Evidence) -> list[Finding]:
    """The best explanation of one process's end; empty if there is none."""
    code, rank, at, record = process.code, process.rank, process.at, evidence.exit
    if code == 0:
        return []
    is_own_end = code is not None and not process.ended_by_launcher
    name = signal_name(-code) if code is not None and code < 0 else ""
    if code is not None and code < 0 and is_own_end and -code not in _CRASHES:
        if record is not None and record.stop_requested:
            return []
        is_oom = -code == signal.SIGKILL and record is not None and record.oom_killed
        kind = "host_oom" if is_oom else "killed"
        detail = "killed by the kernel's OOM killer" if is_oom else name
        at = None if at is None else at - NOTICED_LATE_SECONDS
        return [Finding(kind, rank, Tier.CAUSE, f"ended by {name}", at, detail=detail)]
    candidates = list(_candidates(process, record))
    if candidates:
        return [min(candidates, key=lambda finding: (finding.tier, not finding.specific))]
    if code is None or not is_own_end:
        return []
    if code < 0:
        where = fatal_where(process.stderr)
        detail = f"{name}, {where}" if where else name
        return [Finding("segfault", rank, Tier.CAUSE, f"ended by {name}", at, where, detail=detail)]
    message = last_message(evidence, rank)
    if code == _USAGE_EXIT and evidence.last_step is None:
        lines = lines_of(process.stderr)[-LAST_LINES:]
        message = next((line for line in reversed(lines) if _REFUSED.match(line)), message)
        text, is_known = message or "code 2", bool(message)
        return [Finding("config_error", rank, Tier.CAUSE, text, at, None, is_known, message)]
    text, said = f"ended with code {code}", f"code {code}{f': {message}' if message else ''}"
    return [Finding("nonzero_exit", rank, Tier.CAUSE, text, at, None, False, said)]


def _candidates(process: _Process, record: ExitRecord | None) -> Iterator[Finding]:
    """Possible explanations of an end; among equals the first is the best."""
    chain = _chain(process)
    of_chain = None if chain is None else _of_chain(chain, process, record)
    crashed = process.code is not None and -process.code in _CRASHES
    if of_chain is None or crashed or of_chain.kind in _EXPLAINED_BY_LINES:
        for text in (process.stderr, process.stdout):
            for found, line in match_lines("\n".join(lines_of(text)[-LAST_LINES:])):
                yield Finding(found.kind, process.rank, found.rank, line, process.at, detail=line)
    if of_chain is not None:
        yield of_chain
    thrown = terminate_message(process.stderr) if crashed else None
    known = None if thrown is None else match_exception(thrown)
    if thrown is not None and known is not None:
        detail = _headline(thrown)
        yield Finding(known.kind, process.rank, known.rank, thrown.text, process.at, detail=detail)


def _chain(process: _Process) -> Chain | None:
    """The exception that ended a process, if there is one."""
    if process.error is not None:
        return parse_message(process.error.message, process.error.callstack)
    if process.traceback is not None and (reported := last_chain(process.traceback)) is not None:
        return reported
    chain = last_chain(process.stderr, is_wrapper)
    if chain is None or chain.ranked:
        return chain
    if process.code is None or process.ended_by_launcher:
        # The process did not end by itself, so the exception was caught.
        return None
    allowed = TRAILING_LINES if process.code in (1, -signal.SIGABRT) else 3
    return chain if chain.trailing <= allowed else None


def _of_chain(chain: Chain, process: _Process, record: ExitRecord | None) -> Finding:
    raised, found = match_chain(chain)
    at = process.error.at if process.at is None and process.error else process.at
    detail = ", ".join(part for part in (_headline(raised), raised.where) if part)
    kind, tier = ("user_exception", Tier.CAUSE) if found is None else (found.kind, found.rank)
    if kind == "dataloader_killed" and "signal: Killed" in raised.message and record is not None and record.oom_killed:
        kind = "host_oom"
    is_specific = kind not in ("user_exception", "bad_sample")
    return Finding(kind, process.rank, tier, raised.text, at, raised.where, is_specific, detail)


def _explain_launcher(evidence: Evidence, report: LauncherReport) -> Iterator[Finding]:
    """Findings about the launcher itself, from its messages and its exit status."""
    chain = last_chain(report.rest, is_wrapper)
    if chain is not None:
        raised, found = match_chain(chain)
        line = _headline(raised)
        if found is None:
            yield Finding("unknown", None, Tier.SYMPTOM, raised.text, specific=False, detail=line)
        elif found.kind != "stopped_outside":
            yield Finding(found.kind, None, found.rank, raised.text, detail=line)
    for found, line in match_lines(report.rest):
        yield Finding(found.kind, None, found.rank, line, detail=line)
    record = evidence.exit
    if record is None or record.stop_requested or report.got_signal is not None:
        return
    if record.signal is not None:
        name = signal_name(record.signal)
        kind = "segfault" if record.signal in _CRASHES else "killed"
        if record.signal == signal.SIGKILL and record.oom_killed:
            kind = "host_oom"
        yield Finding(kind, None, Tier.CAUSE, f"ended by {name}", detail=name)
    elif record.code == _USAGE_EXIT and report.root is None:
        message = last_message(evidence, None)
        yield Finding("config_error", None, Tier.CAUSE, message or "code 2", detail=message)


def _left_early(
    evidence: Evidence, report: LauncherReport, failed: Collection[int], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """A finding about ranks that no report has in ``failed``: they ended early with code 0."""
    if report.root is None or not any(each.tier is not Tier.CAUSE for each in findings):
        return
    # A rank that was asked to end may also end with code 0.
    asked_elsewhere = len(report.asked - {failure.pid for failure in report.failures})
    missing = [rank for rank in _ranks(evidence) if rank not in failed]
    if len(missing) > asked_elsewhere:
        text = "ended with code 0"
        yield Finding("rank_left_early", missing[0], Tier.CAUSE, text, detail="code 0")


def _ended_by_launcher(failure: RankFailure, report: LauncherReport) -> bool:
    if failure.exit_code == -signal.SIGKILL:
        return failure.pid in report.forced
    asking = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    return -failure.exit_code in asking and failure.pid in report.asked


def _ranks(evidence: Evidence) -> list[int]:
    return sorted({tail.rank for tail in evidence.tails if tail.rank is not None})


def _text(evidence: Evidence, rank: int | None, stream: str) -> str:
    own = (tail for tail in evidence.tails if tail.rank == rank and tail.stream == stream)
    return "".join(tail.text for tail in own)


def _headline(raised: Raised) -> str:
    """An exception in one line; that of a data loader worker itself instead of its report."""
    lines = [line for line in without_commands(raised.text).splitlines() if line.strip()]
    if any(line.startswith("Original Traceback") for line in lines):
        return lines[-1].strip()
    return lines[0].strip() if lines else raised.type
