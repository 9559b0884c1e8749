"""Keys by Textual's names, as they are printed, and as a person types them into the settings."""

from __future__ import annotations

import string
import unicodedata

# As Textual derives names from Unicode's.
_OTHER_NAMES = {"solidus": "slash", "reverse_solidus": "backslash", "commercial_at": "at", "hyphen_minus": "minus",
                "plus_sign": "plus", "low_line": "underscore"}  # fmt: skip
_NAMES = {sign: unicodedata.name(sign).lower().replace("-", "_").replace(" ", "_") for sign in string.punctuation}
_SIGNS = {sign: _OTHER_NAMES.get(name, name) for sign, name in _NAMES.items()}
NAMED = frozenset(
    {"enter", "escape", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown"}
    | {"up", "down", "left", "right"}
    | {f"f{number}" for number in range(1, 25)}
)
"""Keys that have a name and type no text."""

_MODIFIERS = {"ctrl": "^", "shift": "⇧", "alt": "M-"}
_PRINTED = {
    **{name: sign for sign, name in _SIGNS.items()},
    "enter": "↵", "escape": "esc", "backspace": "bksp", "delete": "del", "pageup": "pgup", "pagedown": "pgdn",
    "up": "↑", "down": "↓", "left": "←", "right": "→",
}  # fmt: skip
_PRINTED_ASCII = {**_PRINTED, "enter": "ret", "up": "up", "down": "down", "left": "left", "right": "right"}


def key_word(key: str, *, is_ascii: bool = False) -> str:
    """A key as it is printed: ``↵``, ``^p``, ``⇧tab``."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    marks = {**_MODIFIERS, "shift": "S-"} if is_ascii else _MODIFIERS
    printed = _PRINTED_ASCII if is_ascii else _PRINTED
    return "".join(marks.get(each, f"{each}+") for each in modifiers) + printed.get(name, name)


def key_name(word: str) -> str | None:
    """Textual's name of a key as the settings have it (``ctrl+p``, ``?``); None for no such key."""
    *modifiers, key = word.split("+") if word not in ("+",) and not word.endswith("++") else [word]
    if word.endswith("++") and word != "+":
        modifiers, key = word[:-2].split("+"), "+"
    if any(each not in _MODIFIERS for each in modifiers):
        return None
    if key in _SIGNS:
        key = _SIGNS[key]
    elif not (len(key) == 1 and key.isalnum()) and key not in NAMED and key not in _SIGNS.values():
        return None
    return "+".join([*modifiers, key])
