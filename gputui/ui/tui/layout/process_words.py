"""A process in words: its user and its script."""

from __future__ import annotations

import re

from gputui.core.text import clean
from gputui.runs.gpu_conditions import script_of
from gputui.store.hardware import ProcessView


def process_words(process: ProcessView) -> str:
    """``root · burn.py --rank 3``, as harmless text; ``pid 4190777`` if it cannot be read."""
    script = script_words(clean(process.command or ""), process.run_id) or f"pid {process.pid}"
    return f"{clean(process.user)} · {script}" if process.user else script


def script_words(command: str, run_id: str | None) -> str:
    """The script and its arguments; of a run's process without the option that names the run's own folder."""
    if run_id is not None:
        command = re.sub(rf" --?[\w-]+[ =]\S*/{re.escape(run_id)}(?:/[\w-]*)?(?= |$)", "", command)
    return script_of(command)
