"""Escape sequences and texts of mouse, title, bell and clipboard. No I/O."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from typing import Final

from gputui.core.text import clean, clip
from gputui.core.units import count_of
from gputui.metrics.draw.glyphs import ascii_line
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import RUN_SIGNS

# Presses, releases and the wheel, with coordinates as numbers (xterm: modes 1000 and 1006). Motion is not reported: it
# would cost a packet for every cell that the pointer crosses, and a killed program would leave it on.
MOUSE_ON: Final = "\x1b[?1000h\x1b[?1006h"
MOUSE_OFF: Final = "\x1b[?1006l\x1b[?1000l"

# xterm keeps a stack of titles (window operations 22 and 23); terminals without one ignore both.
TITLE_KEEP: Final = "\x1b[22;2t"
TITLE_BACK: Final = "\x1b[23;2t"

BELL: Final = "\a"
LONGEST_TITLE: Final = 80

MOST_COPIED_BYTES: Final = 50_000
"""xterm takes 74 994 bytes of base64 and drops what is longer."""

# States that a title names first.
_WORST: Final = ("failed", "recovering", "stopping")
_COUNTED: Final = ("running", "starting", "ending", "recovering", "queued", "stopping")
FAILED_SECONDS: Final = 3600.0
"""How long after its end a failed run counts as the worst state."""


def title_sequence(text: str) -> str:
    """The sequence that sets the title to ``text``, made harmless."""
    return f"\x1b]2;{clip(clean(text), LONGEST_TITLE)}\x1b\\"


def title_words(snapshot: Snapshot, host_name: str, *, is_ascii: bool) -> str:
    """Counts of runs and the worst state: ``▲ recovering · 2 running 1 queued · gputui ws-kepler``."""
    counts = Counter(row.run.shown_state for row in snapshot.runs)
    failed_at = max((row.run.ended_at or 0.0 for row in snapshot.runs if row.run.state == "failed"), default=0.0)
    has_failed = snapshot.at - failed_at < FAILED_SECONDS
    worst = next((state for state in _WORST if counts[state] and (state != "failed" or has_failed)), None)
    lost = sum(gpu.state == "lost" for gpu in snapshot.gpus)
    parts = []
    if worst is not None:
        parts.append(f"{RUN_SIGNS[worst].glyph} {RUN_SIGNS[worst].word}")
    if lost:
        parts.append(f"{count_of(lost, 'GPU')} lost")
    counted = " ".join(f"{counts[state]} {RUN_SIGNS[state].word}" for state in _COUNTED if counts[state])
    parts += [counted or "no runs", f"gputui {host_name}"]
    text = " · ".join(parts)
    if is_ascii:
        return ascii_line(text)
    return text


def copy_sequence(text: str) -> str:
    """The sequence that copies a text to the clipboard of the person's own machine, also through ssh (OSC 52). Raises
    ValueError if the text is longer than terminals take."""
    data = text.encode("utf-8", "replace")
    if len(data) > MOST_COPIED_BYTES:
        raise ValueError(f"{len(data) // 1000} kB are more than terminals take ({MOST_COPIED_BYTES // 1000} kB)")
    return f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\a"


def copied_words(what: str, text: str, environ: Mapping[str, str]) -> str:
    """A sentence about a copied text, with what the terminal may need for it."""
    count = len(text.splitlines())
    summary = f"{count} lines"
    if count <= 1:
        summary = clip(clean(text.strip()), 40)
    needs = ""
    if environ.get("TMUX"):
        needs = " In tmux this needs: set -g set-clipboard on."
    elif environ.get("STY"):
        needs = " GNU screen does not pass it on; hold shift and select with the mouse."
    return f"Copied {what}: {summary}.{needs}"


def mouse_wanted(choice: str, environ: Mapping[str, str]) -> bool:
    """Return whether the mouse is on: over SSH only on request, because a dropped line would leave
    it on."""
    return choice == "on" or (choice == "auto" and not environ.get("SSH_CONNECTION"))
