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
    """The keys that differ from the table's, by page and action; ``refused`` are sentences about wishes that cannot be
    met."""

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

    ``wanted`` maps an action, or ``page.action``, to keys separated by spaces. Refused are actions and keys that do not
    exist, and keys that mean something else on the same page.
    """
    refused: list[str] = []
    changed: dict[tuple[Scope, str], tuple[str, ...]] = {}
    wished_as: dict[tuple[Scope, str], str] = {}
    # A wish for one page overrides one for all.
    for name, words in sorted(wanted.items(), key=lambda item: "." in item[0]):
        places = _places(name)
        if not places:
            import difflib

            near = difflib.get_close_matches(name.rpartition(".")[2], [action.name for action in ACTIONS], 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            refused.append(f"keys: no action is named {name}{hint}.")
            continue
        keys = [key_name(word) for word in words.split()]
        if not keys or None in keys:
            wrong = next((word for word, key in zip(words.split(), keys, strict=True) if key is None), words)
            refused.append(f"keys: {name} cannot have {wrong or 'no key'}: there is no such key.")
            continue
        if any("+" not in str(key) and key not in NAMED for key in keys):
            if all(scope in TYPING for scope, _ in places):
                refused.append(f"keys: {name} cannot have {words}: that is text there.")
            places = [place for place in places if place[0] not in TYPING]
        for place in places:
            changed[place] = tuple(key for key in keys if key)
            wished_as[place] = name
    while (clash := _clash(changed)) is not None:
        place, key, other = clash
        del changed[place]
        refused.append(f"keys: {wished_as[place]} cannot have {key}: on the {place[0]} page that is {other}.")
    return Keys(changed, tuple(dict.fromkeys(refused)))


def _places(name: str) -> list[tuple[Scope, str]]:
    scope, _, action_name = name.rpartition(".")
    return [
        (each, action.name)
        for each in get_args(Scope)
        for action in actions_in(each)
        if action_name == action.name and scope in ("", each)
    ]


def _clash(changed: Mapping[tuple[Scope, str], tuple[str, ...]]) -> tuple[tuple[Scope, str], str, str] | None:
    """A changed action with a key of another action on its page, that key, and the other action's label."""
    for scope in get_args(Scope):
        owner: dict[str, Action] = {}
        # Unchanged actions come first, so that of two actions with one key the changed one is refused.
        for action in sorted(actions_in(scope), key=lambda action: (scope, action.name) in changed):
            for key in changed.get((scope, action.name), action.keys):
                if key in owner and owner[key] is not action:
                    return (scope, action.name), key, owner[key].label
                owner[key] = action
    return None
