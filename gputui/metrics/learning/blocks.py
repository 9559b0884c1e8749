"""Records of several lines as one line: a box of names and values, and a printed dictionary."""

from __future__ import annotations

import re

MAX_LINES = 64
MAX_CHARACTERS = 4000

# A name without a number of its own, and a value: "| epoch 1 | loss 0.5 |" is a line like others.
_ROW = re.compile(r"\s*[|│┃](?![^|│┃]*\s\d)\s*([^|│┃]+?)\s*[|│┃]\s*([-+.\d][^|│┃]*?|[^|│┃\d]*?)\s*[|│┃]\s*")
_RULE = re.compile(r"\s*[-=+|─━┌└├┬┴┐┘┤╭╰╮╯═┼#*]{6,}\s*")
_BEGINNINGS = ("{", "|", "│", "┃")
_ITEM = re.compile(r"""\s*(?:['"][^'"]+['"]\s*:.*|[\d.\[\]{}(),'" +-]+)""")


class Blocks:
    """Joins the lines of a record. ``state`` is the record that has begun."""

    def __init__(self, state: tuple[str, ...] = ()) -> None:
        self._lines = list(state)

    @property
    def state(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def add(self, text: str) -> str | None:
        """Take a line and return it; None if it belongs to a record that goes on, the whole record if it ends one."""
        if self._lines and self._lines[0][:1] == "{":
            return self._add_to_dictionary(text)
        stripped = text.lstrip()
        if not self._lines and stripped[:1] not in _BEGINNINGS:
            return text
        if stripped[:1] == "{" and _depth(stripped) > 0:
            self._lines = [stripped]
            return None
        row = _ROW.fullmatch(text)
        if row is not None:
            if len(self._lines) < MAX_LINES:
                self._lines.append(f"{row[1]}: {row[2]}")
            return None
        if not self._lines:
            return text
        lines, self._lines = self._lines, []
        return _joined(lines) if _RULE.fullmatch(text) else text

    def _add_to_dictionary(self, text: str) -> str | None:
        if _ITEM.fullmatch(text) is None or len(self._lines) >= MAX_LINES:
            self._lines = []
            return self.add(text)
        self._lines.append(text.strip())
        joined = " ".join(self._lines)[:MAX_CHARACTERS]
        if _depth(joined) > 0:
            return None
        self._lines = []
        return joined


def _depth(text: str) -> int:
    return text.count("{") - text.count("}")


def _joined(lines: list[str]) -> str:
    """The rows of a box as one line; a row without a value is the section of the rows behind it."""
    section = ""
    items = []
    for line in lines:
        name, _, value = line.partition(": ")
        if not value.strip():
            section = name.rstrip(": ").rstrip("/") + "/"
        else:
            items.append(f"{section}{name}: {value}")
    return ", ".join(items)[:MAX_CHARACTERS]
