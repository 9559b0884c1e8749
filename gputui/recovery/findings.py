"""All explanations of an attempt's end: of its ranks, its launcher and what the agent saw. `classify`
selects. Pure."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from gputui.machine.child import signal_name
from gputui.recovery.evidence import ErrorFile, Evidence
from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.process_ends import (
    CRASHES,
    NOTICED_LATE_SECONDS,
    USAGE_EXIT,
    EndedProcess,
    Finding,
    explain_end,
    headline,
    last_message,
)
from gputui.recovery.signatures import match_chain, match_lines
from gputui.recovery.tracebacks import by_rank, last_chain
from gputui.recovery.wrappers import is_wrapper, shell_code, wrapped_code
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.reports import LauncherReport, RankFailure, parse_reports

# Delay of driver reports, which are polled once a second, relative to exceptions.
SEEN_LATE_SECONDS = 3.0


def reports_of(evidence: Evidence) -> list[LauncherReport]:
    """The reports of an attempt's launchers in their order; the last one is about the end."""
    return parse_reports(_text(evidence, rank=None, stream="output")) or [LauncherReport(None)]


def gather(evidence: Evidence, reports: Sequence[LauncherReport]) -> list[Finding]:
    """All possible explanations of the end, unordered."""
    got_signal = next((report.got_signal for report in reports if report.got_signal is not None), None)
    # Launchers of several nodes report their own ranks; consecutive ones of a command the same.
    report_by_rank = {failure.rank: report for report in reports for failure in report.failures}
    of_ranks = _rank_findings(evidence, reports, report_by_rank)
    findings = [*_supervision_findings(evidence, got_signal), *of_ranks]
    if LAUNCHERS[evidence.launcher].only_relays:
        for report in reports:
            findings += _explain_launcher(evidence, report)
    else:
        findings += _command_findings(evidence, reports, of_ranks)
    findings = _mark_consequences(findings, evidence, is_signalled=got_signal is not None)
    findings = [_mark_ended_after(finding, of_ranks) for finding in findings]
    if not any(finding.tier is Tier.CAUSE for finding in findings):
        for report in reports:
            findings += _early_exit(evidence, report, report_by_rank, findings)
    return findings


def _rank_findings(
    evidence: Evidence, reports: Sequence[LauncherReport], report_by_rank: Mapping[int, LauncherReport]
) -> list[Finding]:
    """The findings about the ranks. One that no report says to have failed belongs to the last report."""
    ranks = {*_ranks(evidence), *(error.rank for error in evidence.errors if error.rank is not None)}
    last_report = reports[-1]
    findings = []
    for report in reports:
        own_ranks = {rank for rank in ranks if report_by_rank.get(rank, last_report) is report}
        for process in _rank_processes(evidence, report, own_ranks, is_last=report is last_report):
            finding = explain_end(process, evidence)
            if finding is not None:
                findings.append(finding)
    return findings


def _command_findings(
    evidence: Evidence, reports: Sequence[LauncherReport], of_ranks: Sequence[Finding]
) -> list[Finding]:
    """The findings about a command that may end by itself, and about the first rank that a signal killed."""
    killed = _killed_rank(evidence, reports)
    of_command = _explain_command(evidence, reports[-1], of_ranks, with_ranks=killed is not None)
    return [finding for finding in (killed, of_command) if finding is not None]


def _killed_rank(evidence: Evidence, reports: Sequence[LauncherReport]) -> Finding | None:
    """The finding about the first rank that the shim saw killed by a signal, unless a launcher
    reports which rank failed first."""
    record = evidence.exit
    if record is None or not record.killed_ranks or any(report.root for report in reports):
        return None
    first = record.killed_ranks[0]
    return explain_end(EndedProcess(first.rank, -first.signal), evidence)


def _mark_consequences(findings: Sequence[Finding], evidence: Evidence, *, is_signalled: bool) -> list[Finding]:
    """Mark the findings that follow from another end as consequences.

    ``is_signalled``: a signal asked the launcher to end.
    """
    record = evidence.exit
    is_ended = any(cause.ended_run for cause in evidence.observed)
    is_stopped = record is not None and (record.stop_requested or record.signal is not None)
    # If gputui ended it for an observation, killed ranks are a consequence; and so they are of a
    # lost GPU, without which the next attempt would fail too.
    has_lost_gpu = any(cause.kind == "gpu_lost" for cause in evidence.observed)
    # Exceptions during a stop are no cause unless they are specific.
    is_disturbed = is_ended or is_stopped or is_signalled
    marked = []
    for finding in findings:
        if is_ended:
            follows = KINDS[finding.kind].may_follow == "kill"
        else:
            follows = has_lost_gpu and finding.kind == "killed"
        if follows or (is_disturbed and not finding.specific):
            marked.append(replace(finding, tier=Tier.CONSEQUENCE))
        else:
            marked.append(finding)
    return marked


def _mark_ended_after(finding: Finding, of_ranks: Sequence[Finding]) -> Finding:
    """Mark the finding as a consequence if a signal ended a rank after another rank had failed by what no lost rank
    explains.

    Launchers kill the others, and not each of them says so.
    """
    if finding.kind != "killed" or finding.rank is None:
        return finding
    noticed_at = math.inf
    if finding.at is not None:
        noticed_at = finding.at + NOTICED_LATE_SECONDS
    of_other_ranks = (candidate for candidate in of_ranks if candidate.rank != finding.rank)
    if any(_is_cause_until(candidate, noticed_at) for candidate in of_other_ranks):
        return replace(finding, tier=Tier.CONSEQUENCE)
    return finding


def _is_cause_until(finding: Finding, noticed_at: float) -> bool:
    """Return whether a finding is a cause of its own that was there when a killed rank was noticed, as far as its
    time is known."""
    is_cause = finding.tier is Tier.CAUSE and finding.specific
    stands_alone = KINDS[finding.kind].may_follow not in ("kill", "lost_rank")
    came_first = finding.at is None or math.floor(finding.at) <= noticed_at
    return is_cause and stands_alone and came_first


# --- supervision ------------------------------------------------------------------------------


def _supervision_findings(evidence: Evidence, got_signal: int | None) -> Iterator[Finding]:
    """Findings from the agent's observations and the exit record."""
    first = float("-inf")
    cause = Tier.CAUSE
    for observed in evidence.observed:
        # Driver reports are ordered by time: they explain only what happened after them.
        at = first if observed.ended_run else observed.at - SEEN_LATE_SECONDS
        tier = Tier.SYMPTOM if observed.distant else KINDS[observed.kind].tier
        finding = Finding(observed.kind, observed.rank, tier, observed.text, at, detail=observed.text)
        yield replace(finding, gpu=observed.gpu, contained=observed.contained)
    record = evidence.exit
    # An exit record without a stop was written before the reboot: it had ended by itself.
    if evidence.rebooted and (record is None or record.stop_requested):
        yield Finding("interrupted", rank=None, tier=cause, text="the boot id has changed", at=first)
    if record is None:
        return
    if record.error is not None:
        yield Finding("launch_failed", rank=None, tier=cause, text=record.error, at=first, detail=record.error)
    if record.lease_conflict:
        text = "lock held by another process"
        names = ", ".join(record.lease_conflict)
        yield Finding("lease_conflict", rank=None, tier=cause, text=text, at=first, detail=names)
    if record.survivors:
        pids = "pid " + ", ".join(map(str, record.survivors))
        yield Finding("unkillable", rank=None, tier=cause, text="survives SIGKILL", at=first, detail=pids)
    if record.stop_requested or got_signal is not None:
        name = signal_name(record.stop_signal or got_signal or signal.SIGTERM)
        yield Finding("stopped_outside", rank=None, tier=Tier.SYMPTOM, text="asked to stop", detail=name)


# --- processes --------------------------------------------------------------------------------


def _rank_processes(
    evidence: Evidence, report: LauncherReport, own_ranks: Collection[int], *, is_last: bool
) -> Iterator[EndedProcess]:
    """The ranks in a report's table and output, and ``own_ranks`` with their files."""
    failures = {failure.rank: failure for failure in reversed(report.failures)}
    unranked_output, output_by_rank = by_rank(report.rest)
    errors = _errors_by_rank(evidence.errors)
    logged = {tail.rank for tail in evidence.tails}.intersection(own_ranks)
    for rank in sorted({*failures, *output_by_rank, *own_ranks}):
        process = EndedProcess(rank, code=None, stderr=output_by_rank.get(rank, ""))
        if rank in own_ranks:
            process = replace(
                process,
                stderr=process.stderr + _text(evidence, rank, "stderr"),
                stdout=_text(evidence, rank, "stdout"),
                error=errors.get(rank),
            )
        failure = failures.get(rank)
        if failure is None:
            yield process
            continue
        is_ended = _ended_by_launcher(failure, report)
        if not is_ended and process.error is None and last_chain(process.stderr) is None:
            has_failed = failure.exit_code > 0 or -failure.exit_code in CRASHES
            if has_failed and rank not in logged:
                # Before it joined a process group, its messages have no rank prefix.
                process = replace(process, stderr=process.stderr + unranked_output)
            is_unexplained_root = failure is report.root and failure.traceback is None
            if is_last and is_unexplained_root and not LAUNCHERS[evidence.launcher].only_relays:
                process = replace(process, error=errors.get(None))
        yield replace(
            process,
            code=failure.exit_code,
            at=failure.at,
            traceback=failure.traceback,
            ended_by_launcher=is_ended,
        )


def _errors_by_rank(files: Iterable[ErrorFile]) -> dict[int | None, ErrorFile]:
    """The newest error file of each rank, and the first one without a rank."""
    errors: dict[int | None, ErrorFile] = {}
    for file in files:
        earlier = errors.get(file.rank)
        is_newer = file.at is not None and (earlier is None or earlier.at is None or file.at >= earlier.at)
        if earlier is None or (is_newer and file.rank is not None):
            errors[file.rank] = file
    return errors


def _command_code(evidence: Evidence, output: str) -> int | None:
    """The exit code of the command, below 0 for a signal; that of the command behind a shell or a wrapper, if it is
    known."""
    record = evidence.exit
    if record is None:
        return None
    if record.signal is not None:
        return -record.signal
    code = record.code
    if code is not None and LAUNCHERS[evidence.launcher].takes_command:
        code = shell_code(code)
    if code is not None and code > 0 and (wrapped := wrapped_code(output)) is not None:
        return wrapped
    return code


def _explain_command(
    evidence: Evidence, report: LauncherReport, of_ranks: Sequence[Finding], *, with_ranks: bool
) -> Finding | None:
    """The finding about the command itself, which may be the ranks' launcher.

    Args:
        with_ranks: signals killed ranks; a process that starts ranks often kills itself along with them.

    Returns:
        None if the findings about its ranks explain its end.
    """
    unranked_output, _ = by_rank(report.rest)
    code = _command_code(evidence, unranked_output)
    is_killed = code is not None and code < 0
    process = EndedProcess(
        rank=None,
        code=code,
        ended_by_launcher=report.ended_itself or (with_ranks and is_killed),
        error=next((error for error in evidence.errors if error.rank is None), None),
    )
    if report.root is None:
        process = replace(process, stderr=unranked_output)
    finding = explain_end(process, evidence)
    if finding is None or any(of_rank.text == finding.text for of_rank in of_ranks):
        return None
    if any(finding.tier is Tier.CAUSE for finding in of_ranks):
        is_telling = finding.specific and KINDS[finding.kind].may_follow != "kill"
        if is_telling:
            return replace(finding, tier=Tier.CONSEQUENCE)
        return None
    kinds = {of_rank.kind for of_rank in of_ranks}
    # NCCL's watchdog logs with its rank's prefix, then aborts its process.
    is_watchdog = code == -signal.SIGABRT and any(KINDS[kind].of_nccl for kind in kinds)
    if finding.kind == "segfault" and is_watchdog:
        return None
    if finding.kind == "nonzero_exit" and kinds:
        return None
    return finding


def _explain_launcher(evidence: Evidence, report: LauncherReport) -> Iterator[Finding]:
    """Findings about the launcher itself, from its messages and its exit status."""
    chain = last_chain(report.rest, is_wrapper)
    if chain is not None:
        raised, signature = match_chain(chain, evidence.gpus)
        line = headline(raised)
        if signature is None:
            yield Finding("unknown", rank=None, tier=Tier.SYMPTOM, text=raised.text, specific=False, detail=line)
        elif signature.kind != "stopped_outside":
            yield Finding(signature.kind, rank=None, tier=signature.rank, text=raised.text, detail=line)
    for signature, line in match_lines(report.rest):
        yield Finding(signature.kind, rank=None, tier=signature.rank, text=line, detail=line)
    record = evidence.exit
    if record is None or record.stop_requested or report.got_signal is not None:
        return
    if record.signal is not None:
        name = signal_name(record.signal)
        kind = "killed"
        if record.signal in CRASHES:
            kind = "segfault"
        elif record.signal == signal.SIGKILL and record.oom_killed:
            kind = "host_oom"
        yield Finding(kind, rank=None, tier=Tier.CAUSE, text=f"ended by {name}", detail=name)
    elif record.code == USAGE_EXIT and report.root is None:
        message = last_message(evidence, None)
        yield Finding("config_error", rank=None, tier=Tier.CAUSE, text=message or "code 2", detail=message)


def _early_exit(
    evidence: Evidence, report: LauncherReport, failed: Collection[int], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """A finding about ranks that no report has in ``failed``: they ended early with code 0."""
    if report.root is None or not any(finding.tier is not Tier.CAUSE for finding in findings):
        return
    # A rank that was asked to end may also end with code 0.
    asked_elsewhere = len(report.signalled - {failure.pid for failure in report.failures})
    missing = [rank for rank in _ranks(evidence) if rank not in failed]
    if len(missing) > asked_elsewhere:
        text = "ended with code 0"
        yield Finding("rank_left_early", missing[0], Tier.CAUSE, text, detail="code 0")


def _ended_by_launcher(failure: RankFailure, report: LauncherReport) -> bool:
    if failure.exit_code == -signal.SIGKILL:
        return failure.pid in report.forced
    asking = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    return -failure.exit_code in asking and failure.pid in report.signalled


def _ranks(evidence: Evidence) -> list[int]:
    return sorted({tail.rank for tail in evidence.tails if tail.rank is not None})


def _text(evidence: Evidence, rank: int | None, stream: str) -> str:
    tails = (tail for tail in evidence.tails if tail.rank == rank and tail.stream == stream)
    return "".join(tail.text for tail in tails)
