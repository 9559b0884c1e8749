"""A process in words: its user and its script."""

from __future__ import annotations

import re

from gputui.core.text import clean
from gputui.store.hardware import ProcessView

_PYTHON = re.compile(
    r"(?:\S*/)?python[\d.]*(?=\s|$)(?:\s+-[BEIOPSbdqsuvx]+(?=\s|$)|\s+-[XW]\s*\S+)*\s*(?P<module>-m\s+)?"
)


def process_words(process: ProcessView) -> str:
    """``root · burn.py --rank 3``, as harmless text; ``pid 4190777`` if it cannot be read."""
    script = script_words(clean(process.command or ""), process.run_id) or f"pid {process.pid}"
    if process.user:
        return f"{clean(process.user)} · {script}"
    return script


def script_words(command: str, run_id: str | None) -> str:
    """The script and its arguments; of a run's process without the option that names the run's own folder."""
    if run_id is not None:
        command = re.sub(rf" --?[\w-]+[ =]\S*/{re.escape(run_id)}(?:/[\w-]*)?(?= |$)", "", command)
    return script_of(command)


def script_of(command: str) -> str:
    """A command line without folders, Python and its flags: ``/env/bin/python3 -u train.py -x 1`` →
    ``train.py -x 1``, ``python -m trainer x`` → ``trainer x``."""
    rest = command
    python = _PYTHON.match(command)
    if python is not None:
        rest = command[python.end() :]
        if python["module"]:
            return rest
        if not rest or rest.startswith("-"):
            return f"python {rest}".rstrip()
    first, space, others = rest.partition(" ")
    return (first.rsplit("/", 1)[-1] or first) + space + others
