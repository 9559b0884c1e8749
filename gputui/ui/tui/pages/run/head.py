"""The top of a run's page: its state in one line, its labels, and why it failed or waits."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import ago, count, count_of, duration, index_ranges, metric_value, rate, short_number
from gputui.metrics.draw.parts import Line, Span
from gputui.recovery.run_history import Failure
from gputui.recovery.story import causes_of
from gputui.runs.stored_spec import known_spec
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, find
from gputui.ui.tui.actions.key_lines import with_keys
from gputui.ui.tui.layout.columns import fit_line, fit_parts, line_width, wrap_at_most
from gputui.ui.tui.layout.moments import KeyWords, right_end
from gputui.ui.views.run_words import placement_words, run_title, state_sign, status_line, tag_words
from gputui.ui.views.snapshot import Past, RunPage, RunRow

LEAST_NAME = 12
"""Least cells of a run's name in the head."""

MOST_CAUSE_LINES = 3
_DISPENSABLE = 3
_HELPFUL = ("traceback", "section_log", "rerun")


def run_head(page: RunPage, gpus: Sequence[GpuView], now: float, width: int, past: Past | None, keys: KeyWords) -> Line:
    """``vit-b16-1 · ● running ↻2 · step 8 110/90 000 · 9 h 10 left · GPU 6``."""
    run = page.run
    tail = [(" ", "text"), *right_end(now, past, keys)]
    room = width - line_width(tail)
    title_cells = 1 + min(cell_width(run_title(run)), LEAST_NAME)
    for step in _step_words(page):
        parts = _head_parts(page, gpus, now, step)
        while (needed := title_cells + _joined(parts)) > room and max(parts)[0] > _DISPENSABLE:
            parts.remove(max(parts))
        if needed <= room:
            break
    least = _joined([part for part in parts if part[0] < 2])
    title: Line = [(" " + clip_middle(run_title(run), max(LEAST_NAME, room - 1 - least)), "title")]
    return [*fit_parts([title, *([(" · ", "dim"), span] for _, span in parts)], room), *tail]


def _head_parts(page: RunPage, gpus: Sequence[GpuView], now: float, step: str) -> list[tuple[int, Span]]:
    """The parts of the head that are not empty. Each has a number; that with the highest one is left out first."""
    run = page.run
    progress = page.progress
    row = RunRow(run, progress)
    sign = state_sign(row, now)
    status = status_line(row, now)
    if run.state == "failed" or (run.state == "queued" and run.waiting_for):
        # The banner below has the reason.
        status = (_end_words(run, now), "text")
    where: Span = (_gpus_of(run, gpus), "text")
    if run.target is not None:
        where = placement_words(run, now)
        if where[0] == status[0]:
            where = ("", "text")
    loss = pace = attempt = ""
    if progress.loss is not None:
        loss = f"loss {metric_value(progress.loss)}"
    if progress.steps_per_second:
        pace = f"{rate(progress.steps_per_second)} steps/s"
    if run.attempt > 1:
        attempt = f"attempt {run.attempt}"
    parts: list[tuple[int, Span]] = [
        (0, (f"{sign.glyph} {sign.word}", sign.style)),
        (1, (step, "text")),
        (2, status),
        (4, (loss, "text")),
        (_DISPENSABLE, where),
        (5, (pace, "text")),
        (6, (attempt, "text")),
    ]
    return [part for part in parts if part[1][0]]


def _joined(parts: Sequence[tuple[int, Span]]) -> int:
    """Cells of the parts, each behind a dot."""
    return sum(3 + line_width([span]) for _, span in parts)


def _end_words(run: Run, now: float) -> str:
    """``after 2 h 10, 5 min ago``; empty while it has no end."""
    if run.ended_at is None:
        return ""
    if not run.ended_seconds:
        return ago(now - run.ended_at)
    return f"after {duration(run.ended_seconds)}, {ago(now - run.ended_at)}"


def _gpus_of(run: Run, gpus: Sequence[GpuView]) -> str:
    """``GPU 6``, or the number of GPUs that a run without any will get: ``4 GPUs``."""
    if not run.gpus and (spec := known_spec(run)) is not None:
        gpu_count = run.gpu_count or len(spec.gpus.uuids) or spec.gpus.count
        if gpu_count:
            return count_of(gpu_count, "GPU")
    return gpu_words(run.gpus, gpus)


def _step_words(page: RunPage) -> list[str]:
    """``step 8 110/90 000``, then shorter forms of it."""
    step = page.progress.step
    total = page.progress.total_steps
    if step is None:
        return [""]
    if not total:
        return [f"step {count(step)}"]
    short = f"{count(step)}/{short_number(total)}"
    return [f"step {count(step)}/{count(total)}", f"step {short}", short]


def labels_line(run: Run, width: int) -> list[Line]:
    """The id of a renamed run, its tags and its note; nothing if it has none of them."""
    parts = [(tag_words(run), "label"), (clean(run.note or ""), "text")]
    if run.is_renamed:
        parts.insert(0, (clean(run.run_id), "dim"))
    spans = [(f" {text} ", style) for text, style in parts if text]
    if spans:
        return [fit_line(spans, width)]
    return []


def gpu_words(uuids: Sequence[str], gpus: Sequence[GpuView]) -> str:
    """``GPUs 0–3, 6``, ``GPU 6`` or ``CPU``; an unknown GPU has the beginning of its UUID."""
    if not uuids:
        return "CPU"
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    names = [clean(uuid[:12]) for uuid in uuids if uuid not in index_of]
    if indices := index_ranges(sorted(index_of[uuid] for uuid in uuids if uuid in index_of)):
        names.insert(0, indices)
    noun = "GPU" if len(uuids) == 1 else "GPUs"
    return f"{noun} {', '.join(names)}"


# --- a failed run


def fatal_failure(page: RunPage) -> Failure | None:
    """The failure that ended a failed run; None for other runs, or if none is known."""
    if page.run.state == "failed" and page.failures:
        return page.failures[-1]
    return None


def banner_lines(page: RunPage, context: Context, width: int) -> list[Line]:
    """Of a failed run cause, decision and keys that help; of a queued one what it waits for."""
    run = page.run
    if run.state == "queued" and run.waiting_for:
        return _barred(clean(run.waiting_for), "text", width, bar="warn")
    if run.state != "failed":
        return []
    reason = run.reported_reason or "no cause is known"
    fatal = fatal_failure(page)
    decision = None if fatal is None else fatal.decision
    cause = causes_of(reason, decision)
    lines = _barred(clean(cause[:1].upper() + cause[1:]), "bad", width)
    if decision is not None and cause != reason:
        lines += _barred(with_keys(clean(decision.reason), context), "text", width)
    keys: list[list[Span]] = [[(" ┃ ", "bad")]]
    for action in (find(name, "run") for name in _HELPFUL):
        word = action.key_word(context)
        if word and action.why_not(context) is None:
            keys.append([(word, "key"), (f" {action.label or action.tooltip.lower()}   ", "text")])
    return [*lines, fit_parts(keys, width)]


def _barred(text: str, style: str, width: int, *, bar: str = "bad") -> list[Line]:
    """The first lines of a text, behind a bar."""
    parts = wrap_at_most(text, width - 4, MOST_CAUSE_LINES)
    return [fit_line([(" ┃ ", bar), (part, style)], width) for part in parts]
