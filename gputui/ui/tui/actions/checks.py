"""What actions need of a page: each check returns the sentence that refuses an action, or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.runs.selection import REFUSALS
from gputui.ui.tui.actions.context import Context

Check = Callable[[Context], str | None]

NO_RUN = "There is no run to choose."


def first_refusal(checks: Sequence[Check], context: Context) -> str | None:
    """The sentence of the first check that refuses."""
    return next(filter(None, (check(context) for check in checks)), None)


# --- the view


def needs_write(context: Context) -> str | None:
    if context.is_readonly:
        return "This view is read only."
    if context.past_at:
        return f"You look at {context.past_at}, and this would change the present; L returns to it."
    return None


def needs_past(context: Context) -> str | None:
    if context.past_at is None:
        return "This is the present already; < looks back."
    return None


# --- runs


def needs_run(context: Context) -> str | None:
    if context.is_study_row:
        return "This row is a study: enter opens it and its trials."
    if context.run is None:
        return NO_RUN
    return None


def needs_run_or_marked(context: Context) -> str | None:
    if context.marked:
        return None
    return needs_run(context)


def needs_queued_run(context: Context) -> str | None:
    if context.run is None or context.run.state == "queued":
        return None
    return f"{_now(context)}; only a waiting run can move in the queue."


def needs_resumable_run(context: Context) -> str | None:
    if context.run is None:
        return None
    if not context.run.state.is_over:
        return f"{_now(context)}; only an ended run can be resumed."
    reason = REFUSALS["resume --force"](context.run)
    if reason is None:
        return None
    return f"{context.run.run_id} has {reason}."


def needs_settled_run(context: Context) -> str | None:
    if context.run is not None and context.run.state in ("queued", "recovering"):
        return f"{_now(context)} still: stop it first."
    return needs_no_pending_stop(context)


def needs_no_pending_stop(context: Context) -> str | None:
    if context.run is not None and context.run.state == "stopping":
        return f"{_now(context)}: wait for its end."
    return None


def needs_ended_run(context: Context) -> str | None:
    if context.run is not None and not context.run.state.is_over:
        return f"{_now(context)}; stop it first."
    return None


def needs_active_run(context: Context) -> str | None:
    if context.run is not None and (context.run.state.is_over or context.run.state == "stopping"):
        return f"{_now(context)} already."
    return None


def needs_traceback(context: Context) -> str | None:
    if context.lacks_traceback:
        return "There is no traceback in its log."
    return None


def needs_startable_form(context: Context) -> str | None:
    return context.blocked_by or None


def _now(context: Context) -> str:
    assert context.run is not None
    return f"{context.run.run_id} {context.run.state.phrase}"


# --- studies


def needs_study(context: Context) -> str | None:
    if context.study is None:
        return "There is no study."
    return None


def needs_live_study(context: Context) -> str | None:
    if context.study in ("running", "paused"):
        return None
    return f"This study {context.study_phrase}."


def needs_resumable_study(context: Context) -> str | None:
    match context.study:
        case "paused" | "stopped":
            return None
        case "finished" | "failed":
            return f"This study {context.study_phrase}; extend it."
    return f"This study {context.study_phrase}."


def needs_active_study(context: Context) -> str | None:
    if context.study in ("running", "paused", "unknown"):
        return None
    return f"This study {context.study_phrase}: it has no run to end."


# --- GPUs, processes and alerts


def needs_gpu(context: Context) -> str | None:
    if context.gpu is not None:
        return None
    if context.section == "events":
        return "This event is about no GPU that is still there."
    return "There is no GPU."


def needs_row(context: Context) -> str | None:
    """A row under the overview's cursor that can be opened."""
    match context.section:
        case "events" if context.run is None and context.gpu is None:
            return "This event is about no run or GPU that is still there."
        case "gpus" if context.gpu is None:
            return "There is no GPU."
        case "runs" if context.study is None and context.run is None:
            return NO_RUN
    return None


def needs_quarantined_gpu(context: Context) -> str | None:
    if not context.quarantined:
        return "No GPU is in quarantine."
    if len(context.quarantined) > 1 and (context.gpu is None or context.gpu.uuid not in context.quarantined):
        return "Several GPUs are in quarantine; choose one with tab and the arrow keys."
    return None


def needs_sound_gpu(context: Context) -> str | None:
    if context.gpu is not None and context.gpu.uuid in context.quarantined:
        return f"GPU {context.gpu.index} is in quarantine already."
    return None


def needs_process(context: Context) -> str | None:
    if context.pid is None:
        return "There is no process to choose."
    return None


def needs_alert(context: Context) -> str | None:
    if context.alert is None:
        return "There is no alert to choose."
    return None


def needs_run_of_alert(context: Context) -> str | None:
    if context.run is None:
        return "This alert is about no known run."
    return None


def needs_active_alert(context: Context) -> str | None:
    if context.alert is not None and not context.alert.lasts:
        return "This alert is resolved."
    return None


def needs_unacknowledged_alert(context: Context) -> str | None:
    if context.alert is None or context.alert.acknowledged_at is None:
        return None
    return f"{context.alert.acknowledged_by} has acknowledged it already."
