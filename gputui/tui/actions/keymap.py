"""Which keys lead to which action: the table's own, or those that a person chose instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from gputui.tui.actions import ACTIONS, Action, Scope, actions_in

_SIGNS = {
    "?": "question_mark", "/": "slash", ":": "colon", "!": "exclamation_mark", ",": "comma", ".": "full_stop",
    "<": "less_than_sign", ">": "greater_than_sign", "[": "left_square_bracket", "]": "right_square_bracket",
    "{": "left_curly_bracket", "}": "right_curly_bracket", "+": "plus", "-": "minus", "*": "asterisk",
    "=": "equals_sign", "_": "underscore", "#": "number_sign", "@": "at", "$": "dollar_sign", "%": "percent_sign",
    "^": "circumflex_accent", "&": "ampersand", "(": "left_parenthesis", ")": "right_parenthesis", "'": "apostrophe",
    '"': "quotation_mark", "\\": "backslash", "|": "vertical_line", "~": "tilde", "`": "grave_accent",
    ";": "semicolon",
}  # fmt: skip
_NAMED = frozenset(
    {"enter", "escape", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown"}
    | {"up", "down", "left", "right"}
    | {f"f{number}" for number in range(1, 25)}
)
TYPING: tuple[Scope, ...] = ("profiles", "launch")
"""Screens on which letters and signs are text."""

_MODIFIERS = ("ctrl", "shift", "alt")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of every action where they are not the table's. ``refused`` are sentences on what could not be had."""

    changed: Mapping[tuple[Scope, str], tuple[str, ...]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def on(self, scope: Scope) -> dict[str, tuple[str, ...]]:
        """The changed keys of one screen by action."""
        return {name: keys for (place, name), keys in self.changed.items() if place == scope}

    def for_textual(self) -> dict[str, str]:
        """The same as Textual's keymap."""
        return {f"{scope}.{name}": ",".join(keys) for (scope, name), keys in self.changed.items()}


def key_name(word: str) -> str | None:
    """Textual's name of a key as a person writes it; None when there is no such key."""
    *modifiers, key = word.split("+") if word not in ("+",) and not word.endswith("++") else [word]
    if word.endswith("++") and word != "+":
        modifiers, key = word[:-2].split("+"), "+"
    if any(each not in _MODIFIERS for each in modifiers):
        return None
    if key in _SIGNS:
        key = _SIGNS[key]
    elif not (len(key) == 1 and key.isalnum()) and key not in _NAMED and key not in _SIGNS.values():
        return None
    return "+".join([*modifiers, key])


def resolve(wanted: Mapping[str, str]) -> Keys:
    """The keys that hold when a person wants these: action, or scope.action, to keys with a space between.

    Refused are actions and keys that do not exist, and keys that mean something else on the same screen.
    """
    refused: list[str] = []
    changed: dict[tuple[Scope, str], tuple[str, ...]] = {}
    said_of: dict[tuple[Scope, str], str] = {}
    # The more particular wish counts.
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
        if any("+" not in str(key) and key not in _NAMED for key in keys):
            if all(scope in TYPING for scope, _ in places):
                refused.append(f"keys: {name} cannot have {words}: that is text there.")
            places = [place for place in places if place[0] not in TYPING]
        for place in places:
            changed[place] = tuple(key for key in keys if key)
            said_of[place] = name
    while (clash := _clash(changed)) is not None:
        place, key, other = clash
        del changed[place]
        refused.append(f"keys: {said_of[place]} cannot have {key}: on the {place[0]} page that is {other}.")
    return Keys(changed, tuple(dict.fromkeys(refused)))


def _places(name: str) -> list[tuple[Scope, str]]:
    scope, _, action_name = name.rpartition(".")
    return [
        (each, action.name)
        for each in get_args(Scope)
        for action in actions_in(each)
        if action_name in (action.name, action.former) and scope in ("", each)
    ]


def _clash(changed: Mapping[tuple[Scope, str], tuple[str, ...]]) -> tuple[tuple[Scope, str], str, str] | None:
    """A changed action whose key belongs to another one of its screen, the key, and the other."""
    for scope in get_args(Scope):
        owner: dict[str, Action] = {}
        # The table's own come first: where a wish meets one of them, the wish is refused.
        for action in sorted(actions_in(scope), key=lambda action: (scope, action.name) in changed):
            for key in changed.get((scope, action.name), action.keys):
                if key in owner and owner[key] is not action:
                    return (scope, action.name), key, owner[key].label
                owner[key] = action
    return None
