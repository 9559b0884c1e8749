"""A process in words: its user and its script."""

from __future__ import annotations

from gputui.core.text import clean
from gputui.runs.gpu_conditions import script_of
from gputui.store.hardware import ProcessView


def process_words(process: ProcessView) -> str:
    """``root · burn.py --rank 3``, as harmless text; ``pid 4190777`` if it cannot be read."""
    script = script_of(clean(process.command or "")) or f"pid {process.pid}"
    return f"{clean(process.user)} · {script}" if process.user else script
