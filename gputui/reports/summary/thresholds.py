"""The quality gates' own thresholds, by their names; apart, so that a profile can be checked without the rest."""

from __future__ import annotations

from collections.abc import Mapping

GATE_THRESHOLDS: Mapping[str, float] = {
    "loss_rise": 1.0,
    "gradients": 10.0,
    "learning_rate": 1.0,
    "validation_gap": 20.0,
    "gpu_utilization": 85.0,
    "parallel_efficiency": 80.0,
}
"""Units and meaning are with the gates, `gputui.reports.summary.gates`, and in docs/reports.md."""
