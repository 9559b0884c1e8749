"""Lines as a program meant them: without what loggers and launchers write before them, and the lines of a box or of a
printed dictionary as one."""

from __future__ import annotations

import re

from gputui.metrics.learning.tokens import STAMP, whole
from gputui.metrics.learning.words import EPOCHS, STEPS

MAX_RANKS = 16  # two nodes whose ranks print into one output
MAX_LINES = 64  # a printed dictionary or table has fewer
MAX_CHARACTERS = 4000  # beyond, reading a line by patterns takes milliseconds

_BARS = re.compile("[|│┃]")
# A name without a number of its own, and a value: "| epoch 1 | loss 0.5 |" is a line like others.
_NAMED_NUMBER = re.compile(r"\s\d")
_VALUE = re.compile(r"[-+.\d].*|\D*", re.DOTALL)
_RULE = re.compile(r"\s*[-=+|─━┌└├┬┴┐┘┤╭╰╮╯═┼#*]{6,}\s*")
_BEGINNINGS = ("{", "|", "│", "┃")
_OPENING = tuple("{[(<'\"")
_ITEM = re.compile(r"""\s*+(?:['"][^'"]+['"]\s*:.*|[\d.\[\]{}(),'" +-]+)""")

_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|NOTICE|TRACE|SUCCESS|Info|info)\b"
_DOTTED = r"[A-Za-z_<][\w<>]*(?:[.:][\w<>]+)+"
_PREFIX = re.compile(
    r"\s*(?:(?:"
    r"\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>"
    r"|\[?(?i:rank|default|local_rank|gpu|worker)[ :=_-]?(?P<rank>\d+)(?:\]|(?=:))"
    r"|\(\w+(?:\(\w+\))? pid=(?P<pid>\d++)[^)]*\)"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./-]+:\d+\]"
    rf"|\[(?:(?:\w )?(?:{STAMP}|\d\d:\d\d:\d\d)|\s*{_LEVEL}|[\w/.]+\.py:\d+|__\w+__\]|\w+(?:\.\w+)+\])[^\[\]]*\]?"
    rf"|(?:{STAMP}|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=\s))"
    rf"|\|\s*(?:[\w.<>/-]+\s*\|\s*)?{_LEVEL}\s*\|(?:\s*{_DOTTED}(?=\s*-\s))?"
    rf"|(?:-\s*)?(?:[\w.<>/-]+\s*-\s*)?{_LEVEL}(?::[\w.]+(?=:)|\s*-\s*{_DOTTED}(?=\s*-\s))?"
    r")\s*(?::|-(?=\s))?\s*)*"
)

# The end of a bar of tqdm: "| 10/10 [00:01<00:00, 9.1it/s]", "12it [00:01, 9.1it/s]".
_BAR_END = re.compile(r" \[\d{1,4}:\d\d(?::\d\d)?[<,][^\[\]]*\]")
# As skorch marks them, in a column of its own or behind a number.
_MARK_OF_BEST = re.compile(r"(?<=[\d\s])[+*](?=\s|$)")
_NAMED_COUNT = re.compile(r"([^\W\d_]+)\W{0,3}\d")


class WholeLines:
    """Joins the lines of records, of each rank by itself. ``state`` are those that have begun."""

    def __init__(self, state: tuple[tuple[int | None, tuple[str, ...]], ...] = ()) -> None:
        self._records = {rank: Record(lines) for rank, lines in state}

    @property
    def state(self) -> tuple[tuple[int | None, tuple[str, ...]], ...]:
        return tuple((rank, record.state) for rank, record in self._records.items() if record.state)

    def add(self, line: str) -> tuple[str, int | None] | None:
        """Take a line and return it, or the record that it ends as one line, with the rank that prints it, if it says
        so; None within a record."""
        text, rank = split_prefix(line)
        record = self._records.get(rank)
        if record is None:
            record = self._records[rank] = Record()
            if len(self._records) > MAX_RANKS:
                del self._records[next(iter(self._records))]
        whole_line = record.add(text)
        if whole_line is None:
            return None
        return whole_line, rank


class Record:
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
        row = _row_of_box(text)
        if row is not None:
            if len(self._lines) < MAX_LINES:
                self._lines.append(row)
            return None
        if not self._lines:
            return text
        lines = self._lines
        self._lines = []
        if _RULE.fullmatch(text):
            return _joined(lines)
        return text

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


def split_prefix(text: str) -> tuple[str, int | None]:
    """A line without what stands before it, and the rank that this names. A row of a table loses the marks of its best
    values.

    >>> split_prefix("[rank1]: 3   0.5123   0.4123  +  0.02")
    ('3   0.5123   0.4123    0.02', 1)
    """
    match = _PREFIX.match(text)
    if match is None or match.end() == len(text):
        return text, None
    rank = match["rank"] or match["mpi"] or match["pid"]
    text = text[match.end() :]
    if text.lstrip("|│┃ ")[:1].isdigit():
        text = _MARK_OF_BEST.sub("", text)
    if rank is None:
        return text, None
    return text, whole(rank)


def split_bar(text: str) -> tuple[str, str]:
    """A line as a bar that was not ended and what was printed behind it; "" for what it has not.

    >>> split_bar("50%|█████     | 5/10 [00:01<00:01]Epoch 1 loss 0.3")
    ('50%|█████     | 5/10 [00:01<00:01]', 'Epoch 1 loss 0.3')
    """
    bar = _BAR_END.search(text)
    if bar is None or not text[bar.start() - 1].isalnum():
        return "", text
    behind = text[bar.end() :]
    first = behind.lstrip()
    is_glued = behind[:1].isalpha() or behind[:1] in _OPENING
    if not is_glued:
        # The bar was drawn over a longer one; else it is a part of the bar, as in "[00:01<00:01] loss: 0.3".
        count = _NAMED_COUNT.match(first)
        is_glued = count is not None and count[1].lower() in EPOCHS | STEPS
    if not first or not is_glued:
        return "", text
    return text[: bar.end()], first


def _row_of_box(text: str) -> str | None:
    """A row of two cells as ``name: value``; None for another line."""
    cells = _BARS.split(text)
    if len(cells) != 4:
        return None
    left_of_box, name, value, right_of_box = cells
    value = value.strip()
    if left_of_box.strip() or right_of_box.strip() or not name:
        return None
    if _NAMED_NUMBER.search(name) is not None or _VALUE.fullmatch(value) is None:
        return None
    return f"{name.strip()}: {value}"


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
