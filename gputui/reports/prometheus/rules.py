"""Alert rules for Prometheus, as data. They cover what a machine that watches from outside can tell better: that gputui
itself is gone. The rest follows gputui's own rules (`gputui.alerts.rules`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import yaml

Severity = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True)
class PrometheusRule:
    """One alert: when ``expression`` holds for ``duration``. ``summary`` may name labels of the series."""

    name: str
    expression: str
    duration: str
    severity: Severity
    summary: str


_GPU = "GPU {{ $labels.gpu }}"
_RUN = "{{ $labels.run }}"

RULES: tuple[PrometheusRule, ...] = (
    PrometheusRule(
        "GputuiGone", "absent(gputui_info)", "2m", "critical", "gputui does not answer: nothing is recorded"
    ),
    PrometheusRule(
        "GputuiStoreUnreadable", "gputui_store_readable == 0", "2m", "critical", "the database cannot be read"
    ),
    PrometheusRule(
        "GputuiAgentSilent",
        "gputui_agent_heartbeat_age_seconds > 30",
        "1m",
        "critical",
        "the agent does not work any more",
    ),
    PrometheusRule(
        "GpuDriverSilent", "gputui_driver_silent_seconds > 30", "1m", "critical", "the NVIDIA driver does not answer"
    ),
    PrometheusRule("GpuLost", "gputui_gpu_up == 0", "1m", "critical", f"{_GPU} does not answer"),
    PrometheusRule("GpuQuarantined", "gputui_gpu_quarantined == 1", "0m", "warning", f"{_GPU} failed and gets no run"),
    PrometheusRule(
        "GpuHot",
        "gputui_gpu_temperature_celsius > 85 or "
        "gputui_gpu_temperature_celsius > gputui_gpu_temperature_slowdown_celsius - 5",
        "2m",
        "warning",
        f"{_GPU} has {{{{ $value }}}} degrees Celsius",
    ),
    PrometheusRule(
        "GpuThrottledByHeat",
        'gputui_gpu_throttled{reason=~".*thermal.*"} == 1',
        "1m",
        "warning",
        f"{_GPU} is slowed by heat",
    ),
    PrometheusRule(
        "GpuMemoryFull",
        "gputui_gpu_memory_used_bytes / gputui_gpu_memory_total_bytes > 0.95",
        "5m",
        "warning",
        f"{_GPU} has nearly no memory left",
    ),
    PrometheusRule(
        "GpuXid",
        "increase(gputui_gpu_xid_errors_total[10m]) > 0",
        "0m",
        "warning",
        f"{_GPU}: XID {{{{ $labels.xid }}}}",
    ),
    PrometheusRule(
        "GpuMemoryErrors",
        "increase(gputui_gpu_ecc_uncorrected_total[1h]) > 0",
        "0m",
        "critical",
        f"{_GPU} had memory errors that could not be corrected",
    ),
    PrometheusRule(
        "GpuRowRemapFailed", "gputui_gpu_row_remap_failed == 1", "0m", "critical", f"{_GPU} has bad memory; replace it"
    ),
    PrometheusRule(
        "GpuHeldIdle",
        "max by (gpu, uuid, run) (gputui_gpu_lease) * on (gpu, uuid) group_left () gputui_gpu_utilization_ratio < 0.05",
        "30m",
        "warning",
        f"{_RUN} holds {_GPU} and does nothing",
    ),
    PrometheusRule(
        "RunWithoutProgress",
        'min by (run) (gputui_run_step_age_seconds) > 1800 and on (run) gputui_run_state{state="running"} == 1',
        "0m",
        "warning",
        f"{_RUN} has written no step for half an hour",
    ),
    PrometheusRule(
        "RunLossNotFinite",
        "gputui_run_loss != gputui_run_loss or abs(gputui_run_loss) == Inf",
        "1m",
        "critical",
        f"the loss of {_RUN} is no number",
    ),
    PrometheusRule(
        "RunWaitsForData",
        "gputui_run_data_wait_seconds / gputui_run_step_seconds > 0.2",
        "10m",
        "warning",
        f"{_RUN} waits for data a fifth of its time",
    ),
    PrometheusRule(
        "RunFailsAgainAndAgain",
        "sum by (run) (increase(gputui_run_incidents_total[1h])) >= 3",
        "0m",
        "warning",
        f"{_RUN} had three incidents within an hour",
    ),
    PrometheusRule(
        "HostMemoryNearlyFull",
        "gputui_host_memory_used_bytes / gputui_host_memory_total_bytes > 0.95",
        "5m",
        "warning",
        "the host has nearly no memory left",
    ),
    PrometheusRule(
        "DiskNearlyFull",
        "gputui_host_disk_used_bytes / gputui_host_disk_total_bytes > 0.95",
        "5m",
        "warning",
        "the disk of the state directory is nearly full",
    ),
    PrometheusRule(
        "SharedMemoryNearlyFull",
        "gputui_host_shm_used_bytes / gputui_host_shm_total_bytes > 0.9",
        "5m",
        "warning",
        "shared memory is nearly full; data loaders will fail",
    ),
)


def rules_yaml() -> str:
    """The rules as a file for ``rule_files:``."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            "for": rule.duration,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary},
        }
        for rule in RULES
    ]
    return yaml.safe_dump({"groups": [{"name": "gputui", "rules": rules}]}, sort_keys=False, width=120)
