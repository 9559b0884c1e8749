"""Measurements of recovery as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import figures
from benchmarks.recovery.drilling import Drilled
from benchmarks.recovery.hours import Found, Healthy


def drills(drilled: Sequence[Drilled]) -> str:
    """A line for each kind, and why some were not met as they should be."""
    heading = ["kind", "detected after", "next first step", "steps lost", "expected", "taken", "right", "how"]
    rows = [
        [
            one.kind,
            figures.with_unit(one.detect_seconds, "s") if one.detected else "NO",
            "" if one.next_step_seconds is None else figures.with_unit(one.next_step_seconds, "s"),
            "" if one.steps_lost is None else str(one.steps_lost),
            one.expected,
            one.taken,
            "yes" if one.right else "NO",
            one.how,
        ]
        for one in drilled
    ]
    detected, right = sum(one.detected for one in drilled), sum(one.right for one in drilled)
    return "\n".join(
        [
            figures.layout([heading, *rows], words=(0, 4, 5, 6, 7)),
            "",
            f"{len(drilled)} kinds: {detected} detected, {right} met with the right action",
            *(f"{one.kind}: {one.problem}" for one in drilled if one.problem is not None),
        ]
    )


def healthy(found: Healthy) -> str:
    """The number of false alarms by kind."""
    alarms = ", ".join(f"{count} × {kind}" for kind, count in sorted(found.alarms.items())) or "none"
    remarks = ", ".join(f"{count} × {kind}" for kind, count in sorted(found.remarks.items())) or "none"
    return "\n".join(
        [
            f"{found.hours:,.0f} healthy hours of {found.runs:,} runs ({found.lines:,} lines): "
            f"{found.false_alarms} false alarms",
            f"  alarms: {alarms}",
            f"  pauses reported as longer than any before, and not acted on: {remarks}",
            *(f"  {text}" for text in found.examples),
        ]
    )


def found(faults: Sequence[Found]) -> str:
    """A line for each way to break a run."""
    heading = ["broken by", "runs", "found", "after (median)", "lines", "after the evidence, at most"]
    rows = [
        [
            one.fault,
            str(one.runs),
            str(one.found),
            figures.with_unit(one.median_seconds, "s"),
            "–" if one.median_lines is None else f"{one.median_lines:.0f}",
            "" if one.worst_evidence_seconds is None else figures.with_unit(one.worst_evidence_seconds, "s"),
        ]
        for one in faults
    ]
    return figures.layout([heading, *rows], words=(0,))
