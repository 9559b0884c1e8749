"""Findings: what each process of an attempt reports about its own end. Pure; `classify` selects the cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.machine.child import signal_name
from gputui.recovery.evidence import ErrorFile, Evidence, ExitRecord
from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.signatures import match_chain, match_exception, match_lines, terminate_message
from gputui.recovery.tracebacks import Chain, Raised, by_rank, fatal_where, last_chain, parse_message
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport, RankFailure, parse_reports
from gputui.runs.logs import lines_of

_TYPES = frozenset({"ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException"})
_COMMAND_ENDED = re.compile(
    r"Command (?P<command>.*) (?:returned non-zero exit status (?P<code>\d+)"
    r"|died with (?:<Signals\.\w+: (?P<signal>\d+)>|unknown signal (?P<unknown>\d+)))\.",
    re.DOTALL,
)
_MAKE = re.compile(
    r"^make(?:\[\d+\])?: \*\*\* \[.*\] (?:Error (?P<code>\d+)|(?P<signal>[A-Z][\w ]*?)(?: \(core dumped\))?)$"
)
# DeepSpeed's launcher always names the command that it started last, so its message does not identify a rank.
_DEEPSPEED = re.compile(r"\] exits with return code = (?P<code>-?\d+)$")
# GNU make and shells name a signal as strsignal(3) does.
_SIGNALS = {signal.strsignal(number.value): number.value for number in signal.Signals}
_LINE = re.compile(
    r"^(?:make(?:\[\d+\])?: (?:\*\*\* \[|Leaving directory|Entering directory)"
    r"|\S+: line \d+: +\d+ (?:Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction)\b"
    r"|(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException): )"
)


def is_wrapper(chain: Chain) -> bool:
    """Whether an exception only reports the end of a child process. In a rank it counts, because a child may be what
    ended the rank."""
    return not chain.ranked and chain.raised[-1].type.rsplit(".", 1)[-1] in _TYPES


def is_wrapper_line(line: str) -> bool:
    """Whether a line only reports the end of a child process."""
    return _LINE.match(line) is not None


def wrapped_code(text: str) -> int | None:
    """The exit code of the innermost process that a wrapper reports; negative for a signal, None without a report."""
    for line in lines_of(text):
        if (match := _MAKE.match(line)) is not None:
            if match["code"] is not None:
                return _of_shell(int(match["code"]))
            if match["signal"] in _SIGNALS:
                return -_SIGNALS[match["signal"]]
        elif (match := _DEEPSPEED.search(line)) is not None:
            return _of_shell(int(match["code"]))
        elif is_wrapper_line(line) and (match := _COMMAND_ENDED.search(line)) is not None:
            number = match["signal"] or match["unknown"]
            return -int(number) if number else _of_shell(int(match["code"]))
    return None


def without_commands(text: str) -> str:
    """The message with a command line replaced by the program's name."""
    match = _COMMAND_ENDED.search(text)
    if match is None:
        return text
    words = re.findall(r"[^\s\[\]',\"]+", match["command"])
    name = PurePath(words[0]).name if words else "command"
    number = match["signal"] or match["unknown"]
    how = f"ended by signal {number}" if number else f"ended with code {match['code']}"
    return f"{text[: match.start()]}{name} {how}{text[match.end() :]}"


def _of_shell(code: int) -> int:
    """The exit code behind a shell's, which is 128 + N if signal N killed its last command."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code


# Lines of other threads and libraries that may follow the exception that ended a process.
TRAILING_LINES = 20
# Without an error file, torchrun dates a death when it notices it, in whole seconds; exceptions are dated at once.
NOTICED_LATE_SECONDS = 2.0
# Delay of driver reports, which are polled once a second, relative to exceptions.
SEEN_LATE_SECONDS = 3.0
REMARK_CHARACTERS = 160
# Earlier native messages belong to errors that the process survived.
LAST_LINES = 200

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})
_SHELL_SIGNAL_BASE = 128  # a shell exits with 128 + N if signal N killed its last command
_USAGE_EXIT = 2
_OUR_DOING = frozenset({"killed", "segfault", "stopped_outside"})
# PyTorch's torch/csrc/DataLoader.cpp.
_WORKER = re.compile(r"DataLoader worker \(pid (\d+)\)")
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
    """A process whose end is to be explained. ``code`` is negative for a signal and None if unknown; ``pid`` is None if
    another process passed the code on."""

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
    """The reports of an attempt's launchers in their order; the last one is about the end."""
    return parse_reports(_text(evidence, None, "output")) or [LauncherReport(None)]


def gather(evidence: Evidence, reports: Sequence[LauncherReport]) -> list[Finding]:
    """All possible explanations of the end, unordered."""
    got_signal = next((report.got_signal for report in reports if report.got_signal is not None), None)
    findings = list(_supervision(evidence, got_signal))
    rank_findings: list[Finding] = []
    # Launchers of several nodes report their own ranks; consecutive launchers of one command report the same ranks.
    named = {failure.rank: report for report in reports for failure in report.failures}
    ranks = {*_ranks(evidence), *(file.rank for file in evidence.errors if file.rank is not None)}
    for report in reports:
        own_ranks = {rank for rank in ranks if named.get(rank, reports[-1]) is report}
        for process in _ranks_processes(evidence, report, own_ranks, is_last=report is reports[-1]):
            rank_findings += _explain_process(process, evidence)
    findings += rank_findings
    if LAUNCHERS[evidence.launcher].only_relays:
        for report in reports:
            findings += _explain_launcher(evidence, report)
    else:
        killed = [] if any(report.root for report in reports) else _killed_ranks(evidence)
        findings += killed + _explain_command(evidence, reports[-1], rank_findings, with_ranks=bool(killed))
    disturbed = (
        any(observation.ended_run for observation in evidence.observed)
        or got_signal is not None
        or (evidence.exit is not None and (evidence.exit.stop_requested or evidence.exit.signal is not None))
    )
    if any(observation.ended_run for observation in evidence.observed):
        # gputui ended it for an observation, so killed ranks are a consequence.
        findings = [
            replace(finding, tier=Tier.CONSEQUENCE) if finding.kind in _OUR_DOING else finding for finding in findings
        ]
    if any(observation.kind == "gpu_lost" for observation in evidence.observed):
        # A lost GPU explains killed ranks; without another GPU the next attempt would fail too.
        findings = [
            replace(finding, tier=Tier.CONSEQUENCE) if finding.kind == "killed" else finding for finding in findings
        ]
    if disturbed:
        # Exceptions during a stop are no cause unless they are specific.
        findings = [finding if finding.specific else replace(finding, tier=Tier.CONSEQUENCE) for finding in findings]
    if not any(finding.tier is Tier.CAUSE for finding in findings):
        for report in reports:
            findings += _left_early(evidence, report, named, findings)
    return findings


def last_message(evidence: Evidence, rank: int | None) -> str | None:
    """The last message on standard error of a rank, else of another one."""
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


def printed_at_end(evidence: Evidence) -> list[str]:
    """Exceptions that processes printed last although they ended with code 0, such as `rank 0 printed KeyError: 'x'`.
    What Python prints for a destructor that fails at exit does not count."""
    remarks = []
    for tail in evidence.tails:
        chain = last_chain(_IGNORED.sub("", tail.text), is_wrapper)
        if chain is not None and chain.trailing == 0:
            raised, _ = match_chain(chain)
            who = "it" if tail.rank is None else f"rank {tail.rank}"
            remarks.append(f"{who} printed at its end {clean(_first_line(raised)[:REMARK_CHARACTERS])}")
    return remarks


# --- the parts ------------------------------------------------------------------------------------------------------


def _supervision(evidence: Evidence, got_signal: int | None) -> Iterator[Finding]:
    """Findings from the agent's observations and the exit record."""
    for observation in evidence.observed:
        # Driver reports are ordered by time: they explain only what happened after them.
        at = float("-inf") if observation.ended_run else observation.at - SEEN_LATE_SECONDS
        tier = Tier.SYMPTOM if observation.distant else KINDS[observation.kind].tier
        yield Finding(
            observation.kind,
            observation.rank,
            tier,
            observation.text,
            at,
            detail=observation.text,
            gpu=observation.gpu,
            contained=observation.contained,
        )
    record = evidence.exit
    # An exit record without a stop was written before the reboot: the attempt had ended by itself.
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
    evidence: Evidence, report: LauncherReport, own_ranks: Collection[int], *, is_last: bool
) -> Iterator[_Process]:
    """The ranks that a report is about: from its table, from prefixes in the output, and for those in ``own`` from
    their logs and error files."""
    failures = {failure.rank: failure for failure in reversed(report.failures)}
    unranked_output, output_by_rank = by_rank(report.rest)
    errors: dict[int, ErrorFile] = {}
    for file in evidence.errors:
        rank = file.rank
        if rank is None or rank not in own_ranks:
            continue
        earlier = errors.get(rank)
        if earlier is None or (file.at is not None and (earlier.at is None or file.at >= earlier.at)):
            errors[rank] = file
    command_error = next((error for error in evidence.errors if error.rank is None), None) if is_last else None
    logged = {tail.rank for tail in evidence.tails}.intersection(own_ranks)
    for rank in sorted({*failures, *output_by_rank, *own_ranks}):
        failure = failures.get(rank)
        ended_by_launcher = failure is not None and _ended_by_launcher(failure, report)
        stderr = output_by_rank.get(rank, "") + (_text(evidence, rank, "stderr") if rank in own_ranks else "")
        error = errors.get(rank)
        if failure is not None and not ended_by_launcher and error is None and last_chain(stderr) is None:
            if rank not in logged and (failure.exit_code > 0 or -failure.exit_code in _CRASHES):
                # Before it joined a process group, its messages have no rank prefix.
                stderr += unranked_output
            if failure is report.root and failure.traceback is None and not LAUNCHERS[evidence.launcher].only_relays:
                error = command_error
        yield _Process(
            rank=rank,
            code=failure.exit_code if failure else None,
            at=failure.at if failure else None,
            ended_by_launcher=ended_by_launcher,
            error=error,
            traceback=failure.traceback if failure else None,
            stderr=stderr,
            stdout=_text(evidence, rank, "stdout") if rank in own_ranks else "",
            pid=failure.pid or None if failure else None,
        )


def _killed_ranks(evidence: Evidence) -> list[Finding]:
    """A finding about the first rank that the shim saw killed by a signal, for launchers without a report."""
    killed = () if evidence.exit is None else evidence.exit.killed_ranks
    return [
        finding
        for rank in killed[:1]
        for finding in _explain_process(
            _Process(rank.rank, -rank.signal, None, False, None, None, "", "", rank.pid), evidence
        )
    ]


def _explain_command(
    evidence: Evidence, report: LauncherReport, rank_findings: Sequence[Finding], *, with_ranks: bool
) -> list[Finding]:
    """Findings about the command itself, which may be the ranks' launcher. ``with_ranks``: signals killed ranks, and a
    process that starts ranks often kills itself along with them."""
    unranked_output, _ = by_rank(report.rest)
    code = pid = None
    if evidence.exit is not None:
        pid = evidence.exit.pid
        code = -evidence.exit.signal if evidence.exit.signal is not None else evidence.exit.code
        if LAUNCHERS[evidence.launcher].takes_command and code is not None and code > _SHELL_SIGNAL_BASE:
            code, pid = (-(code - _SHELL_SIGNAL_BASE), None) if code - _SHELL_SIGNAL_BASE < signal.NSIG else (code, pid)
        if code is not None and code > 0 and (wrapped := wrapped_code(unranked_output)) is not None:
            code, pid = wrapped, None
    process = _Process(
        rank=None,
        code=code,
        at=None,
        ended_by_launcher=report.ended_itself or (with_ranks and code is not None and code < 0),
        error=next((error for error in evidence.errors if error.rank is None), None),
        traceback=None,
        stderr=unranked_output if report.root is None else "",
        stdout="",
        pid=pid,
    )
    texts = {finding.text for finding in rank_findings}
    findings = [finding for finding in _explain_process(process, evidence) if finding.text not in texts]
    if any(finding.tier is Tier.CAUSE for finding in rank_findings):
        return [
            replace(finding, tier=Tier.CONSEQUENCE)
            for finding in findings
            if finding.specific and finding.kind not in _OUR_DOING
        ]
    kinds = {finding.kind for finding in rank_findings}
    # NCCL's watchdog logs with its rank's prefix, then aborts its process.
    is_watchdog = code == -signal.SIGABRT and bool(kinds & {"nccl_timeout", "nccl_error"})
    implied_kinds = {"nonzero_exit"} if kinds else set()
    return [
        finding
        for finding in findings
        if finding.kind not in implied_kinds and not (is_watchdog and finding.kind == "segfault")
    ]


def _explain_process(process: _Process, evidence: Evidence) -> list[Finding]:
    """The best explanation of one process's end; empty if there is none."""
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
    text, said = f"ended with code {code}", f"code {code}" + (f": {message}" if message else "")
    return [Finding("nonzero_exit", process.rank, Tier.CAUSE, text, process.at, None, False, said)]


def _candidates(process: _Process, record: ExitRecord | None) -> Iterator[Finding]:
    """Possible explanations of an end; among equals the first is the best."""
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
        # The process did not end by itself, so the exception was caught.
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


def _explain_launcher(evidence: Evidence, report: LauncherReport) -> Iterator[Finding]:
    """Findings about the launcher itself, from its messages and its exit status."""
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
    evidence: Evidence, report: LauncherReport, failed: Collection[int], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """A finding about ranks that ended early with code 0: no report has them in ``failed``, but the others lost
    them."""
    if report.root is None or not any(finding.tier is not Tier.CAUSE for finding in findings):
        return
    # A rank that was asked to end may also end with code 0.
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
    """An exception in one line; that of a data loader worker itself instead of its report."""
    lines = [line for line in without_commands(raised.text).splitlines() if line.strip()]
    if any(line.startswith("Original Traceback") for line in lines):
        return lines[-1].strip()
    return lines[0].strip() if lines else raised.type
