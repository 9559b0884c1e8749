"""The keys of actions: those of the table, or those of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec import Struct

from gputui.ui.tui.actions import ACTIONS, Action, Scope, actions_in
from gputui.ui.tui.actions.key_names import NAMED, key_name

TYPING: tuple[Scope, ...] = ("profiles", "launch", "study_files")
"""Pages on which letters and signs are text."""


class Keys(Struct, frozen=True):
    """The keys that differ from the table's, by page and action; ``refused`` are sentences about the
    wishes that cannot be met."""

    changed: Mapping[tuple[Scope, str], tuple[str, ...]] = msgspec.field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def on(self, scope: Scope) -> dict[str, tuple[str, ...]]:
        """The changed keys of one page, by action."""
        return {name: keys for (place, name), keys in self.changed.items() if place == scope}

    def action(self, scope: Scope, key: str) -> str | None:
        """The name of the action that a key leads to on a page; None if there is none."""
        for action in actions_in(scope):
            if key in self.changed.get((scope, action.name), action.keys):
                return action.name
        return None


def resolve(wanted: Mapping[str, str]) -> Keys:
    """The effective keys for the wishes of a settings file.

    ``wanted`` maps an action, or ``page.action``, to keys separated by spaces. Refused are actions and
    keys that do not exist, and keys that mean something else on the same page.
    """
    refused: list[str] = []
    changed: dict[tuple[Scope, str], tuple[str, ...]] = {}
    # A wish for one page overrides one for all.
    for name, words in sorted(wanted.items(), key=lambda item: "." in item[0]):
        page, _, wished = name.rpartition(".")
        places = [
            scope for action in ACTIONS if action.name == wished for scope in action.scopes if page in ("", scope)
        ]
        keys = [key_name(word) for word in words.split()]
        if any(key is not None and "+" not in key and key not in NAMED for key in keys):
            typing, places = places, [scope for scope in places if scope not in TYPING]
            if typing and not places:
                refused.append(f"keys: {name} cannot have {words}: that is text there.")
                continue
        if not places:
            refused.append(f"keys: no action is named {name}.")
        elif not keys or None in keys:
            refused.append(f"keys: {name} cannot have {words or 'no key'}: there is no such key.")
        else:
            changed |= {(scope, wished): tuple(key for key in keys if key) for scope in places}
    while (clash := _clash(changed)) is not None:
        place, key, other = clash
        del changed[place]
        refused.append(f"keys: {place[1]} cannot have {key}: on the {place[0]} page that is {other}.")
    return Keys(changed, tuple(refused))


def _clash(changed: Mapping[tuple[Scope, str], tuple[str, ...]]) -> tuple[tuple[Scope, str], str, str] | None:
    """A changed action with a key of another one on its page, that key, and the other's label."""
    for scope in get_args(Scope):
        owner: dict[str, Action] = {}
        # Unchanged actions come first: of two actions with one key the changed one is refused.
        for action in sorted(actions_in(scope), key=lambda action: (scope, action.name) in changed):
            for key in changed.get((scope, action.name), action.keys):
                if key in owner and owner[key] is not action:
                    return (scope, action.name), key, owner[key].label
                owner[key] = action
    return None
