"""Everything a person can do, declared once: keys, words, and why not now. Bindings, footer, help and palette are made
from this table; what an action does is a method ``do_<id>`` of the screen or the app."""

from __future__ import annotations

from gputui.tui.actions.alerts import ALERT_ACTIONS
from gputui.tui.actions.comparison import COMPARE_ACTIONS
from gputui.tui.actions.everywhere import EVERYWHERE
from gputui.tui.actions.key_words import key_word
from gputui.tui.actions.machine import MACHINE_ACTIONS
from gputui.tui.actions.model import Action, Context, Scope
from gputui.tui.actions.overview import OVERVIEW_ACTIONS
from gputui.tui.actions.reasons import refused_here
from gputui.tui.actions.run_page import RUN_ACTIONS

__all__ = ["ACTIONS", "Action", "Context", "Scope", "actions_in", "find", "key_word", "refused_here"]

# The footer takes what fits in this order.
ACTIONS: tuple[Action, ...] = (
    *OVERVIEW_ACTIONS,
    *RUN_ACTIONS,
    *MACHINE_ACTIONS,
    *COMPARE_ACTIONS,
    *ALERT_ACTIONS,
    *EVERYWHERE,
)


def actions_in(scope: Scope) -> list[Action]:
    """What there is to do on a screen, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str) -> Action:
    """The action of this name. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name:
            return action
    raise KeyError(name)
