"""Keys by Textual's names, as they are printed, and as a person types them into the settings."""

from __future__ import annotations

_SIGNS = {
    "?": "question_mark", "/": "slash", ":": "colon", "!": "exclamation_mark", ",": "comma", ".": "full_stop",
    "<": "less_than_sign", ">": "greater_than_sign", "[": "left_square_bracket", "]": "right_square_bracket",
    "{": "left_curly_bracket", "}": "right_curly_bracket", "+": "plus", "-": "minus", "*": "asterisk",
    "=": "equals_sign", "_": "underscore", "#": "number_sign", "@": "at", "$": "dollar_sign", "%": "percent_sign",
    "^": "circumflex_accent", "&": "ampersand", "(": "left_parenthesis", ")": "right_parenthesis", "'": "apostrophe",
    '"': "quotation_mark", "\\": "backslash", "|": "vertical_line", "~": "tilde", "`": "grave_accent",
    ";": "semicolon",
}  # fmt: skip
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
    """Textual's name of a key as it is written in the settings (``ctrl+p``, ``?``); None if there is no such key."""
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
