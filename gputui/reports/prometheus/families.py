"""Metrics for Prometheus: base units in the names; unknown values are absent, never 0. Pure.

Names and units follow https://prometheus.io/docs/practices/naming/: seconds, bytes, ratios from 0 to 1, hertz.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gputui.core.text import clean
from gputui.reports.prometheus.moment import ScrapeMoment
from gputui.store.hardware import GpuView, rank_among
from gputui.store.runs import Run
from gputui.store.series import HostSample
from gputui.version import VERSION

GpuValue = Callable[[GpuView], float | bool | None]
_GPU_LABELS = ("gpu", "uuid")
_RUN_LABELS = ("run", "name")


def _percent(value: float | None) -> float | None:
    return None if value is None else value / 100.0


def _megahertz(value: float | None) -> float | None:
    return None if value is None else value * 1e6


def _slow(name: str) -> GpuValue:
    return lambda gpu: gpu.slow.get(name)


def _fact(name: str) -> GpuValue:
    return lambda gpu: gpu.facts.get(name)


_GPU_GAUGES: Sequence[tuple[str, str, GpuValue]] = (
    ("utilization_ratio", "Share of time in which a kernel ran.", lambda gpu: _percent(gpu.utilization_percent)),
    ("memory_controller_ratio", "Share of time in which memory was read or written.",
     lambda gpu: _percent(gpu.memory_utilization_percent)),
    ("memory_used_bytes", "Memory in use, without what the driver reserves.", lambda gpu: gpu.memory_used_bytes),
    ("memory_reserved_bytes", "Memory that the driver and firmware reserve.", lambda gpu: gpu.memory_reserved_bytes),
    ("memory_total_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total_bytes),
    ("temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature_celsius),
    ("temperature_slowdown_celsius", "From here on it slows down.", _fact("temperature_slowdown_celsius")),
    ("memory_temperature_celsius", "Temperature of its memory.", _slow("memory_temperature_celsius")),
    ("power_watts", "Power drawn.", lambda gpu: gpu.power_watts),
    ("power_limit_watts", "Power cap in force.", lambda gpu: gpu.power_limit_watts),
    ("sm_clock_hertz", "Clock of the multiprocessors.", lambda gpu: _megahertz(gpu.sm_clock_mhz)),
    ("memory_clock_hertz", "Clock of the memory.", lambda gpu: _megahertz(gpu.memory_clock_mhz)),
    ("performance_state", "P-state, 0 is the fastest.", lambda gpu: gpu.performance_state),
    ("encoder_ratio", "Share of time in which the video encoder worked.",
     lambda gpu: _percent(gpu.slow.get("encoder_percent"))),
    ("decoder_ratio", "Share of time in which the video decoder worked.",
     lambda gpu: _percent(gpu.slow.get("decoder_percent"))),
    ("fan_ratio", "Fan speed as a share of its maximum.", lambda gpu: _percent(gpu.slow.get("fan_percent"))),
    ("pcie_received_bytes_per_second", "PCIe traffic to the GPU.", _slow("pcie_received_bytes_per_second")),
    ("pcie_sent_bytes_per_second", "PCIe traffic from the GPU.", _slow("pcie_sent_bytes_per_second")),
    ("pcie_link_generation", "Generation of the PCIe link now.", _slow("pcie_generation")),
    ("pcie_link_width", "Lanes of the PCIe link now.", _slow("pcie_width")),
    ("pcie_link_width_max", "Lanes that the link could have.", _fact("pcie_width_max")),
    ("nvlink_received_bytes_per_second", "NVLink traffic to the GPU.", _slow("nvlink_received_bytes_per_second")),
    ("nvlink_sent_bytes_per_second", "NVLink traffic from the GPU.", _slow("nvlink_sent_bytes_per_second")),
    ("row_remap_pending", "1 when memory waits for a reset to be remapped.", _slow("row_remap_pending")),
    ("row_remap_failed", "1 when memory could not be remapped.", _slow("row_remap_failed")),
)  # fmt: skip

_GPU_COUNTERS: Sequence[tuple[str, str, GpuValue]] = (
    ("energy_joules", "Energy drawn since the driver was loaded.", _slow("energy_joules")),
    ("ecc_corrected", "Memory errors corrected.", _slow("ecc_corrected")),
    ("ecc_uncorrected", "Memory errors that could not be corrected.", _slow("ecc_uncorrected")),
)

_HOST_GAUGES: Sequence[tuple[str, str, Callable[[HostSample], float | None]]] = (
    ("cpu_ratio", "Share of all cores that is busy.", lambda host: _percent(host.cpu_percent)),
    ("cpu_cores", "Cores.", lambda host: host.cpu_count),
    ("load_1m", "Load average over a minute.", lambda host: host.load_1m),
    ("memory_used_bytes", "Memory in use.", lambda host: host.memory_used_bytes),
    ("memory_total_bytes", "Memory.", lambda host: host.memory_total_bytes),
    ("swap_used_bytes", "Swap in use.", lambda host: host.swap_used_bytes),
    ("disk_used_bytes", "Used on the disk that holds the state directory.", lambda host: host.disk_used_bytes),
    ("disk_total_bytes", "Size of that disk.", lambda host: host.disk_total_bytes),
    ("disk_read_bytes_per_second", "Read from all disks.", lambda host: host.disk_read_bytes_per_second),
    ("disk_write_bytes_per_second", "Written to all disks.", lambda host: host.disk_write_bytes_per_second),
    ("shm_used_bytes", "Used of /dev/shm.", lambda host: host.shm_used_bytes),
    ("shm_total_bytes", "Size of /dev/shm.", lambda host: host.shm_total_bytes),
    ("network_received_bytes_per_second", "Received on all interfaces.",
     lambda host: host.network_received_bytes_per_second),
    ("network_sent_bytes_per_second", "Sent on all interfaces.", lambda host: host.network_sent_bytes_per_second),
)  # fmt: skip

# The standard vocabulary of docs/metrics.md: name there, name here, unit and meaning.
_RANK_GAUGES: Sequence[tuple[str, str, str]] = (
    ("loss", "loss", "Newest training loss; NaN and infinite values are reported as they are."),
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
    ("val/loss", "validation_loss", "Newest validation loss."),
    ("val/accuracy", "validation_accuracy_ratio", "Newest validation accuracy."),
)


def families(moment: ScrapeMoment) -> Iterator[Metric]:
    """All metrics of a moment, each family once."""
    yield from _agent(moment)
    yield from _gpus(moment)
    yield from _host(moment)
    yield from _runs(moment)
    yield from _alerts(moment)


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Any]]) -> Iterator[Metric]:
    yield from _family(GaugeMetricFamily(f"gputui_{name}", text, labels=labels), rows)


def _counter(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Any]]
) -> Iterator[Metric]:
    yield from _family(CounterMetricFamily(f"gputui_{name}", text, labels=labels), rows)


def _family(family: Any, rows: Iterable[tuple[Sequence[str], Any]]) -> Iterator[Metric]:
    """The family with all known values; nothing without any."""
    for labels, value in rows:
        if value is not None:
            family.add_metric([clean(label) for label in labels], float(value))
    if family.samples:
        yield family


def _agent(moment: ScrapeMoment) -> Iterator[Metric]:
    yield from _gauge("info", "Version of gputui.", ("version",), [((VERSION,), 1)])
    agent = moment.agent
    if agent is not None:
        age = max(0.0, moment.at - agent.heartbeat_at)
        yield from _gauge("agent_heartbeat_age_seconds", "Since the agent last wrote that it lives.", (), [((), age)])
        silent = agent.sampler_silent_seconds
        yield from _gauge("driver_silent_seconds", "For how long the driver has not answered.", (), [((), silent)])


def _gpus(moment: ScrapeMoment) -> Iterator[Metric]:
    all_gpus = moment.gpus
    yield from _gauge(
        "gpu_info", "What the GPU is.", (*_GPU_LABELS, "model", "pci_bus_id"),
        [((*_gpu_labels(gpu), gpu.name, str(gpu.facts.get("pci_bus_id") or "")), 1) for gpu in all_gpus],
    )  # fmt: skip
    yield from _gauge(
        "gpu_up", "1 while the driver answers for this GPU.", _GPU_LABELS,
        [(_gpu_labels(gpu), gpu.state == "ok") for gpu in all_gpus],
    )  # fmt: skip
    yield from _gauge(
        "gpu_quarantined", "1 when no run gets this GPU, because it failed.", _GPU_LABELS,
        [(_gpu_labels(gpu), gpu.uuid in moment.quarantined) for gpu in all_gpus],
    )  # fmt: skip
    # Old samples are outdated: only GPUs that answer now have values.
    fresh = [gpu for gpu in all_gpus if gpu.state == "ok"]
    for name, text, value in _GPU_GAUGES:
        yield from _gauge(f"gpu_{name}", text, _GPU_LABELS, [(_gpu_labels(gpu), value(gpu)) for gpu in fresh])
    for name, text, value in _GPU_COUNTERS:
        yield from _counter(f"gpu_{name}", text, _GPU_LABELS, [(_gpu_labels(gpu), value(gpu)) for gpu in fresh])
    yield from _gauge(
        "gpu_throttled", "1 for each reason that holds the clocks back.", (*_GPU_LABELS, "reason"),
        [((*_gpu_labels(gpu), reason), 1) for gpu in fresh for reason in gpu.throttle_reasons or ()],
    )  # fmt: skip
    yield from _gauge(
        "gpu_lease", "1 for each run that holds the GPU, with the rank on it.", (*_GPU_LABELS, *_RUN_LABELS, "rank"),
        [((*_gpu_labels(gpu), run_id, name or run_id, _rank(rank_among(gpu.processes, run_id))), 1)
         for gpu in all_gpus if gpu.run_id is not None
         for run_id, name in ((gpu.run_id, gpu.run_name), *gpu.shared_with)],
    )  # fmt: skip
    yield from _gauge(
        "gpu_processes", "Processes that hold memory of the GPU.", _GPU_LABELS,
        [(_gpu_labels(gpu), None if gpu.processes is None else len(gpu.processes)) for gpu in fresh],
    )  # fmt: skip
    index = {gpu.uuid: str(gpu.index) for gpu in all_gpus}
    yield from _counter(
        "gpu_xid_errors", "XID errors that the driver has reported.", (*_GPU_LABELS, "xid"),
        [((index.get(uuid, ""), uuid, str(code)), number) for (uuid, code), number in moment.xids.items()],
    )  # fmt: skip


def _gpu_labels(gpu: GpuView) -> tuple[str, str]:
    return str(gpu.index), gpu.uuid


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _host(moment: ScrapeMoment) -> Iterator[Metric]:
    host = moment.host
    if host is not None:
        for name, text, value in _HOST_GAUGES:
            yield from _gauge(f"host_{name}", text, (), [((), value(host))])


def _runs(moment: ScrapeMoment) -> Iterator[Metric]:
    runs = moment.runs
    yield from _gauge(
        "runs", "Runs in each state.", ("state",), [((state,), count) for state, count in moment.run_counts.items()]
    )
    yield from _gauge(
        "run_state", "1 for the state that the run is in.", (*_RUN_LABELS, "profile", "state"),
        [((*_run_labels(run), run.profile, run.state), 1) for run in runs],
    )  # fmt: skip
    yield from _gauge(
        "run_attempt", "Number of the newest attempt.", _RUN_LABELS, [(_run_labels(run), run.attempt) for run in runs]
    )
    yield from _gauge(
        "run_gpus", "GPUs that the run holds.", _RUN_LABELS, [(_run_labels(run), len(run.gpus)) for run in runs]
    )
    names = {run.run_id: _run_labels(run) for run in runs}
    yield from _counter(
        "run_incidents", "Incidents of the run.", (*_RUN_LABELS, "kind"),
        [((*names[run_id], kind), number) for (run_id, kind), number in moment.incidents.items()
         if run_id in names],
    )  # fmt: skip
    labels = (*_RUN_LABELS, "rank")
    lines = [(run, line) for run in runs for line in moment.ranks.get(run.run_id, ())]
    yield from _gauge(
        "run_step", "Newest step.", labels, [((*_run_labels(run), _rank(line.rank)), line.step) for run, line in lines]
    )
    yield from _gauge(
        "run_step_age_seconds", "Since that step was written.", labels,
        [((*_run_labels(run), _rank(line.rank)), None if line.at is None else max(0.0, moment.at - line.at))
         for run, line in lines],
    )  # fmt: skip
    for metric, name, text in _RANK_GAUGES:
        yield from _gauge(
            f"run_{name}", text, labels,
            [((*_run_labels(run), _rank(line.rank)), line.values.get(metric)) for run, line in lines],
        )  # fmt: skip


def _run_labels(run: Run) -> tuple[str, str]:
    return run.run_id, run.name


def _alerts(moment: ScrapeMoment) -> Iterator[Metric]:
    counted: dict[tuple[str, str, str, str], int] = {}
    for alert in moment.alerts:
        key = (alert.rule, alert.severity, alert.subject_kind, alert.subject_name)
        counted[key] = counted.get(key, 0) + 1
    yield from _gauge(
        "alert_active", "Alerts of gputui itself that last now.", ("rule", "severity", "subject_kind", "subject"),
        list(counted.items()),
    )  # fmt: skip
