"""The best explanation of one process's end, from its exit code, its error file and what it
printed. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gputui.core.text import clean
from gputui.machine.child import signal_name
from gputui.recovery.evidence import ErrorFile, Evidence, ExitRecord
from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.signatures import (
    Signature,
    match_chain,
    match_exception,
    match_last_lines,
    match_lines,
    terminate_message,
)
from gputui.recovery.stacks import fatal_where
from gputui.recovery.tracebacks import Chain, Raised, last_chain, parse_message, structured
from gputui.recovery.wrappers import is_wrapper, is_wrapper_line, without_commands
from gputui.runs.logs import lines_of

# Lines of other threads and libraries that may follow the exception that ended a process.
TRAILING_LINES = 20
# Without an error file, torchrun dates a death when it notices it, in whole seconds.
NOTICED_LATE_SECONDS = 2.0
# Earlier native messages belong to errors that the process survived.
LAST_LINES = 200
# Lines that a process prints after it reported the error that ends it, at most.
LAST_WORDS = 5
# The clock of file systems is a little late.
MTIME_SECONDS = 0.1
# A log that was written so much before the newest step says nothing about the end.
SILENT_SECONDS = 1.0
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})
USAGE_EXIT = 2  # of argparse and click

_ANNOUNCED = re.compile(r"^\S+: \S")
# How argparse and click reject arguments; the launcher may print more lines after it.
_REFUSED = re.compile(r"^(?:\S+: error|[Ee]rror|ERROR): \S")
# Boxes of the library rich, which typer, rich-click and tyro draw.
_BOX_TOP = re.compile(r"^\s*[╭┌┏╔+][─━═-]+.*[╮┐┓╗+]\s*$")
_BOX_BORDER = re.compile(r"^\s*[╭┌┏╔╰└┗╚+][─━═-].*[╮┐┓╗╯┘┛╝+]\s*$")
_BOX_LINE = re.compile(r"^\s*[│┃║|] (?P<text>.*?)\s*[│┃║|]\s*$")
_RULE = " \t─━═"
_IGNORED = re.compile(r"(?m)^Exception ignored (?:in|while)\b.*\n(?:Traceback .*\n(?:\s.*\n)*.*\n?)?")


class Finding(Struct, frozen=True):
    """A possible explanation of an end, from one process or from the agent's observations.

    Attributes:
        text: the message.
        at: seconds, comparable among the findings of one attempt; None is unknown.
        where: the location in the user's code.
        specific: recognised by a signature or an exit status, not merely an exception.
        detail: the detail in parentheses of a summary.
        gpu: the UUID of the faulty GPU.
        contained: that GPU remains usable.
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


class EndedProcess(Struct, frozen=True):
    """A process whose end is to be explained.

    Attributes:
        rank: None for the command itself.
        code: the exit code, negative for a signal; None if unknown.
        at: when it ended (UTC unix seconds).
        ended_by_launcher: its launcher ended it for another one's end.
        error: the error file of the process.
        traceback: as the launcher reports it.
        stderr: the end of the log of errors.
        stdout: the end of the log of other output.
    """

    rank: int | None
    code: int | None
    at: float | None = None
    ended_by_launcher: bool = False
    error: ErrorFile | None = None
    traceback: str | None = None
    stderr: str = ""
    stdout: str = ""

    @property
    def has_crashed(self) -> bool:
        """True if a signal for a fault of its own ended it."""
        return self.code is not None and -self.code in CRASHES

    @property
    def is_killed(self) -> bool:
        """True if another signal ended it, and not one of its launcher."""
        has_signal = self.code is not None and self.code < 0
        return has_signal and not self.has_crashed and not self.ended_by_launcher


def explain_end(process: EndedProcess, evidence: Evidence) -> Finding | None:
    """The best explanation of one process's end; None if there is none."""
    if process.code == 0:
        return None
    if process.is_killed:
        return _signal_finding(process, evidence.exit)
    has_report = process.error is not None or process.traceback is not None
    has_exited = process.code is not None and process.code > 0
    if has_exited and not has_report and _ended_silently(evidence):
        return _exit_finding(process, evidence)
    candidates = list(_candidates(process, evidence))
    if candidates:
        return min(candidates, key=lambda finding: (finding.tier, not finding.specific))
    if process.code is None or process.ended_by_launcher:
        return None
    if process.code < 0:
        return _crash_finding(process)
    return _exit_finding(process, evidence)


def _ended_silently(evidence: Evidence) -> bool:
    """Return whether nothing was printed since the newest step, whose line states a time that may be
    true: what stands in the logs did not end it."""
    stepped_at = evidence.last_step_at
    ended_at = evidence.ended_at
    if stepped_at is None or ended_at is None or stepped_at > ended_at:
        return False
    return all(tail.written_at is not None and tail.written_at < stepped_at - SILENT_SECONDS for tail in evidence.tails)


def _signal_finding(process: EndedProcess, record: ExitRecord | None) -> Finding | None:
    """The finding about a signal; None if a stop was asked for."""
    if record is not None and record.stop_requested:
        return None
    name = signal_name(-(process.code or 0))
    is_printed = any(signature.kind == "host_oom" for signature, _ in match_lines(process.stderr))
    is_oom = process.code == -signal.SIGKILL and (is_printed or (record is not None and record.oom_killed))
    kind = "killed"
    detail = name
    at = process.at
    if is_oom:
        kind = "host_oom"
        detail = "killed by the kernel's OOM killer"
    if at is not None:
        at -= NOTICED_LATE_SECONDS
    return Finding(kind, process.rank, Tier.CAUSE, f"ended by {name}", at, detail=detail)


def _crash_finding(process: EndedProcess) -> Finding:
    name = signal_name(-(process.code or 0))
    where = fatal_where(process.stderr)
    detail = f"{name}, {where}" if where else name
    return Finding(
        "segfault", process.rank, Tier.CAUSE, text=f"ended by {name}", at=process.at, where=where, detail=detail
    )


def _exit_finding(process: EndedProcess, evidence: Evidence) -> Finding:
    """The finding about an exit code without an exception."""
    code = process.code
    rank = process.rank
    at = process.at
    # What was printed before the last steps did not end it.
    message = last_message(evidence, rank, since=evidence.last_step_at)
    if code == USAGE_EXIT and evidence.last_step is None:
        message = _refusal(lines_of(process.stderr)[-LAST_LINES:]) or message
        is_known = bool(message)
        return Finding("config_error", rank, Tier.CAUSE, message or "code 2", at, specific=is_known, detail=message)
    detail = f"code {code}: {message}" if message else f"code {code}"
    return Finding("nonzero_exit", rank, Tier.CAUSE, f"ended with code {code}", at, specific=False, detail=detail)


def _candidates(process: EndedProcess, evidence: Evidence) -> Iterator[Finding]:
    """Possible explanations of an end; among equals the first is the best."""
    chain = _ending_exception(process)
    of_chain = None
    if chain is not None:
        of_chain = _chain_finding(chain, process, evidence)
    # An exception may only report a failed communication or worker, whose cause native code has printed.
    if of_chain is None or process.has_crashed or KINDS[of_chain.kind].may_follow == "native_error":
        for text in (process.stderr, process.stdout):
            lines = lines_of(text)[-LAST_LINES:]
            for signature, line in (*match_lines("\n".join(lines)), *_reported_last(lines, process, evidence)):
                yield Finding(signature.kind, process.rank, signature.rank, line, process.at, detail=line)
    if of_chain is not None:
        yield of_chain
    if process.has_crashed and (thrown := terminate_message(process.stderr)) is not None:
        thrown_signature = match_exception(thrown, evidence.gpus)
        if thrown_signature is not None:
            kind = thrown_signature.kind
            tier = thrown_signature.rank
            yield Finding(kind, process.rank, tier, thrown.text, process.at, detail=headline(thrown))


def _reported_last(lines: Sequence[str], process: EndedProcess, evidence: Evidence) -> list[tuple[Signature, str]]:
    """Errors among the last lines of a process that ended by itself."""
    if process.code is None or process.ended_by_launcher:
        return []
    telling = [line for line in lines if line.strip() and not is_wrapper_line(line)]
    return match_last_lines(telling[-LAST_WORDS:], evidence.gpus)


def _ending_exception(process: EndedProcess) -> Chain | None:
    """The exception that ended a process, if there is one."""
    if process.error is not None:
        return parse_message(process.error.message, process.error.callstack)
    if process.traceback is not None and (reported := last_chain(process.traceback)) is not None:
        return reported
    # Structured logs go to standard output.
    chain = last_chain(process.stderr, is_wrapper) or last_chain(process.stdout, is_wrapper)
    if chain is None or chain.ranked:
        return chain
    if process.code is None or process.ended_by_launcher:
        # The process did not end by itself, so the exception was caught.
        return None
    allowed = TRAILING_LINES if process.code in (1, -signal.SIGABRT) else 3
    if chain.trailing <= allowed:
        return chain
    return None


def _chain_finding(chain: Chain, process: EndedProcess, evidence: Evidence) -> Finding:
    raised, signature = match_chain(chain, evidence.gpus)
    at = process.at
    if at is None and process.error is not None:
        at = process.error.at
    detail = ", ".join(part for part in (headline(raised), raised.where) if part)
    kind = "user_exception"
    tier = Tier.CAUSE
    if signature is not None:
        kind = signature.kind
        tier = signature.rank
    is_oom_killed = evidence.exit is not None and evidence.exit.oom_killed
    if kind == "dataloader_killed" and "signal: Killed" in raised.message and is_oom_killed:
        kind = "host_oom"
    is_specific = kind not in ("user_exception", "bad_sample")
    return Finding(
        kind, process.rank, tier, text=raised.text, at=at, where=raised.where, specific=is_specific, detail=detail
    )


def headline(raised: Raised) -> str:
    """An exception in one line; that of a data loader worker itself instead of its report."""
    lines = [line for line in without_commands(raised.text).splitlines() if line.strip()]
    if any(line.startswith("Original Traceback") for line in lines):
        return lines[-1].strip()
    if lines:
        return lines[0].strip()
    return raised.type


def _refusal(lines: Sequence[str]) -> str | None:
    """The message by which a program rejects its arguments: a line, or the first paragraph in a box."""
    line = next((line for line in reversed(lines) if _REFUSED.match(line)), None)
    if line is not None:
        return line
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if _BOX_TOP.match(line):
            paragraphs = [[]]
        elif (match := _BOX_LINE.match(line)) is not None:
            if text := match["text"].strip(_RULE):
                paragraphs[-1].append(text)
            else:
                paragraphs.append([])
    return next((" ".join(texts) for texts in paragraphs if texts), None)


def last_message(evidence: Evidence, rank: int | None, *, since: float | None = None) -> str | None:
    """The last message on standard error of a rank, else of another one that did not end for want of a rank.

    Args:
        since: only logs count that were written since this time (UTC unix seconds).
    """
    tails = list(evidence.tails)
    if since is not None:
        tails = [tail for tail in tails if tail.written_at is None or tail.written_at >= since - MTIME_SECONDS]
    own_tails = [tail for tail in tails if tail.rank == rank and tail.stream in ("stderr", "output")]
    others = [tail for tail in tails if tail.rank not in (rank, None) and tail.stream == "stderr"]
    for tail in (*own_tails, *(tail for tail in others if not _lost_a_rank(tail.text, evidence))):
        inside = [_BOX_LINE.sub(r"\g<text>", line) for line in lines_of(tail.text) if not _BOX_BORDER.match(line)]
        lines = [line for line in inside if line.strip(_RULE) and not is_wrapper_line(line)]
        announced = [line for line in lines[-5:] if _ANNOUNCED.match(line)]
        if announced:
            return structured(announced[-1])
        if lines and tail in own_tails:
            return structured(lines[-1])
    return None


def _lost_a_rank(text: str, evidence: Evidence) -> bool:
    """Return whether the last exception of a log only says that another rank is gone."""
    chain = last_chain(text, is_wrapper)
    if chain is None:
        return False
    _, signature = match_chain(chain, evidence.gpus)
    return signature is not None and signature.rank is Tier.CONSEQUENCE


def printed_at_end(evidence: Evidence) -> list[str]:
    """Exceptions that processes printed last although they ended with code 0: ``rank 0 printed at its end …``.

    What Python prints for a destructor that fails at exit does not count.
    """
    remarks = []
    for tail in evidence.tails:
        chain = last_chain(_IGNORED.sub("", tail.text), is_wrapper)
        if chain is not None and chain.trailing == 0:
            raised, _ = match_chain(chain, evidence.gpus)
            who = "it" if tail.rank is None else f"rank {tail.rank}"
            remarks.append(f"{who} printed at its end {clean(headline(raised))}")
    return remarks
