"""Parser of Python tracebacks in logs. Pure.

An exception counts only as an interpreter prints it: at the start of a line (after the prefixes of
PyTorch and torchrun), after the header and its frames. A line that merely quotes one does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import SEQUENCE
from gputui.runs.logs import lines_of

MAX_MESSAGE_LINES = 40  # the longest messages of torch, with hints
MAX_STRANGE_LINES = 3  # other processes may write in between
MAX_FRAMES = 30  # as many as a person looks at

# A NUL at the end of a native message appears before the next line.
_PREFIX = re.compile(r"^\x00*(?:\[default\d+\]:)?(?P<rank>\[rank\d+\]:[ ]?)?")
_RANKED = re.compile(r"^\x00*(?:\[default(?=\d+\]:)|\[rank(?=\d+\]:))(?P<rank>\d+)\]:")
_HEADER = "Traceback (most recent call last):"
# Fields of the JSON lines of structlog, python-json-logger and loguru.
_EXCEPTION_VALUE = '"exc_value"'
_LEVELS = ("level", "levelname", "severity")
_MESSAGES = ("event", "message", "msg")
# The library rich draws a box around the frames; the exception follows below it as usual.
_BOX_HEADER = re.compile(r"^[╭+][─-]+ Traceback \(most recent call last\) [─-]+[╮+]")
_BOX = ("│", "╰", "|", "+")
# The beginnings of messages of several lines, and their further lines.
_OF_RANK = r"(?:\[default\d+\]:)?(?:\[rank\d+\]: ?)?"
_ANCHOR = re.compile(
    _OF_RANK + r"(?:Traceback \(most recent call last\):$|[╭+][─-]+ Traceback \(most "
    r"|\[E[\d:. ]* ProcessGroupNCCL|terminate called )"
)
_FOLLOWS = _OF_RANK + r"(?:  File \"|[│|]|\[E[\d:. ]* ProcessGroupNCCL|  what\(\):)"
_DIGITS = re.compile(r"\d+")
_FRAME = re.compile(r'^ +File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>\S.*))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.<>]*)(?:: (?P<message>.*)|:)?$")
# The compiler reports these without a header.
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# Lines of PyTorch and NCCL that continue an exception's message although they are not indented.
_CONTINUES = re.compile(
    r"^(?:\s|nccl\w+: |Last error:|CUDA kernel errors might|For debugging consider|Compile with `|"
    r"Original Traceback \(most recent call last\):$|Search for `|tensor\()"
)
# Lines that may follow the exception that ended an interpreter.
_NOISE = re.compile(
    r"^(?:$|\[[WI]\d{3,4} |[WI]\d{4} \d\d:|.*\bWarning: |\s+warnings\.warn|\s|terminate called |Exception ignored |"
    r"wandb: |\S+: finished with|srun: |make(?:\[\d+\])?: )"
)
FATAL_LINE = re.compile(r"^Fatal Python error: ")
FOREIGN = ("site-packages", "dist-packages", "<frozen", "/lib/python")


class Raised(Struct, frozen=True):
    """One exception.

    Attributes:
        type: as printed.
        message: one or more lines.
        where: its location in the user's code: ``train.py:28 in main``.
        path: the functions that it passed through (``torch/serialization.py in load``), outermost first.
    """

    type: str
    message: str
    where: str | None = None
    path: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As an interpreter prints it: ``ValueError: no such thing``."""
        if self.message:
            return f"{self.type}: {self.message}"
        return self.type


class Chain(Struct, frozen=True):
    """An exception and those that it was raised from.

    Attributes:
        raised: earliest first.
        trailing: the number of later lines that an ending interpreter does not write: if there are many, the
            exception was caught and the program continued.
        ranked: PyTorch printed it as the end of a rank.
    """

    raised: tuple[Raised, ...]
    trailing: int = 0
    ranked: bool = False


class _Line(NamedTuple):
    text: str
    ranked: bool


class _Span(NamedTuple):
    """An exception, and its range of lines."""

    chain: Chain
    start: int
    end: int


def plain(text: str) -> str:
    """A log without escape sequences, with the tracebacks inside of JSON lines as lines.

    What another program writes before each line of a traceback is left out, too: a rank (srun), an actor (Ray), a
    service (compose), a time, a logger. Such a prefix is known by the lines of one traceback that begin with it,
    apart from their numbers.
    """
    # Before long lines are cut, after which they are no JSON.
    unfolded = (part for line in SEQUENCE.sub("", text).split("\n") for part in _unfolded(line))
    lines = lines_of("\n".join(unfolded))
    prefixes = _prefixes(lines)
    if prefixes:
        # Of two prefixes that begin alike the longer one is removed.
        pattern = re.compile("|".join(sorted(prefixes, key=len, reverse=True)))
        for at, line in enumerate(lines):
            if match := pattern.match(line):
                lines[at] = line[match.end() :]
    return _joined(lines)


def _prefixes(lines: Sequence[str]) -> set[str]:
    """Patterns of what other programs write before the lines of a traceback."""
    prefixes: set[str] = set()
    for at, line in enumerate(lines):
        anchor = _ANCHOR.search(line)
        if anchor is None:
            continue
        before = line[: anchor.start()]
        if before.strip():
            prefix = _DIGITS.sub(r"\\d+", re.escape(before))
            follows = re.compile(prefix + _FOLLOWS)
            if any(follows.match(after) for after in lines[at + 1 : at + MAX_FRAMES]):
                prefixes.add(prefix)
    return prefixes


def _unfolded(line: str) -> list[str]:
    """The lines of the traceback in a JSON line of a structured log, each behind what stands before the
    JSON; of any other line, that line."""
    if _HEADER not in line and _EXCEPTION_VALUE not in line:
        return [line]
    before, record = _json_in(line)
    values = [*_values(record)]
    text = next((value for value in values if isinstance(value, str) and _HEADER in value), None)
    if text is None:
        # structlog's dict_tracebacks: a chain, the exception that ended it first.
        raised = [value for value in values if isinstance(value, dict) and isinstance(value.get("exc_value"), str)]
        if raised:
            text = _as_printed(raised[0])
    if text is None:
        return [line]
    return [before + part for part in lines_of(text)]


def structured(line: str) -> str:
    """The level and the message of a JSON line of a structured log; any other line as it is."""
    _, record = _json_in(line)
    if not isinstance(record, dict):
        return line
    names = ((record.get(name) for name in keys) for keys in (_LEVELS, _MESSAGES))
    level, message = (next((value for value in values if isinstance(value, str)), "") for values in names)
    if level and message:
        return f"{level}: {message}"
    return message or line


def _json_in(line: str) -> tuple[str, Any]:
    """What stands before the JSON object in a line, and the object; None if there is none."""
    start = line.find("{")
    if start < 0:
        return "", None
    try:
        record, _ = json.JSONDecoder().raw_decode(line, start)
    except (ValueError, RecursionError):
        return "", None
    return line[:start], record


def _values(value: Any) -> Iterator[Any]:
    """A decoded JSON value and all those in it."""
    yield value
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    for part in parts:
        yield from _values(part)


def _as_printed(raised: Mapping[str, Any]) -> str:
    """An exception of structlog's dict_tracebacks as an interpreter prints it."""
    frames = raised.get("frames")
    if not isinstance(frames, list):
        frames = []
    steps = (
        f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
        for frame in frames
        if isinstance(frame, dict)
    )
    return "\n".join((_HEADER, *steps, "    ", f"{raised.get('exc_type')}: {raised['exc_value']}"))


def bare(line: str) -> str:
    """A line without the prefixes ``[default0]:`` and ``[rank0]:``."""
    return _PREFIX.sub("", line, count=1)


def by_rank(text: str) -> tuple[str, dict[int, str]]:
    """The lines without a rank prefix in the log of several ranks, and the lines of each rank."""
    of_rank: dict[int | None, list[str]] = {None: []}
    for line in lines_of(text):
        rank = None
        if (match := _RANKED.match(line)) is not None:
            rank = int(match["rank"])
        of_rank.setdefault(rank, []).append(line)
    unranked = _joined(of_rank.pop(None))
    return unranked, {rank: _joined(lines) for rank, lines in of_rank.items() if rank is not None}


def last_chain(text: str, skip: Callable[[Chain], bool] = lambda _: False) -> Chain | None:
    """The last exception of a log, with its causes, or None. Exceptions to ``skip`` are passed
    over; their lines do not count as trailing."""
    matches = ((line, _PREFIX.match(line)) for line in lines_of(text))
    lines = [_Line(line[match.end() :], match["rank"] is not None) for line, match in matches if match]
    behind: list[str] = []
    for span in reversed(_spans(lines)):
        behind = [*(line.text for line in lines[span.end :]), *behind]
        if not skip(span.chain):
            dumped = next((at for at, line in enumerate(behind) if FATAL_LINE.match(line)), None)
            return replace(span.chain, trailing=sum(not _NOISE.match(line) for line in behind[:dumped]))
        del lines[span.start :]
    return None


def _spans(lines: Sequence[_Line]) -> list[_Span]:
    """All exceptions of a log."""
    spans: list[_Span] = []
    at = 0
    while at < len(lines):
        line = lines[at].text
        parsed = None
        is_original = line.endswith("Original " + _HEADER)
        if (line.endswith(_HEADER) and not is_original) or _BOX_HEADER.match(line):
            parsed = _traceback(lines, at)
        elif _SYNTAX.match(line):
            parsed = Raised(*_exception(line), *_frames(lines[max(0, at - 4) : at])), at + 1
        if parsed is None:
            at += 1
            continue
        raised, end = parsed
        start = at
        causes: tuple[Raised, ...] = ()
        if spans and _is_link(lines[spans[-1].end : at]):
            before = spans.pop()
            start = before.start
            causes = before.chain.raised
        spans.append(_Span(Chain((*causes, raised), 0, lines[at].ranked), start, end))
        at = end
    return spans


def _is_link(lines: Iterable[_Line]) -> bool:
    """Return whether the lines between two exceptions say that one was raised from the other."""
    texts = [line.text for line in lines if line.text]
    return len(texts) == 1 and texts[0] in _LINKS


def parse_message(text: str, callstack: str | None = None) -> Chain:
    """The exception of an error file: ``Type: message``, and its traceback if there is one."""
    type_name, message = _exception(text)
    chain = None
    if callstack:
        chain = last_chain(callstack)
    if chain is None:
        return Chain((Raised(type_name, message),))
    last = chain.raised[-1]
    if type_name.rsplit(".", 1)[-1] != last.type.rsplit(".", 1)[-1]:
        return chain
    # The recorded message is complete; that of the traceback may have been cut.
    return Chain((*chain.raised[:-1], replace(last, message=message)))


def _traceback(lines: Sequence[_Line], header: int) -> tuple[Raised, int] | None:
    """The exception below a header, and the number of the line after it."""
    strange = 0
    for at in range(header + 1, len(lines)):
        line = lines[at].text
        if line.startswith((" ", "\t", *_BOX)) or not line:
            continue
        if at > header + 1 and _EXCEPTION.match(line):
            type_name, message = _exception(line)
            end, more = _continuation(lines, at)
            if not more and _BOX_HEADER.match(lines[header].text):
                end, message = _unwrapped(lines, at, message, len(lines[header].text))
            message = "\n".join([message, *more]).strip()
            return Raised(type_name, message, *_frames(lines[header:at])), end
        strange += 1
        if line.endswith(_HEADER) or strange > MAX_STRANGE_LINES:
            return None
    return None


def _unwrapped(lines: Sequence[_Line], at: int, message: str, width: int) -> tuple[int, str]:
    """The line after a message below a box, and the message, which rich breaks where the next word
    does not fit."""
    before = lines[at].text
    for after in range(at + 1, min(len(lines), at + MAX_MESSAGE_LINES)):
        next_words = lines[after].text.split()
        if not next_words or len(f"{before.rstrip()} {next_words[0]}") <= width:
            return after, message
        before = lines[after].text
        message = f"{message.rstrip()} {before.strip()}"
    return min(len(lines), at + MAX_MESSAGE_LINES), message


def _continuation(lines: Sequence[_Line], at: int) -> tuple[int, list[str]]:
    """The line after a message that starts in line ``at``, and the message's further lines."""
    ranked = lines[at].ranked
    more: list[str] = []
    is_original = False  # inside the traceback that a data loader worker sent along
    is_last_error = False
    for line in lines[at + 1 : at + 1 + MAX_MESSAGE_LINES]:
        is_header = line.text.endswith(_HEADER)
        starts_original = line.text.startswith("Original ")
        if ranked:
            is_next = is_header and not starts_original
            if not line.ranked or is_next or line.text in _LINKS:
                break
        elif starts_original and is_header:
            is_original = True
        elif is_original and _EXCEPTION.match(line.text):
            is_original = False
        elif is_header or not (_CONTINUES.match(line.text) or is_last_error):
            break
        is_last_error = line.text.startswith("Last error:")
        more.append(line.text)
    return at + 1 + len(more), more


def _exception(line: str) -> tuple[str, str]:
    """The type and the message of an exception as printed."""
    first, newline, rest = line.partition("\n")
    match = _EXCEPTION.match(first)
    if match is None:
        return "Error", line.strip()
    return match["type"], ((match["message"] or "") + newline + rest).strip()


def _frames(lines: Iterable[_Line]) -> tuple[str | None, tuple[str, ...]]:
    """The innermost frame of the user's code, else the innermost one (``train.py:28 in main``), and
    all frames."""
    own_place = foreign_place = None
    path: list[str] = []
    for match in filter(None, (_FRAME.match(line.text) for line in lines)):
        file = PurePath(match["file"])
        function = match["function"] or "<module>"
        path.append(f"{file.parent.name}/{file.name} in {function}")
        where = f"{file.name}:{match['line']}"
        if function != "<module>":
            where += f" in {function}"
        if any(part in match["file"] for part in FOREIGN):
            foreign_place = where
        else:
            own_place = where
    return own_place or foreign_place, tuple(path[-MAX_FRAMES:])


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
