"""What a person can do, as a table; bindings, footer, help and palette are made from it.

In: the context of a page (its run, GPU, alert; the moment). Out: which actions there are, their keys and words, and
why one is not possible now. What an action does is a method ``do_<name>`` of the page or of a part of the app. Read
``table`` first.
"""

from __future__ import annotations

from gputui.tui.actions.key_words import key_word
from gputui.tui.actions.model import Action, Context, Scope
from gputui.tui.actions.reasons import refused_here
from gputui.tui.actions.table import ACTIONS, actions_in, find

__all__ = ["ACTIONS", "Action", "Context", "Scope", "actions_in", "find", "key_word", "refused_here"]
