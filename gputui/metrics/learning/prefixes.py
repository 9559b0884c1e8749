"""What loggers and launchers write before a line: times, levels, names, ranks."""

from __future__ import annotations

import re

from gputui.metrics.learning.tokens import STAMP

_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|NOTICE|TRACE|SUCCESS|Info|info)\b"
_DOTTED = r"[A-Za-z_<][\w<>]*(?:[.:][\w<>]+)+"
_PREFIX = re.compile(
    r"\s*(?:(?:"
    r"\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>"
    r"|\[?(?i:rank|default|local_rank|gpu|worker)[ :=_-]?(?P<rank>\d+)(?:\]|(?=:))"
    r"|\(\w+(?:\(\w+\))? pid=(?P<pid>\d+)[^)]*\)"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./-]+:\d+\]"
    rf"|\[(?:(?:\w )?(?:{STAMP}|\d\d:\d\d:\d\d)|\s*{_LEVEL}|[\w/.]+\.py:\d+|__\w+__\]|\w+(?:\.\w+)+\])[^\[\]]*\]?"
    rf"|(?:{STAMP}|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=\s))"
    rf"|\|\s*(?:[\w.<>/-]+\s*\|\s*)?{_LEVEL}\s*\|(?:\s*{_DOTTED}(?=\s*-\s))?"
    rf"|(?:-\s*)?(?:[\w.<>/-]+\s*-\s*)?{_LEVEL}(?::[\w.]+(?=:)|\s*-\s*{_DOTTED}(?=\s*-\s))?"
    r")\s*(?::|-(?=\s))?\s*)*"
)


def split_prefix(text: str) -> tuple[str, int | None]:
    """A line without what stands before it, and the rank that this names."""
    match = _PREFIX.match(text)
    if match is None or match.end() == len(text):
        return text, None
    rank = match["rank"] or match["mpi"] or match["pid"]
    return text[match.end() :], None if rank is None else int(rank)
