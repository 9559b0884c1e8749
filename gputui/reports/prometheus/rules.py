"""Alert rules for Prometheus, as data.

A rule that corresponds to one of `gputui.recovery.watch.rules` takes its limits, duration and severity from there, as
shipped: ``alerts.yaml`` does not change them. Others have their own numbers; some report what only another machine can
notice, that gputui itself is gone.
"""

from __future__ import annotations

from typing import Literal

import yaml
from msgspec import Struct

from gputui.recovery.watch import rules as own

Severity = Literal["warning", "critical"]


class PrometheusRule(Struct, frozen=True):
    """One alert.

    Attributes:
        name: in CamelCase, as usual in Prometheus.
        expression: PromQL; the alert concerns each series that it returns.
        duration: how long it must return the series, such as ``5m``.
        severity: the label that routes the alert.
        summary: a sentence with labels of the series as ``{{ $labels.… }}``.
    """

    name: str
    expression: str
    duration: str
    severity: Severity
    summary: str


_SEVERITIES: dict[own.Severity, Severity] = {"info": "warning", "warning": "warning", "error": "critical"}


def _like(rule_id: str, name: str, expression: str, summary: str) -> PrometheusRule:
    """A rule with the duration and severity of one of gputui's."""
    rule = own.RULES[rule_id]
    return PrometheusRule(name, expression, _span(rule.for_seconds), _SEVERITIES[rule.severity], summary)


def _limit(rule_id: str, name: str, per: float = 1.0) -> str:
    """A threshold of one of gputui's rules in Prometheus' base unit, which has ``per`` of the threshold's unit."""
    (threshold,) = (each for each in own.RULES[rule_id].thresholds if each.name == name)
    return f"{threshold.default / per:g}"


def _share(rule_id: str, name: str = "above_percent") -> str:
    return _limit(rule_id, name, per=100.0)


def _window(rule_id: str) -> str:
    """How long one of gputui's alerts about an event lasts."""
    return _span(own.RULES[rule_id].clear_seconds)


def _span(seconds: float) -> str:
    """A duration as Prometheus writes it: ``90s``, ``5m``, ``1h``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


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
    _like("gpu_lost", "GpuLost", "gputui_gpu_up == 0", f"{_GPU} does not answer"),
    PrometheusRule("GpuQuarantined", "gputui_gpu_quarantined == 1", "0m", "warning", f"{_GPU} failed and gets no run"),
    _like(
        "gpu_hot",
        "GpuHot",
        f"gputui_gpu_temperature_celsius > {_limit('gpu_hot', 'above_celsius')} or gputui_gpu_temperature_celsius > "
        f"gputui_gpu_temperature_slowdown_celsius - {_limit('gpu_hot', 'margin_celsius')}",
        f"{_GPU} has {{{{ $value }}}} degrees Celsius",
    ),
    PrometheusRule(
        "GpuThrottledByHeat",
        'gputui_gpu_throttled{reason=~".*thermal.*"} == 1',
        "1m",
        "warning",
        f"{_GPU} is slowed by heat",
    ),
    _like(
        "gpu_memory",
        "GpuMemoryFull",
        f"gputui_gpu_memory_used_bytes / gputui_gpu_memory_total_bytes > {_share('gpu_memory')}",
        f"{_GPU} has nearly no memory left",
    ),
    _like(
        "xid",
        "GpuXid",
        f"increase(gputui_gpu_xid_errors_total[{_window('xid')}]) > 0",
        f"{_GPU}: XID {{{{ $labels.xid }}}}",
    ),
    _like(
        "ecc",
        "GpuMemoryErrors",
        f"increase(gputui_gpu_ecc_uncorrected_total[{_window('ecc')}]) > 0",
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
    _like(
        "data_wait",
        "RunWaitsForData",
        f"gputui_run_data_wait_seconds / gputui_run_step_seconds > {_share('data_wait')} and "
        f"gputui_run_data_wait_seconds > {_limit('data_wait', 'above_milliseconds', per=1000.0)}",
        f"{_RUN} waits for data {{{{ $value | humanizePercentage }}}} of its time",
    ),
    PrometheusRule(
        "RunFailsAgainAndAgain",
        "sum by (run) (increase(gputui_run_incidents_total[1h])) >= 3",
        "0m",
        "warning",
        f"{_RUN} had three incidents within an hour",
    ),
    _like(
        "host_memory",
        "HostMemoryNearlyFull",
        f"gputui_host_memory_used_bytes / gputui_host_memory_total_bytes > {_share('host_memory')}",
        "the host has nearly no memory left",
    ),
    _like(
        "disk",
        "DiskNearlyFull",
        f"gputui_host_disk_used_bytes / gputui_host_disk_total_bytes > {_share('disk')}",
        "the disk of the state directory is nearly full",
    ),
    _like(
        "shm",
        "SharedMemoryNearlyFull",
        f"gputui_host_shm_used_bytes / gputui_host_shm_total_bytes > {_share('shm')}",
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
