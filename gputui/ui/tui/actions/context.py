"""The state of a page, and the reasons why an action is not possible in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from gputui.runs.selection import REFUSALS
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView
from gputui.store.run_states import predicate
from gputui.store.runs import Run

Scope = Literal[
    "overview", "run", "profiles", "launch", "alerts", "gpu", "compare", "processes", "studies", "study_files"
]  # fmt: skip


class Context(Struct, frozen=True):
    """The state of a page that decides whether an action is possible, and how keys are printed.

    Actions apply to the ``marked`` runs (those of `OF_MARKED`), to ``run``, ``gpu``, ``alert``, ``pid``, or to the
    study in the state ``study``.
    ``past_at``, ``blocked_by`` (why the form cannot be started) and ``connection_lag`` are words.
    """

    scope: Scope
    run: Run | None = None
    marked: tuple[Run, ...] = ()
    section: str = "runs"
    gpu: GpuView | None = None
    alert: AlertView | None = None
    pid: int | None = None
    study: str | None = None
    quarantined: frozenset[str] = frozenset()
    has_studies: bool = False
    is_readonly: bool = False
    past_at: str | None = None
    blocked_by: str | None = None
    connection_lag: str | None = None
    is_ascii: bool = False
    lacks_traceback: bool = False
    keys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def study_phrase(self) -> str:
        return predicate(self.study or "unknown")

    @property
    def is_study_row(self) -> bool:
        """True if the cursor of the overview is on the row of a study."""
        return self.scope == "overview" and self.study is not None


class OfMarked(NamedTuple):
    """What an action does with all marked runs: the agent's verb with its arguments, a word, and the effect as a
    sentence. One without an effect asks for its arguments first."""

    verb: str
    word: str
    effect: str
    args: Mapping[str, object] = {}

    def runs_of(self, marked: Iterable[Run]) -> list[Run]:
        """Those of the marked runs that it can be done with."""
        return [run for run in marked if REFUSALS[self.verb](run) is None]

    def refused(self, marked: Iterable[Run]) -> dict[str, str]:
        """Why it cannot be done with the others, by their ids."""
        return {run.run_id: reason for run in marked if (reason := REFUSALS[self.verb](run)) is not None}


OF_MARKED: Mapping[str, OfMarked] = {
    "stop": OfMarked("stop", "Stop", "Processes get the time to write a checkpoint, then they end.", {"now": False}),
    "resume": OfMarked("resume", "Resume", "Each goes on from its newest valid checkpoint.", {"set": {}}),
    "restart": OfMarked("restart", "Restart", "Each begins at step 0, with the parameters of its launch."),
    "remove": OfMarked("rm", "Remove", "Metrics, logs and checkpoints are removed, too. This cannot be undone."),
    "label": OfMarked("label", "Label", ""),
}
"""The actions that act on the marked runs where there are any."""


MARKED_ACTIONS = (*OF_MARKED, "rerun")
"""Those, and the choice between resume and restart."""


def marked_count(name: str, context: Context) -> int:
    """The number of the marked runs that one of `MARKED_ACTIONS` can be done with."""
    names = ("resume", "restart") if name == "rerun" else (name,)
    return len({run.run_id for each in names for run in OF_MARKED[each].runs_of(context.marked)})


def marked_refusal(name: str, context: Context) -> str | None:
    """Why one of `MARKED_ACTIONS` is not possible with the marked runs."""
    if (words := refusal("change", context)) is not None:
        return words
    if marked_count(name, context) > 0:
        return None
    return f"None of the marked runs can be acted on so ({len(context.marked)} marked; esc unmarks)."


Check = tuple[Callable[[Context], object], str]
"""What refuses an action, and the sentence about it, which may name the context (``c``) and what refused (``why``)."""

NO_RUN = "There is no run to choose."
_NOW = "{c.run.run_id} {c.run.state.phrase}"
_GONE = "This event is about no {} that is still there."
_SEVERAL = "Several GPUs are in quarantine; choose one with tab and the arrow keys."

# A text in place of a check is the names of several, in the order in which they are tried.
CHECKS: Mapping[str, str | Check] = {
    "change": "writable present",
    "writable": (lambda c: c.is_readonly, "This view is read only."),
    "present": (lambda c: c.past_at, "You look at {why}, and this would change the present; L returns to it."),
    "past": (lambda c: c.past_at is None, "This is the present already; < looks back."),
    "run": "no_study some_run",
    "run_or_marked": (lambda c: not c.marked and refusal("run", c), "{why}"),
    "no_study": (lambda c: c.is_study_row, "This row is a study: enter opens it and its trials."),
    "some_run": (lambda c: c.run is None, NO_RUN),
    "queued": (lambda c: c.run and c.run.state != "queued", f"{_NOW}; only a waiting run can move in the queue."),
    "resumable": (lambda c: c.run and REFUSALS["resume --force"](c.run), "{c.run.run_id} has {why}."),
    "ended": (lambda c: c.run and not c.run.state.is_over, f"{_NOW}; only an ended run can be resumed."),
    "idle": (lambda c: c.run and not c.run.state.is_over, f"{_NOW}; stop it first."),
    "settled": "not_waiting not_ending",
    "not_waiting": (
        lambda c: c.run and c.run.state in ("queued", "recovering"), f"{_NOW} still: stop it first.",
    ),
    "not_ending": (lambda c: c.run and c.run.state == "stopping", f"{_NOW}: wait for its end."),
    "active": (lambda c: c.run and (c.run.state.is_over or c.run.state == "stopping"), f"{_NOW} already."),
    "study": (lambda c: c.study is None, "There is no study."),
    "study_live": (lambda c: c.study not in ("running", "paused"), "This study {c.study_phrase}."),
    "study_resumable": "study_unfinished study_idle",
    "study_unfinished": (lambda c: c.study in ("finished", "failed"), "This study {c.study_phrase}; extend it."),
    "study_idle": (lambda c: c.study not in ("paused", "stopped"), "This study {c.study_phrase}."),
    "study_active": (
        lambda c: c.study not in ("running", "paused", "unknown"), "This study {c.study_phrase}: it has no run to end.",
    ),
    "gpu": "gpu_of_event some_gpu",
    "gpu_of_event": (lambda c: c.gpu is None and c.section == "events", _GONE.format("GPU")),
    "some_gpu": (lambda c: c.gpu is None, "There is no GPU."),
    "row": "row_event row_gpu row_run",
    "row_event": (lambda c: c.section == "events" and c.run is None and c.gpu is None, _GONE.format("run or GPU")),
    "row_gpu": (lambda c: c.section == "gpus" and c.gpu is None, "There is no GPU."),
    "row_run": (lambda c: c.section == "runs" and c.study is None and c.run is None, NO_RUN),
    "quarantine": "some_quarantine one_quarantine",
    "some_quarantine": (lambda c: not c.quarantined, "No GPU is in quarantine."),
    "one_quarantine": (
        lambda c: len(c.quarantined) > 1 and (c.gpu is None or c.gpu.uuid not in c.quarantined), _SEVERAL,
    ),
    "sound": (lambda c: c.gpu and c.gpu.uuid in c.quarantined, "GPU {c.gpu.index} is in quarantine already."),
    "process": (lambda c: c.pid is None, "There is no process to choose."),
    "alert": (lambda c: c.alert is None, "There is no alert to choose."),
    "alert_run": (lambda c: c.run is None, "This alert is about no known run."),
    "alert_active": (lambda c: c.alert and not c.alert.lasts, "This alert is resolved."),
    "alert_new": (
        lambda c: c.alert and c.alert.acknowledged_at is not None,
        "{c.alert.acknowledged_by} has acknowledged it already.",
    ),
    "traceback": (lambda c: c.lacks_traceback, "There is no traceback in its log."),
    "form": (lambda c: c.blocked_by, "{why}"),
}  # fmt: skip


def refusal(checks: str, context: Context) -> str | None:
    """The sentence of the first check that refuses; of ``a|b``, ``a`` is for the row of a study."""
    of_study, _, of_run = checks.rpartition("|")
    for name in (of_study if of_study and context.is_study_row else of_run).split():
        check = CHECKS[name]
        if isinstance(check, str):
            words = refusal(check, context)
        else:
            why = check[0](context)
            words = check[1].format(c=context, why=why) if why else None
        if words is not None:
            return words
    return None
