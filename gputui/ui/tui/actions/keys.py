"""Keys by Textual's names: as they are printed, and as a person types them into the settings."""

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
    | {"up", "down", "left", "right", *(f"f{number}" for number in range(1, 25))}
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
    signs = _PRINTED_ASCII if is_ascii else _PRINTED
    prefix = "".join(marks.get(modifier, f"{modifier}+") for modifier in modifiers)
    return prefix + signs.get(name, name)


def key_name(word: str) -> str | None:
    """Textual's name of a key as the settings have it (``ctrl+p``, ``?``); None for no such key."""
    # The last character is never a separator: ctrl++.
    head, _, rest = word[:-1].rpartition("+")
    modifiers = head.split("+") if head else []
    key = rest + word[-1:]
    key = _SIGNS.get(key, key)
    is_known = (len(key) == 1 and key.isalnum()) or key in NAMED or key in _SIGNS.values()
    if is_known and set(modifiers) <= _MODIFIERS.keys():
        return "+".join([*modifiers, key])
    return None
