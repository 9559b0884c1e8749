"""Actions on all marked runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputui.runs.selection import REFUSALS
from gputui.store.commands import AgentVerb
from gputui.store.runs import Run
from gputui.ui.tui.actions.checks import needs_write
from gputui.ui.tui.actions.context import Context


class BulkAction(NamedTuple):
    """What an action does with all marked runs.

    Attributes:
        verb: the agent's command.
        word: the action in a word.
        effect: a sentence for the question; "" for an action that asks for its arguments first.
        args: the arguments of the command.
    """

    verb: AgentVerb
    word: str
    effect: str
    args: Mapping[str, object] = {}

    def runs_of(self, marked: Iterable[Run]) -> list[Run]:
        """Those of the marked runs that it can be done with."""
        return [run for run in marked if REFUSALS[self.verb](run) is None]

    def refused(self, marked: Iterable[Run]) -> dict[str, str]:
        """Why it cannot be done with the others, by their ids."""
        return {run.run_id: reason for run in marked if (reason := REFUSALS[self.verb](run)) is not None}


BULK_ACTIONS: Mapping[str, BulkAction] = {
    "stop": BulkAction("stop", "Stop", "Processes get the time to write a checkpoint, then they end.", {"now": False}),
    "resume": BulkAction("resume", "Resume", "Each goes on from its newest valid checkpoint.", {"set": {}}),
    "restart": BulkAction("restart", "Restart", "Each begins at step 0, with the parameters of its launch."),
    "remove": BulkAction("rm", "Remove", "Metrics, logs and checkpoints are removed, too. This cannot be undone."),
    "label": BulkAction("label", "Label", ""),
}
"""The actions that act on the marked runs where there are any."""


ACTIONS_ON_MARKED = (*BULK_ACTIONS, "rerun")
"""The names of the bulk actions, and of the choice between resume and restart."""


def marked_count(name: str, context: Context) -> int:
    """The number of the marked runs that one of `ACTIONS_ON_MARKED` can be done with."""
    actions = ("resume", "restart") if name == "rerun" else (name,)
    return len({run.run_id for action in actions for run in BULK_ACTIONS[action].runs_of(context.marked)})


def marked_refusal(name: str, context: Context) -> str | None:
    """Why one of `ACTIONS_ON_MARKED` is not possible with the marked runs."""
    if (sentence := needs_write(context)) is not None:
        return sentence
    if marked_count(name, context) > 0:
        return None
    return f"None of the marked runs can be acted on so ({len(context.marked)} marked; esc unmarks)."
