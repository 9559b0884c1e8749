"""A process in words: its user and its script."""

from __future__ import annotations

import re

from gputui.core.text import clean
from gputui.store.hardware import ProcessView

_PYTHON = re.compile(r"python[\d.]*")
_FLAG = re.compile(r"-[BEIOPSbdqsuvx]+|-[XW].*")
_FLAGS_WITH_VALUE = ("-X", "-W")


def script_of(command: str) -> str:
    """A command line without folders, Python and its flags: ``/env/bin/python3 -u train.py --lr 1`` →
    ``train.py --lr 1``, ``python -m trainer x`` → ``trainer x``."""
    words = command.split()
    if words and _PYTHON.fullmatch(_file_name(words[0])):
        first = 1
        while first < len(words) and _FLAG.fullmatch(words[first]):
            first += 2 if words[first] in _FLAGS_WITH_VALUE else 1
        if words[first : first + 1] == ["-m"]:
            return " ".join(words[first + 1 :])
        is_script = first < len(words) and words[first] != "-c"
        words = words[first:] if is_script else ["python", *words[first:]]
    return " ".join([_file_name(words[0]), *words[1:]]) if words else ""


def process_words(process: ProcessView) -> str:
    """``root · burn.py --rank 3``, as harmless text; ``pid 4190777`` if it cannot be read."""
    script = script_of(clean(process.command or "")) or f"pid {process.pid}"
    return f"{clean(process.user)} · {script}" if process.user else script


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1] or path
