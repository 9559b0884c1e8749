"""Keys as they are printed."""

from __future__ import annotations

_KEY_WORDS = {
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "comma": ",",
    "semicolon": ";",
    "full_stop": ".",
    "exclamation_mark": "!",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "asterisk": "*",
    "enter": "↵",
    "escape": "esc",
    "backspace": "bksp",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "delete": "del",
}
_ASCII_KEY_WORDS = {"enter": "ret", "up": "up", "down": "down", "left": "left", "right": "right"}


def key_word(key: str, *, is_ascii: bool = False) -> str:
    """A key as it is printed: ``↵``, ``^p``, ``⇧tab``."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    marks = {"ctrl": "^", "shift": "S-" if is_ascii else "⇧", "alt": "M-"}
    words = _ASCII_KEY_WORDS if is_ascii and name in _ASCII_KEY_WORDS else _KEY_WORDS
    return "".join(marks.get(each, f"{each}+") for each in modifiers) + words.get(name, name)
