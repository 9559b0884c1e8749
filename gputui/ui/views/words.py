"""States as glyph, word and style together, so that nothing depends on colour; and moments as words."""

from __future__ import annotations

import time
from typing import NamedTuple

from gputui.store.hardware import GpuView
from gputui.store.runs import Run

SIGNS = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "refusal": ("▲", "warn"), "info": ("·", "accent")}
"""Glyph and style of an alert or a message by its severity; a refusal says why a key does nothing now."""
SEVERITY_STYLES = {"info": "text", "warning": "warn", "error": "bad"}
SEVERITY_GLYPHS = {"info": " ", "warning": "▲", "error": "✗"}


class Sign(NamedTuple):
    """The appearance of a state."""

    glyph: str
    word: str
    style: str


UNKNOWN_SIGN = Sign("?", "unknown", "warn")
RUN_SIGNS = {
    "queued": Sign("◌", "queued", "dim"),
    "starting": Sign("◔", "starting", "accent"),
    "running": Sign("●", "running", "good"),
    "ending": Sign("◕", "ending", "warn"),
    "recovering": Sign("↻", "recovering", "warn"),
    "stopping": Sign("◑", "stopping", "warn"),
    "succeeded": Sign("✓", "succeeded", "good"),
    "failed": Sign("✗", "failed", "bad"),
    "stopped": Sign("■", "stopped", "dim"),
}
PRUNED_SIGN = Sign("✂", "pruned", "dim")
STUDY_SIGNS = {
    "running": RUN_SIGNS["running"],
    "paused": Sign("◌", "paused", "warn"),
    "stopping": RUN_SIGNS["stopping"],
    "finished": Sign("✓", "finished", "good"),
    "stopped": RUN_SIGNS["stopped"],
    "failed": RUN_SIGNS["failed"],
    "unknown": UNKNOWN_SIGN,
}


def run_sign(state: str) -> Sign:
    """Glyph, word and style of a run's state."""
    return RUN_SIGNS.get(state, UNKNOWN_SIGN)


def sign_of(run: Run) -> Sign:
    """`run_sign` of a run; a trial that its study pruned was not stopped by a person."""
    if run.trial_state == "pruned" and run.state == "stopped":
        return PRUNED_SIGN
    return run_sign(run.shown_state)


def run_state_text(run: Run) -> str:
    """The state in words, with the number of restarts: ``running ↻2``."""
    word = sign_of(run).word
    if run.attempt > 1:
        return f"{word} ↻{run.attempt - 1}"
    return word


def is_hot(gpu: GpuView) -> bool:
    """Return whether heat throttles this GPU, or would within five degrees."""
    if any("thermal" in reason for reason in gpu.throttle_reasons or ()):
        return True
    limit = gpu.facts.temperature_slowdown_celsius
    return gpu.temperature_celsius is not None and limit is not None and gpu.temperature_celsius >= limit - 5


def clock(at: float) -> str:
    """Local time of day: ``03:12:44``."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def day_name(at: float) -> str:
    """``Thu 19 Nov 2026``, local."""
    return time.strftime("%a %d %b %Y", time.localtime(at))


def dated_clock(at: float, now: float) -> str:
    """Local time in at most 12 cells, or 17 beyond 300 days: ``03:12:44`` today, ``Thu 03:12`` within six days, else
    ``19 Nov 03:12``."""
    if day_name(at) == day_name(now):
        return clock(at)
    days = abs(now - at) / 86_400
    day_format = "%d %b %Y"
    if days < 6:
        day_format = "%a"
    elif days < 300:
        day_format = "%d %b"
    return time.strftime(f"{day_format} %H:%M", time.localtime(at))
