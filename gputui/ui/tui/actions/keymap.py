"""The keys of actions: those of the table, or those of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

import msgspec
from msgspec import Struct

from gputui.ui.tui.actions.context import Scope
from gputui.ui.tui.actions.keys import NAMED, key_name, key_word
from gputui.ui.tui.actions.table import ACTIONS, Action, actions_in, find

TYPING = ("profiles", "launch", "study_files")
"""Pages on which letters and signs are text."""

PageAction = tuple[str, str]
"""A page and the name of an action."""


class Keys(Struct, frozen=True):
    """The keys that differ from the table's.

    Attributes:
        refused: sentences about settings that cannot be met.
    """

    changed: Mapping[PageAction, tuple[str, ...]] = msgspec.field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def on(self, scope: str) -> dict[str, tuple[str, ...]]:
        """The changed keys of one page, by action."""
        return {name: keys for (page, name), keys in self.changed.items() if page == scope}

    def action(self, scope: str, key: str) -> str | None:
        """The name of the action that a key leads to on a page; None if there is none."""
        for action in actions_in(scope):
            if key in self.changed.get((scope, action.name), action.keys):
                return action.name
        return None

    def elsewhere(self, scope: str, key: str) -> str:
        """A sentence about a key without an action on a page: what it does on the first page that has one for it."""
        for action in ACTIONS:
            for page in action.scopes:
                if key in self.changed.get((page, action.name), action.keys):
                    phrase = re.split("[:;] ", action.tooltip)[0]
                    return f"{key_word(key)} does nothing here; on the {page} page: {phrase[0].lower()}{phrase[1:]}."
        return f"{key_word(key)} does nothing here; {self.word('help', scope)} lists the keys."

    def word(self, name: str, scope: str) -> str:
        """The key of an action in a sentence on a page: ``C``, elsewhere than on its pages ``C on the overview``."""
        pages = [page for action in ACTIONS if action.name == name for page in action.scopes]
        if scope in pages:
            keys = self.changed.get((scope, name), find(name, scope).keys)
            return key_word(keys[0])
        return f"{self.word(name, pages[0])} on the {pages[0]}"


class _Clash(NamedTuple):
    """A changed action, and a key that another action on its page has already.

    Attributes:
        owner: the other action.
    """

    page: str
    action_name: str
    key: str
    owner: Action

    @property
    def refusal(self) -> str:
        """A sentence about it."""
        meaning = self.owner.label or self.owner.name
        return f"keys: {self.action_name} cannot have {self.key}: on the {self.page} page that is {meaning}."


def resolve_keys(settings: Mapping[str, str]) -> Keys:
    """The keys of the settings, which map an action or ``page.action`` to keys: ``{"overview.fold": "f7 ctrl+a"}``."""
    refused: list[str] = []
    changed: dict[PageAction, tuple[str, ...]] = {}
    # A setting for one page overrides one for all.
    for name, setting in sorted(settings.items(), key=lambda item: "." in item[0]):
        try:
            changed |= _resolve(name, setting)
        except ValueError as error:
            refused.append(f"keys: {error}.")
    while (clash := _clash(changed)) is not None:
        del changed[clash.page, clash.action_name]
        refused.append(clash.refusal)
    return Keys(changed, tuple(refused))


def _resolve(name: str, setting: str) -> dict[PageAction, tuple[str, ...]]:
    """The keys of one setting, on each page where its action can have them. Raises ValueError without such a key or
    page."""
    page, _, action_name = name.rpartition(".")
    actions = [action for action in ACTIONS if action.name == action_name]
    pages = [scope for action in actions for scope in action.scopes if page in ("", scope)]
    if not pages:
        raise ValueError(f"no action is named {name}")
    keys = tuple(key for word in setting.split() if (key := key_name(word)) is not None)
    if not keys or len(keys) < len(setting.split()):
        raise ValueError(f"{name} cannot have {setting or 'no key'}: there is no such key")
    if any("+" not in key and key not in NAMED for key in keys):
        pages = [scope for scope in pages if scope not in TYPING]
    if not pages:
        raise ValueError(f"{name} cannot have {setting}: that is text there")
    return {(scope, action_name): keys for scope in pages}


def _clash(changed: Mapping[PageAction, tuple[str, ...]]) -> _Clash | None:
    """The first changed action with a key of another one on its page."""
    for scope in get_args(Scope):
        owner: dict[str, Action] = {}
        # Unchanged actions come first: of two actions with one key the changed one is refused.
        for action in sorted(actions_in(scope), key=lambda action: (scope, action.name) in changed):
            for key in changed.get((scope, action.name), action.keys):
                if owner.setdefault(key, action) is not action:
                    return _Clash(scope, action.name, key, owner[key])
    return None
