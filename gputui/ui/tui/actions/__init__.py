"""Everything a person can do, as one table; keys, footer, help and palette are made from it.

In: the context of a page. Out: its actions, their keys and words, and why one is not possible now.
Read ``table`` first.
"""

from __future__ import annotations

from gputui.ui.tui.actions.context import Context, Scope
from gputui.ui.tui.actions.table import ACTIONS, Action, actions_in, find

__all__ = ["ACTIONS", "Action", "Context", "Scope", "actions_in", "find"]
