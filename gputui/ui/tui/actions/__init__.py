"""Everything a person can do, as one table; bindings, footer, help and palette are made from it.

In: the context of a page. Out: its actions, their keys and words, and why one is not possible now.
Read ``table`` first.
"""

from __future__ import annotations

from gputui.ui.tui.actions.key_names import key_word
from gputui.ui.tui.actions.model import Action, Context, Scope
from gputui.ui.tui.actions.reasons import refused_here
from gputui.ui.tui.actions.table import ACTIONS, actions_in, find

__all__ = ["ACTIONS", "Action", "Context", "Scope", "actions_in", "find", "key_word", "refused_here"]
