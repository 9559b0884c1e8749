"""The one-line summaries: head line, studies, notices, all GPUs together, host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, byte_rate, celsius, count, count_of, duration, gibibytes, metric_value, percent
from gputui.machine.aggregate import GpuTotals, totals
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.glyphs import sparkline
from gputui.metrics.draw.parts import Curve, Line, XAxis, YAxis
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import GpuView
from gputui.store.series import HostSample
from gputui.ui.tui.data.snapshot import HISTORY_SECONDS, Snapshot, StudyRow
from gputui.ui.tui.layout.columns import between, fit_line, fitting, wrap
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.moments import past_notices, right_end
from gputui.ui.tui.layout.sparklines import History, mean_history, peak_history, shares, spark, sum_history, time_bins
from gputui.ui.tui.layout.words import STUDY_SIGNS, clock, dated_clock, is_hot, run_sign

DEMO_BACK_SECONDS = 20 * 3600.0
"""The demo names a moment by its time of day, so it must lie within the last day."""

SPARK_BUCKETS = 9
"""Cells of the short utilisation history in the strip."""

POWER_IN_KILOWATTS = 1000.0
"""Least highest value, in watts, of a chart of power in kW."""

AGENT_SILENT_SECONDS = 5.0
"""An agent is silent if its heartbeat is older than this plus its interval."""

_TIGHT = 110
_CONCERNING = ("queued", "starting", "running", "recovering", "stopping")


def head_line(
    snapshot: Snapshot, width: int, host_name: str, *, demo: bool, readonly: bool, has_keys: bool = True
) -> Line:
    """The host, the number of runs in each active state, and the time."""
    left: list[Span] = [(" gputui", "title"), (f" · {clean(host_name)}", "text")]
    agent = snapshot.agent
    # The past moment needs the room; the runs are listed below.
    is_tight = snapshot.past is not None and width < _TIGHT
    if agent is not None and agent.driver_version and agent.source != "simulated" and not is_tight:
        left.append((f" · driver {clean(agent.driver_version)}", "dim"))
    if demo or (agent is not None and agent.source == "simulated"):
        left.append((" · simulated GPUs", "warn"))
    if readonly:
        left.append((" · read only", "dim"))
    counts: dict[str, int] = {}
    for row in snapshot.runs:
        counts[row.run.state] = counts.get(row.run.state, 0) + 1
    right: list[Span] = [
        (f"{counts[state]} {run_sign(state).word}  ", run_sign(state).style)
        for state in _CONCERNING
        if counts.get(state) and not is_tight
    ]
    return between(left, [*right, *right_end(snapshot.at, snapshot.past, has_keys=has_keys)], width)


def study_strip(rows: Sequence[StudyRow], width: int, *, has_keys: bool = True) -> list[Line]:
    """A line per active study."""
    lines = []
    for number, row in enumerate(rows):
        sign = STUDY_SIGNS[row.state]
        left: list[Span] = [(f" {sign.glyph} ", sign.style), ("study ", "dim"), (clean(row.name), "label")]
        left.append((f" {sign.word}", sign.style))
        wanted = "" if row.wanted is None else f" of {count(row.wanted)}"
        left.append((f" · {count(row.over)}{wanted} trials finished, {row.running} running", "text"))
        if row.best is not None:
            left += [(" · best ", "dim"), (metric_value(row.best), "accent"), (f" (trial {row.best_number})", "dim")]
        right: list[Span] = [("  S", "key"), (" studies ", "dim")] if has_keys and not number else []
        lines.append(between(left, right, width))
    return lines


def demo_line(snapshot: Snapshot, width: int) -> Line:
    """What to press first in the demo, with a moment at which the newest of its finished runs was training."""
    done = [run for row in snapshot.runs if (run := row.run).started_at is not None and run.ended_at is not None]
    newest = max(done, key=lambda run: run.ended_at or 0.0, default=None)
    back: list[Span] = []
    if newest is not None and newest.started_at is not None and newest.ended_at is not None:
        middle = (max(newest.started_at, newest.ended_at - DEMO_BACK_SECONDS) + newest.ended_at) / 2
        back = [(f" · t {clock(middle)[:5]} looks back", "dim")] if snapshot.at - middle < DEMO_BACK_SECONDS else []
    parts: list[list[Span]] = [
        [(" demo:", "warn"), (" ↵ opens a run", "dim")], back,
        [(" · n launches", "dim")], [(" · q ends it, nothing is kept", "dim")],
    ]  # fmt: skip
    return fitting([part for part in parts if part], width)


def notice_lines(snapshot: Snapshot, agent_notice: str | None, width: int) -> list[Line]:
    """Problems on the way from the driver to the screen, one sentence each."""
    notices: list[str] = []
    if agent_notice:
        notices.append(agent_notice)
    if snapshot.trouble:
        notices.append(snapshot.trouble)
    notices += past_notices(snapshot)
    silent, agent = driver_silence(snapshot), snapshot.agent
    if agent is not None and agent.gpu_problem and snapshot.gpus and snapshot.past is None:
        notices.append(agent.gpu_problem)
        silent = None
    is_explained = agent_notice or snapshot.trouble or (snapshot.past is not None and snapshot.past.gap is not None)
    if silent and not is_explained:
        notices.append(silent)
    return [line for text in notices for line in warning_lines(text, width)]


def warning_lines(text: str, width: int) -> list[Line]:
    """A marked sentence, in as many lines as it needs."""
    return [
        fit_line([(" ▲ " if not number else "   ", "warn"), (part, "warn")], width)
        for number, part in enumerate(wrap(clean(text), width - 4))
    ]


def driver_silence(snapshot: Snapshot) -> str | None:
    """A sentence if the newest samples are stale."""
    agent = snapshot.agent
    if agent is not None and not snapshot.gpus and snapshot.past is None:
        silent_for = snapshot.at - agent.heartbeat_at
        if silent_for <= AGENT_SILENT_SECONDS + agent.interval_seconds:
            return None
        shown_of = dated_clock(agent.heartbeat_at, snapshot.at)
        return f"no news from the agent for {duration(silent_for)}; what is shown is of {shown_of}"
    seen = [gpu for gpu in snapshot.gpus if gpu.state in ("ok", "stale")]
    if agent is None or not seen or any(gpu.state == "ok" for gpu in seen):
        return None
    newest = max((gpu.at for gpu in seen if gpu.at is not None), default=None)
    if newest is None:
        return None
    last = dated_clock(newest, snapshot.at)
    words = f"{duration(snapshot.at - newest)}, last sample {last}; the values shown are of then"
    if snapshot.at - agent.heartbeat_at > AGENT_SILENT_SECONDS + agent.interval_seconds:
        return f"no news from the agent for {words}"
    return f"driver silent for {words}"


def aggregate_line(snapshot: Snapshot, width: int) -> Line:
    """All GPUs in one line: utilisation now and in the last minutes, memory, power, the hottest GPU."""
    if not snapshot.gpus:
        return fit_line([], width)
    total = gpu_totals(snapshot.gpus)
    history = mean_history([each.utilization_percent for each in snapshot.gpu_history.values()])
    base = "dim" if all(gpu.state == "stale" for gpu in snapshot.gpus) else "text"
    memory = f"{gibibytes(total.memory_used_bytes, 0)}/{gibibytes(total.memory_total_bytes, 0)} GiB"
    unified = " unified" if any(gpu.facts.get("memory_is_unified") for gpu in snapshot.gpus) else ""
    parts: list[list[Span]] = [
        [(f" {count_of(total.gpu_count, 'GPU')}", "label")],
        [(f"  util {percent(total.utilization_percent)} ", base)],
        [(sparkline(history, SPARK_BUCKETS, 0.0, 100.0), "bar")],
        [(f"  mem {memory}{unified}", base)],
        [(f"  {_power(total)}", base)],
    ]
    hottest = next((gpu for gpu in snapshot.gpus if gpu.uuid == total.hottest_uuid), None)
    if hottest is not None:
        hot = is_hot(hottest)
        mark = "▲" if hot else ""
        reading = f"{mark}GPU {hottest.index} {celsius(total.hottest_celsius)}"
        parts.append([("  hottest ", base), (reading, "warn" if hot else base)])
    if total.lost_count:
        parts.insert(1, [(f" ✗{total.lost_count}", "bad")])
    machine = snapshot.machine
    xids = sum(machine.xids.values())
    if xids:
        parts.append([(f"  XID {xids}", "warn")])
    out = machine.quarantined
    free = sum(is_free(gpu) and gpu.uuid not in out for gpu in snapshot.gpus)
    parts.append([(f"  {free} free", "dim")])
    if total.memory_reserved_bytes is not None:
        parts.append([(f"  {gibibytes(total.memory_reserved_bytes)} GiB reserved by the driver", "dim")])
    return fitting(parts, width)


def gpu_totals(gpus: Sequence[GpuView]) -> GpuTotals:
    """Totals over all GPUs."""
    return totals(gpus, {gpu.uuid: gpu.index for gpu in gpus})


def aggregate_heads(snapshot: Snapshot, width: int) -> Line:
    """The headings of `aggregate_charts`, with the current values of `aggregate_line`."""
    total = gpu_totals(snapshot.gpus)
    full = _share(total.memory_used_bytes, total.memory_total_bytes)
    power = total.power_watts
    size, unit = power_unit(_powers(snapshot))
    heads: list[list[Span]] = [
        [
            (f"● utilisation {percent(total.utilization_percent)}", "series.0"),
            (f"  ■ memory {percent(full)}", "series.1"),
        ],
        [(f"power {UNKNOWN if power is None else f'{power / size:.{2 if size > 1 else 0}f}'} {unit}", "series.2")],
        [(f"hottest {celsius(total.hottest_celsius)}", "series.3")],
    ]
    across = _trends_across(width)
    each = (width - 1) // across
    return fit_line([span for head in heads[:across] for span in [(" ", "text"), *fit_line(head, each - 1)]], width)


def aggregate_charts(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """Charts of all GPUs over the last minutes, side by side: utilisation and memory, power, temperature. Each ends
    with the current value."""
    histories = list(snapshot.gpu_history.values())
    if not histories or width < 30 or height < 3:
        return [fit_line([(f"  {no_samples(snapshot)}", "dim")], width)][:height]
    total = gpu_totals(snapshot.gpus)
    full = shares(sum_history([each.memory_used_bytes for each in histories]), total.memory_total_bytes)
    busy = mean_history([each.utilization_percent for each in histories])
    warm = peak_history([each.temperature_celsius for each in histories])
    power = sum_history([each.power_watts for each in histories])
    size, _ = power_unit(_powers(snapshot))
    memory = _share(total.memory_used_bytes, total.memory_total_bytes)

    def curve(values: History, now: float | None, number: int, *, is_filled: bool, shape: str = "") -> Curve:
        bins = time_bins(values, HISTORY_SECONDS)
        if now is not None:
            bins.append(Bin(0.0, 0.0, now, now, now, now, 1))
        return Curve(bins, f"series.{number}", area=f"area.{number}" if is_filled else "", shape=shape)

    watts = [None if value is None else value / size for value in power]
    drawn = None if total.power_watts is None else total.power_watts / size
    panes = [
        ([curve(busy, total.utilization_percent, 0, is_filled=True, shape="●"),
          curve(full, memory, 1, is_filled=False, shape="■")], YAxis(low=0.0, high=100.0)),
        ([curve(watts, drawn, 2, is_filled=True)], YAxis(low=0.0)),
        ([curve(warm, total.hottest_celsius, 3, is_filled=False)], YAxis(low=20.0)),
    ]  # fmt: skip
    across = _trends_across(width)
    each = (width - 1) // across - 1
    axis = XAxis("min", -HISTORY_SECONDS / 60, 0.0, newest=0.0)
    columns = [
        chart(curves, width=each, height=height, x_axis=axis, y_axis=y_axis) for curves, y_axis in panes[:across]
    ]
    return [
        fit_line([span for part in parts for span in [(" ", "text"), *part]], width)
        for parts in zip(*columns, strict=True)
    ]


def no_samples(snapshot: Snapshot) -> str:
    """Why there is no chart of the GPUs yet."""
    agent = snapshot.agent
    if agent is not None and snapshot.past is None and snapshot.at - agent.started_at < HISTORY_SECONDS:
        return "no samples yet"
    return "no samples in the last ten minutes"


def _trends_across(width: int) -> int:
    return 3 if width >= _TIGHT else 2


def _powers(snapshot: Snapshot) -> list[float | None]:
    """All GPUs' power over the last minutes and now, in watts."""
    history = sum_history([each.power_watts for each in snapshot.gpu_history.values()])
    return [*history, gpu_totals(snapshot.gpus).power_watts]


def power_unit(values_watts: Iterable[float | None]) -> tuple[float, str]:
    """The unit of a chart of power, in watts and in words: kW if the highest value is 1000 W or more."""
    highest = max((value for value in values_watts if value is not None), default=0.0)
    return (1000.0, "kW") if highest >= POWER_IN_KILOWATTS else (1.0, "W")


HOST_SPARK = 8
"""Cells of the last ten minutes of the host's CPU and RAM, where there is room."""


def host_line(snapshot: Snapshot, width: int) -> Line:
    """The host in one line, the most important values first."""
    host = snapshot.host
    if host is None:
        return fit_line([(" host", "label"), ("  no sample yet", "dim")], width)
    memory = _share(host.memory_used_bytes, host.memory_total_bytes)
    disk = _share(host.disk_used_bytes, host.disk_total_bytes)
    shm = _share(host.shm_used_bytes, host.shm_total_bytes)
    used, total = gibibytes(host.memory_used_bytes, 0), gibibytes(host.memory_total_bytes, 0)
    past = snapshot.host_history
    cpu = ram = ""
    if past is not None and width >= _TIGHT:
        cpu = f" {spark(past.cpu_percent, HOST_SPARK, 0.0, 100.0).strip()}".rstrip()
        ram = f" {spark(past.memory_used_bytes, HOST_SPARK, 0.0, host.memory_total_bytes).strip()}".rstrip()
    parts: list[Span] = [
        (" host", "label"),
        (f"  cpu {percent(host.cpu_percent)}{cpu}", _load_style(host.cpu_percent, 95)),
        (f"  ram {used}/{total} GiB{ram}", _load_style(memory, 92)),
        (f"  disk {percent(disk)} full", _load_style(disk, 95)),
        (f"  shm {percent(shm)}", _load_style(shm, 90)),
        *((words, "text") for words in _traffic(host)),
    ]
    return fitting([[part] for part in parts], width)


def _traffic(host: HostSample) -> list[str]:
    received = byte_rate(host.network_received_bytes_per_second)
    words = [
        f"  read {byte_rate(host.disk_read_bytes_per_second)}",
        f"  write {byte_rate(host.disk_write_bytes_per_second)}",
        f"  net ↓{received} ↑{byte_rate(host.network_sent_bytes_per_second)}",
    ]
    if host.load_1m is not None and host.cpu_count:
        words.append(f"  load {host.load_1m:.1f} on {host.cpu_count} cores")
    if host.swap_used_bytes:
        words.append(f"  swap {gibibytes(host.swap_used_bytes)} GiB")
    return words


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole * 100


def _load_style(value: float | None, limit: float) -> str:
    return "warn" if value is not None and value >= limit else "text"


def _power(total: GpuTotals) -> str:
    if total.power_watts is None:
        return f"power {UNKNOWN}"
    limit = "" if total.power_limit_watts is None else f"/{total.power_limit_watts / 1000:.1f}"
    return f"{total.power_watts / 1000:.1f}{limit} kW"
