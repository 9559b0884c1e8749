"""Reasons why an action is not possible now, each a `WhyNot`: a sentence, or None."""

from __future__ import annotations

from collections.abc import Callable

from gputui.store.runs import Run
from gputui.ui.tui.actions.model import Context, WhyNot
from gputui.ui.tui.layout.words import run_sign

NO_RUN = "There is no run to choose."
NO_PROCESS = "There is no process to choose."


def refused_here(context: Context) -> str | None:
    """Why this view changes nothing. Every action that changes something checks this first."""
    if context.is_readonly:
        return "This view is read only."
    if context.past_at is not None:
        return f"You look at {context.past_at}, and this would change the present; L returns to it."
    return None


def needs_run(context: Context) -> str | None:
    if _is_study_row(context):
        return "This row is a study: enter opens it and its trials."
    return None if context.run is not None else NO_RUN


def _is_study_row(context: Context) -> bool:
    return context.scope == "overview" and context.study is not None


def can_open(context: Context) -> str | None:
    if context.section == "gpus" and context.gpu is not None:
        return None
    if context.section == "events":
        is_gone = context.run is None and context.gpu is None
        return "This event is about no run or GPU that is still there." if is_gone else None
    return None if _is_study_row(context) else needs_run(context)


def needs_gpu(context: Context) -> str | None:
    if context.gpu is None and context.section == "events":
        return "This event is about no GPU that is still there."
    return None if context.gpu is not None else "There is no GPU."


def can_clear(context: Context) -> str | None:
    refused = refused_here(context)
    if refused or not context.quarantined:
        return refused or "No GPU is in quarantine."
    if (context.gpu is None or context.gpu.uuid not in context.quarantined) and len(context.quarantined) > 1:
        return "Several GPUs are in quarantine; choose one with tab and the arrow keys."
    return None


def needs_process(context: Context) -> str | None:
    return None if context.pid is not None else NO_PROCESS


def can_signal(context: Context) -> str | None:
    return refused_here(context) or needs_process(context)


def changes_run(context: Context) -> str | None:
    return refused_here(context) or needs_run(context)


def _unless(is_refused: Callable[[Run], bool], why: str) -> WhyNot:
    """The reasons of `changes_run`, and for a refused run its state followed by ``why``."""

    def why_not(context: Context) -> str | None:
        problem, run = changes_run(context), context.run
        if problem is None and run is not None and is_refused(run):
            return f"{run.run_id} is {run_sign(run.state).word}{why}"
        return problem

    return why_not


_can_stop_run = _unless(lambda run: run.state.is_over or run.state == "stopping", " already.")
can_move = _unless(lambda run: run.state != "queued", "; only a waiting run can move in the queue.")
can_resume = _unless(lambda run: not run.state.is_over, "; only an ended run can be resumed.")
can_remove = _unless(lambda run: not run.state.is_over, "; stop it first.")
can_restart = _unless(lambda run: run.state in ("queued", "recovering", "stopping"), "; it cannot be restarted now.")


def can_stop(context: Context) -> str | None:
    return can_stop_study(context) if _is_study_row(context) else _can_stop_run(context)


def can_pause_queue(context: Context) -> str | None:
    return can_pause_study(context) if _is_study_row(context) else refused_here(context)


def can_rerun(context: Context) -> str | None:
    return changes_study(context) if _is_study_row(context) else changes_run(context)


def can_launch(context: Context) -> str | None:
    return context.blocked_by


def needs_alert(context: Context) -> str | None:
    return None if context.alert is not None else "There is no alert to choose."


def changes_alert(context: Context) -> str | None:
    problem = refused_here(context) or needs_alert(context)
    if problem is None and context.alert is not None and not context.alert.lasts:
        return "This alert is resolved."
    return problem


def can_acknowledge(context: Context) -> str | None:
    problem = changes_alert(context)
    if problem is None and context.alert is not None and context.alert.acknowledged_at is not None:
        return f"{context.alert.acknowledged_by} has acknowledged it already."
    return problem


def has_run(context: Context) -> str | None:
    problem = needs_alert(context)
    return problem or (None if context.run is not None else "This alert is about no known run.")


def changes_study(context: Context) -> str | None:
    return refused_here(context) or (None if context.study is not None else "There is no study.")


def can_pause_study(context: Context) -> str | None:
    problem = changes_study(context)
    if problem is None and context.study not in ("running", "paused"):
        return f"The study is {context.study}."
    return problem


def can_stop_study(context: Context) -> str | None:
    problem = changes_study(context)
    if problem is None and context.study in ("stopping", "finished", "stopped", "failed", "over"):
        return f"The study is {context.study} already."
    return problem


def looks_back(context: Context) -> str | None:
    return None if context.past_at is not None else "This is the present already; < looks back."
