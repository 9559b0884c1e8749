"""What a run's page shows beside its charts: head, ranks, parameters, the story so far, the log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, bytes_text, count, duration, metric_value, percent, short_number
from gputui.store.views import AttemptView, DecisionView, GpuView, IncidentView
from gputui.tui.render.columns import Column, fit_line, fitting, head_line, place, row_line, rule, wrap
from gputui.tui.render.moments import right_end
from gputui.tui.render.runs import outlook
from gputui.tui.render.words import clock, moment, run_sign, run_state_text
from gputui.tui.snapshot import LogTail, Past, RankRow, RunPage, RunRow


def run_head(page: RunPage, gpus: Sequence[GpuView], now: float, width: int, past: Past | None = None) -> Line:
    """``vit-b16-1 · running ↻2 · attempt 3 · GPU 6 · step 8 110/90 000 · 9 h 10 left · loss 1.902``."""
    run, progress = page.run, page.progress
    sign = run_sign(run.state)
    parts: list[list[Span]] = [
        [(" " + clean(run.run_id), "title")],
        [(" · ", "dim"), (f"{sign.glyph} {run_state_text(run)}", sign.style)],
    ]
    if progress.step is not None:
        total = f"/{count(progress.total_steps)}" if progress.total_steps else ""
        parts.append([(" · ", "dim"), (f"step {count(progress.step)}{total}", "text")])
    words, style = outlook(RunRow(run, progress), now)
    parts.append([(" · ", "dim"), (words, style)] if words else [])
    if progress.loss is not None:
        # The head is painted with every snapshot, the curves less often: the newest value is here first.
        parts.append([(" · ", "dim"), (f"loss {metric_value(progress.loss)}", "text")])
    parts.append([(" · ", "dim"), (gpu_words(run.gpus, gpus), "text")])
    if progress.steps_per_second:
        parts.append([(" · ", "dim"), (f"{short_number(progress.steps_per_second)} steps/s", "text")])
    if run.attempt > 1:
        parts.append([(" · ", "dim"), (f"attempt {run.attempt}", "text")])
    tail = [(" ", "text"), *right_end(now, past)]
    return [*fitting(parts, width - sum(cell_width(text) for text, _ in tail)), *tail]


def gpu_words(uuids: Sequence[str], gpus: Sequence[GpuView]) -> str:
    """``GPU 0, 1`` or ``CPU``; a GPU that is no longer known is named by the beginning of its UUID."""
    if not uuids:
        return "CPU"
    known = {gpu.uuid: str(gpu.index) for gpu in gpus}
    return "GPU " + ", ".join(known.get(uuid, clean(uuid[:12])) for uuid in uuids)


# --- ranks ----------------------------------------------------------------------------------------------------------


def ranks_lines(ranks: Mapping[int, RankRow], now: float, width: int, height: int, *, titled: bool) -> list[Line]:
    """A row per rank; those that hold the others up are named so."""
    lines = [rule("RANKS", width)] if titled else []
    if not ranks:
        return [*lines, fit_line([("  No rank has reported yet.", "dim")], width)][:height]
    placed = place(_RANK_COLUMNS, width - 1)
    lines.append([(" ", "text"), *head_line(placed, width - 1)])
    rows = sorted(ranks.values(), key=lambda rank: rank.rank)
    room = height - len(lines)
    if len(rows) > room > 1:
        # The slowest are worth more than the first; what is left out is said.
        rows = sorted(sorted(rows, key=lambda rank: -(rank.slowdown or 0.0))[: room - 1], key=lambda rank: rank.rank)
    lines += [[(" ", "text"), *row_line(placed, (rank, now), width - 1)] for rank in rows]
    if len(rows) < len(ranks):
        lines.append(fit_line([(f"  … {len(ranks) - len(rows)} more, none slower", "dim")], width))
    return lines[:height]


_Rank = tuple[RankRow, float]


def _rank_number(item: _Rank, width: int) -> list[Span]:
    return [(f"r{item[0].rank}", "text")]


def _rank_step(item: _Rank, width: int) -> list[Span]:
    return [(count(item[0].step), "text")]


def _rank_rate(item: _Rank, width: int) -> list[Span]:
    seconds = item[0].step_seconds
    return [(short_number(1 / seconds) if seconds else UNKNOWN, "text")]


def _rank_samples(item: _Rank, width: int) -> list[Span]:
    return [(short_number(item[0].samples_per_second), "text")]


def _rank_wait(item: _Rank, width: int) -> list[Span]:
    share = item[0].waiting_fraction
    return [(percent(None if share is None else min(share, 1.0) * 100), "warn" if (share or 0) >= 0.2 else "text")]


def _rank_memory(item: _Rank, width: int) -> list[Span]:
    return [(bytes_text(item[0].memory_bytes), "text")]


def _rank_remark(item: _Rank, width: int) -> list[Span]:
    rank = item[0]
    if rank.is_slow and rank.slowdown is not None:
        return [(f"▲ slow, {rank.slowdown:.1f}× the median", "warn")]
    return []


_RANK_COLUMNS: tuple[Column[_Rank], ...] = (
    Column("rank", 4, _rank_number),
    Column("step", 9, _rank_step, ">", gap=1),
    Column("step/s", 6, _rank_rate, ">"),
    Column("samples/s", 9, _rank_samples, ">", importance=1),
    Column("wait", 4, _rank_wait, ">"),
    Column("peak", 9, _rank_memory, ">", importance=2),
    Column("", 6, _rank_remark, grow=1),
)


# --- parameters -----------------------------------------------------------------------------------------------------


def parameter_lines(page: RunPage, width: int, height: int, *, titled: bool) -> list[Line]:
    """Each parameter as launched and as it is now; what recovery changed says by which incident."""
    lines = [rule("PARAMETERS", width)] if titled else []
    launched, now = page.launched, page.run.params
    names = [*launched, *(name for name in now if name not in launched)]
    if not names:
        return [*lines, fit_line([("  This profile has no parameters.", "dim")], width)][:height]
    why = _changed_by(page.incidents, page.decisions)
    name_width = min(max(cell_width(clean(name)) for name in names), max(8, width // 3)) + 1
    placed = place(_parameter_columns(name_width), width - 1)
    lines.append([(" ", "text"), *head_line(placed, width - 1)])
    names.sort(key=lambda name: launched.get(name) == now.get(name))
    for name in names:
        item = (name, _value(launched, name), _value(now, name), why.get(name, ""))
        lines.append([(" ", "text"), *row_line(placed, item, width - 1)])
    return _more(lines, height, width)


_Parameter = tuple[str, str, str, str]


def _parameter_columns(name_width: int) -> tuple[Column[_Parameter], ...]:
    def changed(item: _Parameter) -> str:
        return "warn" if item[1] != item[2] else "text"

    return (
        Column("name", name_width, lambda item, width: [(clean(item[0]), "text")]),
        Column("launched", 9, lambda item, width: [(item[1], "dim" if item[1] == item[2] else "text")], ">", gap=1),
        Column("now", 9, lambda item, width: [(item[2], changed(item))], ">", gap=1),
        Column("", 4, lambda item, width: [(item[3], "dim")], grow=1),
    )


def _value(params: Mapping[str, object], name: str) -> str:
    if name not in params:
        return UNKNOWN
    value = params[name]
    return clean(value) if isinstance(value, str) else json.dumps(value)


def _changed_by(incidents: Sequence[IncidentView], decisions: Sequence[DecisionView]) -> dict[str, str]:
    kinds = {incident.incident_id: incident for incident in incidents}
    why: dict[str, str] = {}
    for decision in decisions:
        incident = kinds.get(decision.incident_id)
        for name in decision.params:
            reason = incident.kind.replace("_", " ") if incident else "recovery"
            why[name] = f"← {clean(reason)} {clock(decision.at)}"
    return why


# --- the story ------------------------------------------------------------------------------------------------------


def timeline_lines(
    page: RunPage, gpus: Sequence[GpuView], now: float, width: int, height: int, *, titled: bool
) -> list[Line]:
    """Attempts, incidents and what was decided, in order of time; the newest stay when room is short."""
    told: list[tuple[float, str, str, list[str]]] = [
        (page.run.created_at, "dim", "queued", []),
        *(_start_of(attempt, gpus) for attempt in page.attempts),
        *(_end_of(attempt) for attempt in page.attempts if attempt.ended_at is not None),
    ]
    by_incident: dict[int, list[DecisionView]] = {}
    for decision in page.decisions:
        by_incident.setdefault(decision.incident_id, []).append(decision)
    for incident in page.incidents:
        details = [_decision_words(decision) for decision in by_incident.get(incident.incident_id, [])]
        told.append((incident.at, "warn", clean(incident.summary), details))
    if page.run.ended_at is not None:
        sign = run_sign(page.run.state)
        reason = clean(page.run.reason or "")
        told.append(
            (page.run.ended_at, sign.style, f"{sign.glyph} {sign.word}" + (f": {reason}" if reason else ""), [])
        )
    told.sort(key=lambda entry: entry[0])
    lines: list[Line] = []
    for at, style, text, details in told:
        lines += _entry(at, style, text, details, now, width)
    heading = [rule("TIMELINE", width)] if titled else []
    room = height - len(heading)
    if len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [
            fit_line([(f"  … {hidden} lines before; gputui explain tells all", "dim")], width),
            *lines[-room + 1 :],
        ]
    return [*heading, *lines][:height]


def _entry(at: float, style: str, text: str, details: Sequence[str], now: float, width: int) -> list[Line]:
    margin = 10
    lines: list[Line] = []
    for number, part in enumerate(wrap(text, width - margin)):
        stamp = f" {moment(at, now)} " if number == 0 else " " * margin
        lines.append(fit_line([(stamp, "dim"), (part, style)], width))
    for detail in details:
        for number, part in enumerate(wrap(detail, width - margin - 2)):
            lines.append(fit_line([(" " * margin + ("→ " if number == 0 else "  "), "dim"), (part, "text")], width))
    return lines


def _start_of(attempt: AttemptView, gpus: Sequence[GpuView]) -> tuple[float, str, str, list[str]]:
    where = gpu_words(attempt.gpus, gpus)
    if attempt.resumed_step is not None:
        text = f"attempt {attempt.number} from step {count(attempt.resumed_step)} on {where}"
    else:
        text = f"attempt {attempt.number} on {where}" if attempt.number > 1 else f"started on {where}"
    at = attempt.started_at if attempt.started_at is not None else attempt.created_at
    return (at, "text", text, [])


def _end_of(attempt: AttemptView) -> tuple[float, str, str, list[str]]:
    assert attempt.ended_at is not None
    if attempt.exit_signal is not None:
        how = f"ended by signal {attempt.exit_signal}"
    elif attempt.exit_code is not None:
        how = f"ended with code {attempt.exit_code}"
    else:
        how = "ended"
    took = "" if attempt.started_at is None else f" after {duration(attempt.ended_at - attempt.started_at)}"
    at_step = "" if attempt.last_step is None else f" at step {count(attempt.last_step)}"
    return (attempt.ended_at, "dim", f"attempt {attempt.number} {how}{took}{at_step}", [])


def _decision_words(decision: DecisionView) -> str:
    """What was decided, in the words that recovery itself gave it."""
    return clean(decision.reason or decision.verdict)


# --- the log --------------------------------------------------------------------------------------------------------


def log_lines(log: LogTail, offset: int, width: int, height: int, *, following: bool) -> list[Line]:
    """The end of the log; ``offset`` lines from its end are scrolled away."""
    note = "following" if following else f"{offset} lines below, f follows"
    lines = [rule(f"LOG {log.label or ''}".rstrip(), width, note)]
    room = height - 1
    if log.problem is not None or not log.lines:
        text = log.problem or "Nothing has been written yet."
        return [*lines, fit_line([("  " + clean(text), "dim")], width)][:height]
    end = len(log.lines) - offset
    shown = log.lines[max(0, end - room) : end]
    lines += [fit_line([(" " + text, _log_style(text))], width) for text in shown]
    return lines[:height]


def _log_style(text: str) -> str:
    if "Error" in text or "ERROR" in text or "Traceback" in text:
        return "bad"
    return "warn" if "WARN" in text or "Warning" in text else "text"


def _more(lines: list[Line], height: int, width: int) -> list[Line]:
    if len(lines) <= height:
        return lines
    hidden = len(lines) - height + 1
    return [*lines[: height - 1], fit_line([(f"  … {hidden} more", "dim")], width)]
