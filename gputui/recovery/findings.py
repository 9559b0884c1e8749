"""What each process of an attempt says about its own end. Pure; which of it is the cause is decided in `classify`."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gputui.host.child import signal_name
from gputui.recovery.evidence import ErrorFile, Evidence, ExitRecord
from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.signatures import match_chain, match_exception, match_lines, terminate_message
from gputui.recovery.tracebacks import Chain, Raised, by_rank, fatal_where, last_chain, parse_message
from gputui.recovery.wrappers import is_wrapper, is_wrapper_line, without_commands, wrapped_code
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport, RankFailure, parse_reports
from gputui.runs.logs import lines_of

# Lines that may follow the exception that ended a process: other threads and libraries saying good-bye.
TRAILING_LINES = 20
# torchrun stamps a death that left no error file when it notices it, in whole seconds; exceptions when they are raised.
NOTICED_LATE_SECONDS = 2.0
# The driver is asked once a second, and what a rank raises is stamped at once.
SEEN_LATE_SECONDS = 3.0
# Native messages further up belong to something that the process survived.
LAST_LINES = 200

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})
_SHELL_SIGNAL_BASE = 128  # a shell ends with 128 + N when signal N ended its last command
_USAGE_EXIT = 2
_OUR_DOING = frozenset({"killed", "segfault", "stopped_outside"})
# PyTorch's torch/csrc/DataLoader.cpp.
_WORKER = re.compile(r"DataLoader worker \(pid (\d+)\)")
_ANNOUNCED = re.compile(r"^\S+: \S")
# How argparse and click refuse arguments, also where the launcher prints more after it.
_REFUSED = re.compile(r"^(?:\S+: error|Error): \S")
# Where the exception only says that communication or a worker failed, a native message may say why.
_EXPLAINED_BY_LINES = frozenset({"nccl_error", "nccl_timeout", "peer_lost", "dataloader_killed"})


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process, or the supervision, says about an end.

    Attributes:
        text: the message that it is known by; where: the place in the user's code.
        at: seconds, comparable among the findings of one attempt; None is unknown.
        specific: recognised by a signature or an exit status, not merely some exception.
        detail: what a summary says in parentheses.
        gpu: the UUID of the GPU whose fault it was; contained: that GPU may be used again as it is.
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


@dataclass(frozen=True, slots=True)
class _Process:
    """One process whose end is to be explained. ``code`` is negative for a signal and None if it is unknown; so is
    ``pid`` where another process passed the code on."""

    rank: int | None
    code: int | None
    at: float | None
    ended_by_launcher: bool
    error: ErrorFile | None
    traceback: str | None
    stderr: str
    stdout: str
    pid: int | None = None


def reports_of(evidence: Evidence) -> list[LauncherReport]:
    """What the launchers of an attempt say of the end, in their order; the last is of what ended it."""
    return parse_reports(_text(evidence, None, "output")) or [LauncherReport(None)]


def gather(evidence: Evidence, reports: Sequence[LauncherReport]) -> list[Finding]:
    """Everything that explains the end, in no particular order."""
    got_signal = next((report.got_signal for report in reports if report.got_signal is not None), None)
    found = list(_supervision(evidence, got_signal))
    of_ranks: list[Finding] = []
    # Launchers of several nodes each report their own ranks; those of one command after the other name the same.
    named = {failure.rank: report for report in reports for failure in report.failures}
    ranks = {*_ranks(evidence), *(file.rank for file in evidence.errors if file.rank is not None)}
    for report in reports:
        own = {rank for rank in ranks if named.get(rank, reports[-1]) is report}
        for process in _ranks_processes(evidence, report, own, is_last=report is reports[-1]):
            of_ranks += _of_process(process, evidence)
    found += of_ranks
    if LAUNCHERS[evidence.launcher].only_relays:
        for report in reports:
            found += _of_launcher(evidence, report)
    else:
        killed = [] if any(report.root for report in reports) else _killed_ranks(evidence)
        found += killed + _of_command(evidence, reports[-1], of_ranks, with_ranks=bool(killed))
    disturbed = (
        any(seen.ended_run for seen in evidence.observed)
        or got_signal is not None
        or (evidence.exit is not None and (evidence.exit.stop_requested or evidence.exit.signal is not None))
    )
    if any(seen.ended_run for seen in evidence.observed):
        # gputui ended it for what it saw: that ranks were killed by signals then says nothing more.
        found = [
            replace(finding, tier=Tier.CONSEQUENCE) if finding.kind in _OUR_DOING else finding for finding in found
        ]
    if any(seen.kind == "gpu_lost" for seen in evidence.observed):
        # Who kills a rank says nothing of why, and without another GPU the next attempt would fail as well.
        found = [replace(finding, tier=Tier.CONSEQUENCE) if finding.kind == "killed" else finding for finding in found]
    if disturbed:
        # What ranks raise while they are being ended is no cause, unless it is a known one.
        found = [finding if finding.specific else replace(finding, tier=Tier.CONSEQUENCE) for finding in found]
    if not any(finding.tier is Tier.CAUSE for finding in found):
        for report in reports:
            found += _left_early(evidence, report, named, found)
    return found


def last_message(evidence: Evidence, rank: int | None) -> str | None:
    """The last thing that a rank, else another one, printed on standard error."""
    own = [tail for tail in evidence.tails if tail.rank == rank and tail.stream in ("stderr", "output")]
    others = [
        tail for tail in evidence.tails if tail.rank != rank and tail.rank is not None and tail.stream == "stderr"
    ]
    for tail in (*own, *others):
        lines = [line for line in lines_of(tail.text) if line.strip() and not is_wrapper_line(line)]
        announced = [line for line in lines[-5:] if _ANNOUNCED.match(line)]
        if announced or (lines and tail in own):
            return announced[-1] if announced else lines[-1]
    return None


# --- the parts ------------------------------------------------------------------------------------------------------


def _supervision(evidence: Evidence, got_signal: int | None) -> Iterator[Finding]:
    """What gputui itself saw, and what the attempt's exit record says."""
    for seen in evidence.observed:
        # Driver reports are ordered by time: they cause what happened after them, not before.
        at = float("-inf") if seen.ended_run else seen.at - SEEN_LATE_SECONDS
        tier = Tier.SYMPTOM if seen.distant else KINDS[seen.kind].tier
        yield Finding(
            seen.kind, seen.rank, tier, seen.text, at, detail=seen.text, gpu=seen.gpu, contained=seen.contained
        )
    record = evidence.exit
    # An exit record without a stop was written before: then the attempt had ended by itself.
    if evidence.rebooted and (record is None or record.stop_requested):
        yield Finding("interrupted", None, Tier.CAUSE, "the boot id has changed", float("-inf"))
    if record is None:
        return
    if record.error is not None:
        yield Finding("launch_failed", None, Tier.CAUSE, record.error, float("-inf"), detail=record.error)
    if record.lease_conflict:
        names = ", ".join(record.lease_conflict)
        yield Finding("lease_conflict", None, Tier.CAUSE, "lock held by another process", float("-inf"), detail=names)
    if record.survivors:
        pids = ", ".join(map(str, record.survivors))
        yield Finding("unkillable", None, Tier.CAUSE, "survives SIGKILL", float("-inf"), detail=f"pid {pids}")
    if record.stop_requested or got_signal is not None:
        number = record.stop_signal or got_signal or signal.SIGTERM
        yield Finding("stopped_outside", None, Tier.SYMPTOM, "asked to stop", None, detail=signal_name(number))


def _ranks_processes(
    evidence: Evidence, report: LauncherReport, own: Collection[int], *, is_last: bool
) -> Iterator[_Process]:
    """The ranks that a report is about, by its table, their prefixes in the output, and, for those in ``own``, their
    logs and error files."""
    failures = {failure.rank: failure for failure in reversed(report.failures)}
    rest, printed = by_rank(report.rest)
    errors: dict[int, ErrorFile] = {}
    for file in evidence.errors:
        rank = file.rank
        if rank is not None and rank in own and (rank not in errors or _newer(file, errors[rank])):
            errors[rank] = file
    copy = next((error for error in evidence.errors if error.rank is None), None) if is_last else None
    logged = {tail.rank for tail in evidence.tails}.intersection(own)
    for rank in sorted({*failures, *printed, *own}):
        failure = failures.get(rank)
        asked = failure is not None and _ended_by_launcher(failure, report)
        stderr = printed.get(rank, "") + (_text(evidence, rank, "stderr") if rank in own else "")
        error = errors.get(rank)
        if failure is not None and not asked and error is None and last_chain(stderr) is None:
            if rank not in logged and (failure.exit_code > 0 or -failure.exit_code in _CRASHES):
                # It had no group of ranks yet, whose messages carry the rank.
                stderr += rest
            if failure is report.root and failure.traceback is None and not LAUNCHERS[evidence.launcher].only_relays:
                error = copy
        yield _Process(
            rank=rank,
            code=failure.exit_code if failure else None,
            at=failure.at if failure else None,
            ended_by_launcher=asked,
            error=error,
            traceback=failure.traceback if failure else None,
            stderr=stderr,
            stdout=_text(evidence, rank, "stdout") if rank in own else "",
            pid=failure.pid or None if failure else None,
        )


def _newer(one: ErrorFile, other: ErrorFile) -> bool:
    return one.at is not None and (other.at is None or one.at >= other.at)


def _killed_ranks(evidence: Evidence) -> list[Finding]:
    """The first of the ranks that a signal ended, as the shim saw it: their launcher reported nothing."""
    killed = () if evidence.exit is None else evidence.exit.killed_ranks
    return [
        finding
        for one in killed[:1]
        for finding in _of_process(_Process(one.rank, -one.signal, None, False, None, None, "", "", one.pid), evidence)
    ]


def _of_command(
    evidence: Evidence, report: LauncherReport, of_ranks: Sequence[Finding], *, with_ranks: bool
) -> list[Finding]:
    """What the command itself says, where what its ranks say does not explain the end: it may be their launcher.
    ``with_ranks``: signals ended ranks, and whoever starts ranks itself often ends itself with them."""
    rest, _ = by_rank(report.rest)
    code = pid = None
    if evidence.exit is not None:
        pid = evidence.exit.pid
        code = -evidence.exit.signal if evidence.exit.signal is not None else evidence.exit.code
        if LAUNCHERS[evidence.launcher].takes_command and code is not None and code > _SHELL_SIGNAL_BASE:
            code, pid = (-(code - _SHELL_SIGNAL_BASE), None) if code - _SHELL_SIGNAL_BASE < signal.NSIG else (code, pid)
        if code is not None and code > 0 and (wrapped := wrapped_code(rest)) is not None:
            code, pid = wrapped, None
    process = _Process(
        rank=None,
        code=code,
        at=None,
        ended_by_launcher=report.ended_itself or (with_ranks and code is not None and code < 0),
        error=next((error for error in evidence.errors if error.rank is None), None),
        traceback=None,
        stderr=rest if report.root is None else "",
        stdout="",
        pid=pid,
    )
    texts = {finding.text for finding in of_ranks}
    found = [finding for finding in _of_process(process, evidence) if finding.text not in texts]
    if any(finding.tier is Tier.CAUSE for finding in of_ranks):
        return [replace(one, tier=Tier.CONSEQUENCE) for one in found if one.specific and one.kind not in _OUR_DOING]
    kinds = {one.kind for one in of_ranks}
    # NCCL's watchdog writes with its rank's prefix, and aborts its own process.
    is_watchdog = code == -signal.SIGABRT and bool(kinds & {"nccl_timeout", "nccl_error"})
    void = {"nonzero_exit"} if kinds else set()
    return [one for one in found if one.kind not in void and not (is_watchdog and one.kind == "segfault")]


def _of_process(process: _Process, evidence: Evidence) -> list[Finding]:
    """The best explanation of one process's end; none where it says nothing."""
    code = process.code
    record = evidence.exit
    stopping = record is not None and record.stop_requested
    if code == 0:
        return []
    if code is not None and code < 0 and not process.ended_by_launcher:
        number = -code
        if number not in _CRASHES:
            if stopping:
                return []
            name = signal_name(number)
            out_of_memory = number == signal.SIGKILL and record is not None and record.killed_for_memory(process.pid)
            kind = "host_oom" if out_of_memory else "killed"
            detail = "killed by the kernel's OOM killer" if out_of_memory else name
            at = None if process.at is None else process.at - NOTICED_LATE_SECONDS
            return [Finding(kind, process.rank, Tier.CAUSE, f"ended by {name}", at, detail=detail)]
    candidates = list(_candidates(process, record))
    if candidates:
        return [min(candidates, key=lambda finding: (finding.tier, not finding.specific))]
    if code is None or process.ended_by_launcher:
        return []
    if code < 0:
        name = signal_name(-code)
        where = fatal_where(process.stderr)
        detail = f"{name}, {where}" if where else name
        return [Finding("segfault", process.rank, Tier.CAUSE, f"ended by {name}", process.at, where, detail=detail)]
    message = last_message(evidence, process.rank)
    if code == _USAGE_EXIT and evidence.last_step is None:
        refused = [line for line in lines_of(process.stderr)[-LAST_LINES:] if _REFUSED.match(line)]
        message = refused[-1] if refused else message
        return [
            Finding(
                "config_error", process.rank, Tier.CAUSE, message or "code 2", process.at, None, bool(message), message
            )
        ]
    return [_exit_code(process, code)]


def _exit_code(process: _Process, code: int) -> Finding:
    return Finding(
        "nonzero_exit", process.rank, Tier.CAUSE, f"ended with code {code}", process.at, None, False, f"code {code}"
    )


def _candidates(process: _Process, record: ExitRecord | None) -> Iterator[Finding]:
    """What may explain an end; among equals the first is the best."""
    chain = _chain(process)
    of_chain = None if chain is None else _of_chain(chain, process, record)
    crashed = process.code is not None and -process.code in _CRASHES
    if of_chain is None or crashed or of_chain.kind in _EXPLAINED_BY_LINES:
        for text in (process.stderr, process.stdout):
            for signature, line in match_lines("\n".join(lines_of(text)[-LAST_LINES:])):
                yield Finding(signature.kind, process.rank, signature.rank, line, process.at, detail=line)
    if of_chain is not None:
        yield of_chain
    if crashed and (thrown := terminate_message(process.stderr)) is not None:
        known = match_exception(thrown)
        if known is not None:
            detail = _first_line(thrown)
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
        # It would have ended by it; as it did not, the exception was caught.
        return None
    allowed = TRAILING_LINES if process.code in (1, -signal.SIGABRT) else 3
    return chain if chain.trailing <= allowed else None


def _of_chain(chain: Chain, process: _Process, record: ExitRecord | None) -> Finding:
    raised, signature = match_chain(chain)
    at = process.at if process.at is not None else (process.error.at if process.error else None)
    detail = ", ".join(part for part in (_first_line(raised), raised.where) if part)
    if signature is None:
        return Finding("user_exception", process.rank, Tier.CAUSE, raised.text, at, raised.where, False, detail)
    kind = signature.kind
    if kind == "dataloader_killed" and record is not None and "signal: Killed" in raised.message:
        worker = _WORKER.search(raised.message)
        if record.killed_for_memory(None if worker is None else int(worker[1])):
            kind = "host_oom"
    specific = kind != "bad_sample"
    return Finding(kind, process.rank, signature.rank, raised.text, at, raised.where, specific, detail)


def _of_launcher(evidence: Evidence, report: LauncherReport) -> Iterator[Finding]:
    """What torchrun says about itself, and how it ended."""
    chain = last_chain(report.rest, is_wrapper)
    if chain is not None:
        raised, signature = match_chain(chain)
        if signature is None:
            yield Finding("unknown", None, Tier.SYMPTOM, raised.text, None, None, False, _first_line(raised))
        elif signature.kind != "stopped_outside":
            yield Finding(signature.kind, None, signature.rank, raised.text, detail=_first_line(raised))
    for signature, line in match_lines(report.rest):
        yield Finding(signature.kind, None, signature.rank, line, detail=line)
    record = evidence.exit
    if record is None or record.stop_requested or report.got_signal is not None:
        return
    if record.signal is not None:
        name = signal_name(record.signal)
        kind = "segfault" if record.signal in _CRASHES else "killed"
        if record.signal == signal.SIGKILL and record.killed_for_memory(record.pid):
            kind = "host_oom"
        yield Finding(kind, None, Tier.CAUSE, f"ended by {name}", detail=name)
    elif record.code == _USAGE_EXIT and report.root is None:
        message = last_message(evidence, None)
        yield Finding("config_error", None, Tier.CAUSE, message or "code 2", detail=message)


def _left_early(
    evidence: Evidence, report: LauncherReport, failed: Collection[int], found: Sequence[Finding]
) -> Iterator[Finding]:
    """Ranks that torchrun does not call failed although the others lost them: they had ended with code 0. ``failed``
    are those that some report calls so."""
    if report.root is None or not any(finding.tier is not Tier.CAUSE for finding in found):
        return
    # A rank that was asked to end may have done so with code 0 as well.
    asked_elsewhere = len(report.asked - {failure.pid for failure in report.failures})
    missing = [rank for rank in _ranks(evidence) if rank not in failed]
    if len(missing) > asked_elsewhere:
        yield Finding("rank_left_early", missing[0], Tier.CAUSE, "ended with code 0", detail="code 0")


def _ended_by_launcher(failure: RankFailure, report: LauncherReport) -> bool:
    if failure.exit_code == -signal.SIGKILL:
        return failure.pid in report.forced
    return failure.exit_code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT) and (
        failure.pid in report.asked
    )


def _ranks(evidence: Evidence) -> list[int]:
    return sorted({tail.rank for tail in evidence.tails if tail.rank is not None})


def _text(evidence: Evidence, rank: int | None, stream: str) -> str:
    return "".join(tail.text for tail in evidence.tails if tail.rank == rank and tail.stream == stream)


def _first_line(raised: Raised) -> str:
    """An exception in one line; what a data loader worker raised in place of the report that it did."""
    lines = [line for line in without_commands(raised.text).splitlines() if line.strip()]
    if any(line.startswith("Original Traceback") for line in lines):
        return lines[-1].strip()
    return lines[0].strip() if lines else raised.type
