"""Reasons why an action is not possible now, each a `WhyNot`: a sentence, or None."""

from __future__ import annotations

from collections.abc import Callable

from gputui.store.runs import Run
from gputui.ui.tui.actions.model import Context, WhyNot
from gputui.ui.tui.layout.words import run_sign

NO_RUN = "There is no run to choose."


def where(is_refused: Callable[[Context], object], words: str) -> WhyNot:
    """Refuse in ``words`` where it is so; they may name the context (``c``) and the run's state."""

    def why_not(context: Context) -> str | None:
        if not is_refused(context):
            return None
        return words.format(c=context, word=run_sign(context.run.state).word if context.run else "")

    return why_not


def first(*reasons: WhyNot) -> WhyNot:
    """The first of several reasons."""
    return lambda context: next((words for why_not in reasons if (words := why_not(context))), None)


def on_study(of_study: WhyNot, of_run: WhyNot) -> WhyNot:
    """The reason of an action that applies to a study where the cursor of the overview is on its row."""
    return lambda context: (of_study if _is_study_row(context) else of_run)(context)


def _is_study_row(context: Context) -> bool:
    return context.scope == "overview" and context.study is not None


refused_here = first(
    where(lambda c: c.is_readonly, "This view is read only."),
    where(lambda c: c.past_at, "You look at {c.past_at}, and this would change the present; L returns to it."),
)
"""Why this view changes nothing. Every action that changes something checks this first."""

needs_run = first(
    where(_is_study_row, "This row is a study: enter opens it and its trials."),
    where(lambda c: c.run is None, NO_RUN),
)
changes_run = first(refused_here, needs_run)


def _run_is(is_refused: Callable[[Run], bool], words: str) -> WhyNot:
    """The reasons of `changes_run`, and for a refused run its state followed by ``words``."""
    return first(changes_run, where(lambda c: c.run and is_refused(c.run), "{c.run.run_id} is {word}" + words))


can_move = _run_is(lambda run: run.state != "queued", "; only a waiting run can move in the queue.")
can_resume = _run_is(lambda run: not run.state.is_over, "; only an ended run can be resumed.")
can_remove = _run_is(lambda run: not run.state.is_over, "; stop it first.")
can_restart = _run_is(lambda run: run.state in ("queued", "recovering", "stopping"), "; it cannot be restarted now.")

changes_study = first(refused_here, where(lambda c: c.study is None, "There is no study."))
can_pause_study = first(changes_study, where(lambda c: c.study not in ("running", "paused"), "The study is {c.study}."))
can_stop_study = first(
    changes_study,
    where(lambda c: c.study not in ("running", "paused", "unknown"), "The study is {c.study} already."),
)
can_stop = on_study(can_stop_study, _run_is(lambda run: run.state.is_over or run.state == "stopping", " already."))
can_pause_queue = on_study(can_pause_study, refused_here)
can_rerun = on_study(changes_study, changes_run)

_GONE = "This event is about no {what} that is still there."
needs_gpu = first(
    where(lambda c: c.gpu is None and c.section == "events", _GONE.format(what="GPU")),
    where(lambda c: c.gpu is None, "There is no GPU."),
)
can_open = first(
    where(lambda c: c.section == "events" and c.run is None and c.gpu is None, _GONE.format(what="run or GPU")),
    where(lambda c: c.section == "gpus" and c.gpu is None, "There is no GPU."),
    where(lambda c: c.section == "runs" and c.study is None and c.run is None, NO_RUN),
)
can_clear = first(
    refused_here,
    where(lambda c: not c.quarantined, "No GPU is in quarantine."),
    where(
        lambda c: len(c.quarantined) > 1 and (c.gpu is None or c.gpu.uuid not in c.quarantined),
        "Several GPUs are in quarantine; choose one with tab and the arrow keys.",
    ),
)

needs_process = where(lambda c: c.pid is None, "There is no process to choose.")
can_signal = first(refused_here, needs_process)

needs_alert = where(lambda c: c.alert is None, "There is no alert to choose.")
has_run = first(needs_alert, where(lambda c: c.run is None, "This alert is about no known run."))
changes_alert = first(
    refused_here, needs_alert, where(lambda c: c.alert and not c.alert.lasts, "This alert is resolved.")
)
can_acknowledge = first(
    changes_alert,
    where(
        lambda c: c.alert and c.alert.acknowledged_at is not None,
        "{c.alert.acknowledged_by} has acknowledged it already.",
    ),
)

can_launch = where(lambda c: c.blocked_by, "{c.blocked_by}")
looks_back = where(lambda c: c.past_at is None, "This is the present already; < looks back.")
