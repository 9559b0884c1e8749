"""Metrics for Prometheus: base units in the names; unknown values are absent, never 0.

Names and units follow https://prometheus.io/docs/practices/naming/: seconds, bytes, ratios from 0
to 1, hertz.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gputui.core.text import clean
from gputui.store import alerts
from gputui.store.agent import read_agent
from gputui.store.database import one_moment
from gputui.store.hardware import GpuView, quarantined, rank_among, read_gpus, read_host
from gputui.store.metrics import queries
from gputui.store.metrics.roles import LOSS, VALIDATION_LOSS
from gputui.store.runs import read_runs
from gputui.version import VERSION

Rows = Iterable[tuple[Sequence[str], Any]]

_GPU = ("gpu", "uuid")
_RUN = ("run", "name")
_PERCENT = 0.01
_MEGAHERTZ = 1e6

_GPU_COUNTERS: Mapping[str, str] = {
    "energy_joules": "Energy drawn since the driver was loaded.",
    "ecc_corrected": "Memory errors corrected.",
    "ecc_uncorrected": "Memory errors that could not be corrected.",
}
# Fields of `HostSample`, except the first.
_HOST_GAUGES: Mapping[str, str] = {
    "cpu_ratio": "Share of all cores that is busy.",
    "cpu_count": "Cores.",
    "load_1m": "Load average over a minute.",
    "memory_used_bytes": "Memory in use.",
    "memory_total_bytes": "Memory.",
    "swap_used_bytes": "Swap in use.",
    "disk_used_bytes": "Used on the disk that holds the state directory.",
    "disk_total_bytes": "Size of that disk.",
    "disk_read_bytes_per_second": "Read from all disks.",
    "disk_write_bytes_per_second": "Written to all disks.",
    "shm_used_bytes": "Used of /dev/shm.",
    "shm_total_bytes": "Size of /dev/shm.",
    "network_received_bytes_per_second": "Received on all interfaces.",
    "network_sent_bytes_per_second": "Sent on all interfaces.",
}
_HOST_NAMES = {"cpu_count": "cpu_cores"}
# The standard vocabulary of docs/profiles.md: name there, name here, and meaning.
_RANK_GAUGES: Sequence[tuple[str, str, str]] = (
    (LOSS, "loss", "Newest training loss; NaN and infinite values as they are."),
    ("lr", "learning_rate", "Newest learning rate."),
    ("grad_norm", "gradient_norm", "Newest norm of the gradient."),
    ("samples_per_s", "samples_per_second", "Samples that the whole run trains on in a second."),
    ("tokens_per_s", "tokens_per_second", "Tokens that the whole run trains on in a second."),
    ("step_time", "step_seconds", "Time of the newest step."),
    ("data_time", "data_wait_seconds", "Of that, the wait for data."),
    ("comm_time", "communication_seconds", "Of that, the wait in collectives."),
    ("gpu_mem_peak", "gpu_memory_peak_bytes", "GPU memory that the rank held at most."),
    ("epoch", "epoch", "Epoch."),
    ("mfu", "model_flops_utilization_ratio", "Share of the GPU's peak that the model uses."),
    (VALIDATION_LOSS, "validation_loss", "Newest validation loss."),
    ("val/accuracy", "validation_accuracy_ratio", "Newest validation accuracy."),
)

HOST_FRESH_SECONDS = 30.0
"""An older sample of the host is outdated."""


class MetricFamily(NamedTuple):
    """The metrics of one name; ``metric_class`` is the client library's."""

    metric_class: Any
    name: str
    text: str
    labels: Sequence[str]
    rows: Rows


class _GpuGauge(NamedTuple):
    """A gauge of each GPU, whose value has a ``unit`` of so many of the metric's."""

    name: str
    text: str
    value: Callable[[GpuView], float | None]
    unit: float = 1


_GPU_GAUGES: Sequence[_GpuGauge] = (
    _GpuGauge("utilization_ratio", "Time in which a kernel ran.", lambda gpu: gpu.utilization_percent, _PERCENT),
    _GpuGauge(
        "memory_controller_ratio", "Time of memory traffic.", lambda gpu: gpu.memory_utilization_percent, _PERCENT
    ),
    _GpuGauge("memory_used_bytes", "Memory in use, without the reserved.", lambda gpu: gpu.memory_used_bytes),
    _GpuGauge("memory_reserved_bytes", "Reserved by driver and firmware.", lambda gpu: gpu.memory_reserved_bytes),
    _GpuGauge("memory_total_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total_bytes),
    _GpuGauge("temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature_celsius),
    _GpuGauge(
        "temperature_slowdown_celsius", "Where it slows down.", lambda gpu: gpu.facts.temperature_slowdown_celsius
    ),
    _GpuGauge(
        "memory_temperature_celsius", "Temperature of its memory.", lambda gpu: gpu.slow.memory_temperature_celsius
    ),
    _GpuGauge("power_watts", "Power drawn.", lambda gpu: gpu.power_watts),
    _GpuGauge("power_limit_watts", "Power cap in force.", lambda gpu: gpu.power_limit_watts),
    _GpuGauge("sm_clock_hertz", "Clock of the multiprocessors.", lambda gpu: gpu.sm_clock_mhz, _MEGAHERTZ),
    _GpuGauge("memory_clock_hertz", "Clock of the memory.", lambda gpu: gpu.memory_clock_mhz, _MEGAHERTZ),
    _GpuGauge("performance_state", "P-state, 0 is the fastest.", lambda gpu: gpu.performance_state),
    _GpuGauge(
        "encoder_ratio", "Time in which the video encoder worked.", lambda gpu: gpu.slow.encoder_percent, _PERCENT
    ),
    _GpuGauge(
        "decoder_ratio", "Time in which the video decoder worked.", lambda gpu: gpu.slow.decoder_percent, _PERCENT
    ),
    _GpuGauge("fan_ratio", "Fan speed as a share of its maximum.", lambda gpu: gpu.slow.fan_percent, _PERCENT),
    _GpuGauge(
        "pcie_received_bytes_per_second", "PCIe traffic to it.", lambda gpu: gpu.slow.pcie_received_bytes_per_second
    ),
    _GpuGauge("pcie_sent_bytes_per_second", "PCIe traffic from it.", lambda gpu: gpu.slow.pcie_sent_bytes_per_second),
    _GpuGauge("pcie_link_generation", "Generation of the PCIe link now.", lambda gpu: gpu.slow.pcie_generation),
    _GpuGauge("pcie_link_width", "Lanes of the PCIe link now.", lambda gpu: gpu.slow.pcie_width),
    _GpuGauge("pcie_link_width_max", "Lanes that the link could have.", lambda gpu: gpu.facts.pcie_width_max),
    _GpuGauge(
        "nvlink_received_bytes_per_second", "NVLink to it.", lambda gpu: gpu.slow.nvlink_received_bytes_per_second
    ),
    _GpuGauge("nvlink_sent_bytes_per_second", "NVLink from it.", lambda gpu: gpu.slow.nvlink_sent_bytes_per_second),
    _GpuGauge("row_remap_pending", "1 when memory waits to be remapped.", lambda gpu: gpu.slow.row_remap_pending),
    _GpuGauge("row_remap_failed", "1 when memory could not be remapped.", lambda gpu: gpu.slow.row_remap_failed),
)


def families(connection: sqlite3.Connection, now: float) -> Iterator[Metric]:
    """All metrics of one moment, each family once; none of those without a known value. Raises
    sqlite3.Error."""
    with one_moment(connection):
        for kind, name, text, labels, rows in declarations(connection, now):
            family = kind(f"gputui_{name}", text, labels=labels)
            for label_values, value in rows:
                if value is not None:
                    family.add_metric([clean(word) for word in label_values], float(value))
            if family.samples:
                yield family


def declarations(connection: sqlite3.Connection, now: float) -> Iterator[MetricFamily]:
    """All families, also those without a value."""
    yield from _agent(connection, now)
    yield from _gpus(connection, now)
    yield from _host(connection, now)
    yield from _runs(connection, now)


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> MetricFamily:
    return MetricFamily(GaugeMetricFamily, name, text, labels, rows)


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> MetricFamily:
    return MetricFamily(CounterMetricFamily, name, text, labels, rows)


def _agent(connection: sqlite3.Connection, now: float) -> Iterator[MetricFamily]:
    yield _gauge("info", "Version of gputui.", ("version",), [((VERSION,), 1)])
    agent = read_agent(connection)
    if agent is not None:
        age = max(0.0, now - agent.heartbeat_at)
        silent = agent.sampler_silent_seconds
        text = "Since the agent last wrote that it lives."
        yield _gauge("agent_heartbeat_age_seconds", text, (), [((), age)])
        text = "For how long the driver has not answered."
        yield _gauge("driver_silent_seconds", text, (), [((), silent)])
    lasting = Counter(
        (alert.rule, alert.severity, alert.subject_kind, alert.subject_name) for alert in alerts.lasting(connection)
    )
    labels = ("rule", "severity", "subject_kind", "subject")
    yield _gauge("alert_active", "Alerts of gputui itself that last now.", labels, lasting.items())


LabelledGpus = Sequence[tuple[tuple[str, str], GpuView]]
"""GPUs behind their labels `_GPU`: index and UUID."""


def _gpus(connection: sqlite3.Connection, now: float) -> Iterator[MetricFamily]:
    labelled = [((str(gpu.index), gpu.uuid), gpu) for gpu in read_gpus(connection, now)]
    # Old samples are outdated: only GPUs that answer now have values.
    fresh = [(labels, gpu) for labels, gpu in labelled if gpu.state == "ok"]
    yield from _gpu_states(labelled, quarantined(connection))
    yield from _gpu_values(fresh)
    yield from _gpu_users(labelled, fresh)
    yield _gpu_xids(connection, labelled)


def _gpu_states(labelled: LabelledGpus, failed: Container[str]) -> Iterator[MetricFamily]:
    yield _gauge(
        "gpu_info", "What the GPU is.", (*_GPU, "model", "pci_bus_id"),
        [((*labels, gpu.name, str(gpu.facts.pci_bus_id or "")), 1) for labels, gpu in labelled],
    )  # fmt: skip
    text = "1 while the driver answers for this GPU."
    yield _gauge("gpu_up", text, _GPU, [(labels, gpu.state == "ok") for labels, gpu in labelled])
    yield _gauge(
        "gpu_quarantined", "1 when no run gets this GPU, because it failed.", _GPU,
        [(labels, gpu.uuid in failed) for labels, gpu in labelled],
    )  # fmt: skip


def _gpu_values(fresh: LabelledGpus) -> Iterator[MetricFamily]:
    for gauge in _GPU_GAUGES:
        values = [(labels, gauge.value(gpu)) for labels, gpu in fresh]
        rows = [(labels, round(value * gauge.unit, 9)) for labels, value in values if value is not None]
        yield _gauge(f"gpu_{gauge.name}", gauge.text, _GPU, rows)
    for name, text in _GPU_COUNTERS.items():
        yield _counter(f"gpu_{name}", text, _GPU, [(labels, getattr(gpu.slow, name)) for labels, gpu in fresh])
    yield _gauge(
        "gpu_throttled", "1 for each reason that holds the clocks back.", (*_GPU, "reason"),
        [((*labels, why), 1) for labels, gpu in fresh for why in gpu.throttle_reasons or ()],
    )  # fmt: skip


def _gpu_users(labelled: LabelledGpus, fresh: LabelledGpus) -> Iterator[MetricFamily]:
    leases = [
        ((*labels, run_id, name or run_id, _rank(rank_among(gpu.processes, run_id))), 1)
        for labels, gpu in labelled
        if gpu.run_id is not None
        for run_id, name in ((gpu.run_id, gpu.run_name), *gpu.shared_with)
    ]
    text = "1 for each run that holds the GPU, with the rank on it."
    yield _gauge("gpu_lease", text, (*_GPU, *_RUN, "rank"), leases)
    yield _gauge(
        "gpu_processes", "Processes that hold memory of the GPU.", _GPU,
        [(labels, len(gpu.processes)) for labels, gpu in fresh if gpu.processes is not None],
    )  # fmt: skip


def _gpu_xids(connection: sqlite3.Connection, labelled: LabelledGpus) -> MetricFamily:
    known_labels = {gpu.uuid: labels for labels, gpu in labelled}
    counts = connection.execute(
        "SELECT uuid, code, count(*) FROM gpu_events WHERE event = 'xid' AND code IS NOT NULL GROUP BY uuid, code"
    ).fetchall()
    return _counter(
        "gpu_xid_errors", "XID errors that the driver has reported.", (*_GPU, "xid"),
        [((*known_labels.get(uuid, ("", uuid)), str(code)), number) for uuid, code, number in counts],
    )  # fmt: skip


def _rank(rank: int | None) -> str:
    if rank is None:
        return ""
    return str(rank)


def _host(connection: sqlite3.Connection, now: float) -> Iterator[MetricFamily]:
    host = read_host(connection)
    if host is None or now - host.at > HOST_FRESH_SECONDS:
        return
    busy = None
    if host.cpu_percent is not None:
        busy = host.cpu_percent / 100
    for field, text in _HOST_GAUGES.items():
        value = busy if field == "cpu_ratio" else getattr(host, field)
        yield _gauge(f"host_{_HOST_NAMES.get(field, field)}", text, (), [((), value)])


def _runs(connection: sqlite3.Connection, now: float) -> Iterator[MetricFamily]:
    """Runs that are over are only counted, so that the number of series is bounded."""
    counts = connection.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall()
    yield _gauge("runs", "Runs in each state.", ("state",), [((state,), count) for state, count in counts])
    runs = [((run.run_id, run.name), run) for run in read_runs(connection, active_only=True)]
    yield _gauge(
        "run_state", "1 for the state that the run is in.", (*_RUN, "profile", "state"),
        [((*who, run.profile, run.state), 1) for who, run in runs],
    )  # fmt: skip
    text = "Number of the newest attempt."
    yield _gauge("run_attempt", text, _RUN, [(who, run.attempt) for who, run in runs])
    yield _gauge("run_gpus", "GPUs that it holds.", _RUN, [(who, run.gpu_total or 0) for who, run in runs])
    query = "SELECT kind, count(*) FROM incidents WHERE run_id = ? GROUP BY kind"
    yield _counter(
        "run_incidents", "Incidents of the run.", (*_RUN, "kind"),
        [((*who, kind), number) for who, run in runs for kind, number in connection.execute(query, (run.run_id,))],
    )  # fmt: skip
    lines = [
        ((*who, _rank(line.rank)), line, run)
        for who, run in runs
        for line in queries.ranks(connection, run.run_id, run.attempt)
    ]
    labels = (*_RUN, "rank")
    yield _gauge("run_step", "Newest step.", labels, [(who, line.step) for who, line, _ in lines])
    ages = [(who, max(0.0, run.seen_until(now) - line.at)) for who, line, run in lines if line.at is not None]
    yield _gauge("run_step_age_seconds", "Since that step was written, up to the last contact.", labels, ages)
    for metric, name, text in _RANK_GAUGES:
        rows = [(who, line.data.get(run.roles.names.get(metric, metric))) for who, line, run in lines]
        yield _gauge(f"run_{name}", text, labels, rows)
