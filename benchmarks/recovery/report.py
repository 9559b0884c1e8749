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
            drill.kind,
            figures.with_unit(drill.detect_seconds, "s") if drill.detected else "NO",
            "" if drill.next_step_seconds is None else figures.with_unit(drill.next_step_seconds, "s"),
            "" if drill.steps_lost is None else str(drill.steps_lost),
            drill.expected,
            drill.taken,
            "yes" if drill.right else "NO",
            drill.how,
        ]
        for drill in drilled
    ]
    detected = sum(drill.detected for drill in drilled)
    right = sum(drill.right for drill in drilled)
    return "\n".join(
        [
            figures.layout([heading, *rows], text_columns=(0, 4, 5, 6, 7)),
            "",
            f"{len(drilled)} kinds: {detected} detected, {right} met with the right action",
            *(f"{drill.kind}: {drill.problem}" for drill in drilled if drill.problem is not None),
        ]
    )


def healthy(totals: Healthy) -> str:
    """The number of false alarms by kind."""
    alarms = ", ".join(f"{count} × {kind}" for kind, count in sorted(totals.alarms.items())) or "none"
    remarks = ", ".join(f"{count} × {kind}" for kind, count in sorted(totals.remarks.items())) or "none"
    return "\n".join(
        [
            f"{totals.hours:,.0f} healthy hours of {totals.runs:,} runs ({totals.lines:,} lines): "
            f"{totals.false_alarms} false alarms",
            f"  alarms: {alarms}",
            f"  pauses reported as longer than any before, and not acted on: {remarks}",
            *(f"  {text}" for text in totals.examples),
        ]
    )


def detections(faults: Sequence[Found]) -> str:
    """A line for each way to break a run."""
    heading = ["broken by", "runs", "found", "after (median)", "lines", "after the evidence, at most"]
    rows = [
        [
            fault.fault,
            str(fault.runs),
            str(fault.found),
            figures.with_unit(fault.median_seconds, "s"),
            "–" if fault.median_lines is None else f"{fault.median_lines:.0f}",
            "" if fault.worst_evidence_seconds is None else figures.with_unit(fault.worst_evidence_seconds, "s"),
        ]
        for fault in faults
    ]
    return figures.layout([heading, *rows], text_columns=(0,))
