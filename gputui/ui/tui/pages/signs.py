"""The signs and colours of each page with their meaning, for its help and for docs/screen.md."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.metrics.draw import glyphs
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.layout.charts import MARKER_STYLES
from gputui.ui.tui.layout.gpu_words import WAITING_FRACTION
from gputui.ui.tui.layout.moments import TICKS
from gputui.ui.tui.pages.gpu.view import STATES
from gputui.ui.tui.pages.overview.gpu_cells import FULL_PERCENT, LOAD_STEPS
from gputui.ui.tui.pages.study.view import TRIAL_SIGNS
from gputui.ui.views.words import PRUNED_SIGN, RUN_SIGNS, SIGNS, Sign

_WAIT_WORDS = f"share of a step spent waiting for data, marked from {WAITING_FRACTION * 100:.0f} %"
_RANK_WAIT = Sign("DATA WAIT", _WAIT_WORDS, "warn")
_RESTARTS = Sign("↻2", "restarts so far", "warn")
_RUNS = [*RUN_SIGNS.values(), PRUNED_SIGN, _RESTARTS, Sign("▲", "no progress for longer than usual", "warn")]

_CHARTS = [
    Sign(glyphs.MARKER, "restart (↻2), incident or alert", MARKER_STYLES["restart"]),
    Sign(glyphs.NOTCH, "checkpoint", MARKER_STYLES["checkpoint"]),
    Sign(glyphs.NAN, "NaN", "bad"),
    Sign(f"{glyphs.ABOVE} {glyphs.BELOW}", "infinite, or outside a logarithmic axis", "bad"),
    Sign("grey", "steps that a later attempt repeated", "dim"),
]
_BEST = Sign("★", "best value", "good")
_TIME_LINE = [Sign(glyph, f"on the time line: {kind}", style) for kind, (glyph, style) in TICKS.items()]


def _load_signs() -> list[Sign]:
    """The colours of a load, each with the percentages of utilisation and memory that it stands for."""
    load = LOAD_STEPS["load"]
    memory = LOAD_STEPS["memory"]
    meanings = [
        f"utilisation or memory below {load[0]:.0f} %",
        f"utilisation or memory from {load[0]:.0f} %",
        f"utilisation from {load[1]:.0f} %, memory from {memory[1]:.0f} %",
    ]
    colours = [Sign(glyphs.BAR * 2, meaning, f"load.{step}") for step, meaning in enumerate(meanings)]
    return [*colours, Sign(glyphs.BAR * 2, f"memory above {FULL_PERCENT:.0f} %", "warn")]


_GPUS = [
    *_load_signs(),
    Sign(glyphs.BAR_HALF, "half a cell of a bar", "load.1"),
    Sign("▲85°", "heat slows the GPU, or will within 5 °C", "warn"),
    Sign("r0", "rank of the run on this GPU", "text"),
    Sign("0.5", "share of the GPU that the run has", "dim"),
    Sign("promised", "free, kept for a waiting run", "dim"),
    Sign("slow", "rank that the others wait for", "warn"),
    Sign("⊘", "in quarantine: gets no run until it is cleared", "warn"),
    Sign("✗ lost", "the driver has lost the GPU", "bad"),
    Sign("dim row", "the driver does not answer", "dim"),
    Sign("–", "not reported", "dim"),
    _RANK_WAIT,
]

PAGE_SIGNS: Mapping[Scope, list[Sign]] = {
    "overview": [
        *_GPUS,
        *_RUNS,
        Sign("◆", "active study; at the left edge, marked run", "good"),
        Sign("◇", "ended study", "dim"),
        *_TIME_LINE,
    ],
    "run": [*_RUNS, *_CHARTS, _RANK_WAIT, *_TIME_LINE],
    "gpu": [Sign(text[:1], text[2:], style) for text, style in STATES.values()],
    "compare": [_BEST, *_CHARTS],
    "studies": [*TRIAL_SIGNS.values(), _BEST],
    "alerts": [Sign(glyph, severity, style) for severity, (glyph, style) in SIGNS.items() if severity != "refusal"],
}
