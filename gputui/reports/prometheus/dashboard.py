"""A Grafana dashboard over the endpoint: the machine, its GPUs, training, communication and the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

_WIDTH = 24
_HEIGHT = 8
_SCHEMA_VERSION = 39
"""The schema of Grafana 10 and later."""


class DashboardPanel(Struct, frozen=True):
    """A graph. ``unit`` is a name of Grafana; ``queries`` are pairs of expression and legend."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"


_GPU = "GPU {{gpu}}"
_RANK = "{{run}} rank {{rank}}"

ROWS: Sequence[tuple[str, Sequence[DashboardPanel]]] = (
    (
        "Machine",
        (
            DashboardPanel("GPUs that answer", "none", [("sum(gputui_gpu_up)", "")], "stat"),
            DashboardPanel(
                "Power of all GPUs",
                "watt",
                [("sum(gputui_gpu_power_watts)", "power"), ("sum(gputui_gpu_power_limit_watts)", "cap")],
            ),
            DashboardPanel("Runs", "none", [("gputui_runs", "{{state}}")]),
            DashboardPanel(
                "Alerts of gputui", "none", [("sum by (rule, subject) (gputui_alert_active)", "{{rule}} {{subject}}")]
            ),
        ),
    ),
    (
        "GPUs",
        (
            DashboardPanel("Utilisation", "percentunit", [("gputui_gpu_utilization_ratio", _GPU)]),
            DashboardPanel("Memory used", "bytes", [("gputui_gpu_memory_used_bytes", _GPU)]),
            DashboardPanel("Temperature", "celsius", [("gputui_gpu_temperature_celsius", _GPU)]),
            DashboardPanel("Power", "watt", [("gputui_gpu_power_watts", _GPU)]),
            DashboardPanel("Clock of the multiprocessors", "hertz", [("gputui_gpu_sm_clock_hertz", _GPU)]),
            DashboardPanel("Held back by", "none", [("gputui_gpu_throttled", "GPU {{gpu}} {{reason}}")]),
            DashboardPanel(
                "XID errors within an hour",
                "none",
                [("increase(gputui_gpu_xid_errors_total[1h])", "GPU {{gpu}} XID {{xid}}")],
            ),
            DashboardPanel("Energy within an hour", "joule", [("increase(gputui_gpu_energy_joules_total[1h])", _GPU)]),
        ),
    ),
    (
        "Training",
        (
            DashboardPanel(
                "Loss", "none", [("gputui_run_loss", _RANK), ("gputui_run_validation_loss", "{{run}} validation")]
            ),
            DashboardPanel("Samples per second", "none", [("gputui_run_samples_per_second", _RANK)]),
            DashboardPanel("Step time", "s", [("gputui_run_step_seconds", _RANK)]),
            DashboardPanel("Learning rate", "none", [("gputui_run_learning_rate", _RANK)]),
            DashboardPanel("Norm of the gradient", "none", [("gputui_run_gradient_norm", _RANK)]),
            DashboardPanel(
                "Incidents", "none", [("sum by (run, kind) (gputui_run_incidents_total)", "{{run}} {{kind}}")]
            ),
        ),
    ),
    (
        "Communication",
        (
            DashboardPanel("Time in collectives", "s", [("gputui_run_communication_seconds", _RANK)]),
            DashboardPanel(
                "Share of a step in collectives",
                "percentunit",
                [("gputui_run_communication_seconds / gputui_run_step_seconds", _RANK)],
            ),
            DashboardPanel(
                "NVLink",
                "Bps",
                [
                    ("gputui_gpu_nvlink_received_bytes_per_second", f"{_GPU} in"),
                    ("gputui_gpu_nvlink_sent_bytes_per_second", f"{_GPU} out"),
                ],
            ),
            DashboardPanel(
                "PCIe",
                "Bps",
                [
                    ("gputui_gpu_pcie_received_bytes_per_second", f"{_GPU} in"),
                    ("gputui_gpu_pcie_sent_bytes_per_second", f"{_GPU} out"),
                ],
            ),
        ),
    ),
    (
        "Host",
        (
            DashboardPanel("Processors", "percentunit", [("gputui_host_cpu_ratio", "busy")]),
            DashboardPanel(
                "Memory",
                "bytes",
                [("gputui_host_memory_used_bytes", "used"), ("gputui_host_memory_total_bytes", "total")],
            ),
            DashboardPanel(
                "Wait for data as a share of a step",
                "percentunit",
                [("gputui_run_data_wait_seconds / gputui_run_step_seconds", _RANK)],
            ),
            DashboardPanel(
                "Disks",
                "Bps",
                [
                    ("gputui_host_disk_read_bytes_per_second", "read"),
                    ("gputui_host_disk_write_bytes_per_second", "written"),
                ],
            ),
            DashboardPanel(
                "Disk of the state directory",
                "percentunit",
                [("gputui_host_disk_used_bytes / gputui_host_disk_total_bytes", "used")],
            ),
            DashboardPanel(
                "Network",
                "Bps",
                [
                    ("gputui_host_network_received_bytes_per_second", "in"),
                    ("gputui_host_network_sent_bytes_per_second", "out"),
                ],
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, with the data source as a variable."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, members in ROWS:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, _WIDTH, 1), "panels": []}
        )
        top += 1
        across = min(3, len(members))
        for number, panel in enumerate(members):
            row, column = divmod(number, across)
            width = _WIDTH // across
            panels.append(_panel(panel, _place(column * width, top + row * _HEIGHT, width, _HEIGHT)))
        top += -(-len(members) // across) * _HEIGHT
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "title": "gputui",
        "uid": "gputui",
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: DashboardPanel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": source}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }
