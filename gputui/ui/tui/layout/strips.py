"""The one-line summaries: head, notices, all GPUs together, host."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, byte_rate, celsius, count_of, duration, gibibytes, percent
from gputui.machine.aggregate import GpuTotals, totals
from gputui.metrics.draw.parts import Line, Span
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView
from gputui.store.series import HostSample
from gputui.ui.tui.layout.columns import fit_parts, justify, paragraph
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.moments import NO_KEYS, KeyWords, past_notices, right_end
from gputui.ui.tui.layout.sparklines import merge_histories, spark
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import SIGNS, clock, dated_clock, is_hot, run_sign

DEMO_BACK_SECONDS = 20 * 3600.0
"""The demo names a moment by its time of day, so it must lie within the last day."""

SPARK_CELLS = 8
"""Cells of a short history in a line."""

AGENT_SILENT_SECONDS = 5.0
"""An agent is silent if its heartbeat is older than this plus its interval."""

SEVEREST_FIRST = ("error", "warning", "info")

_TIGHT = 110
_SPACIOUS = 140
"""Widths in cells: below the first a line names the least; from the second on it has short histories."""

_CONCERNING = ("queued", "starting", "running", "ending", "recovering", "stopping")

# Maker and brand, and what follows the memory: NVIDIA H100 80GB HBM3, NVIDIA GeForce RTX 4090.
_MODEL = re.compile(r"^(?:NVIDIA )?(?:GeForce |Tesla )?(?P<model>.*?\d+ ?GB|[^(]*)")


def head_line(
    snapshot: Snapshot, width: int, host_name: str, *, demo: bool, readonly: bool, keys: KeyWords = NO_KEYS
) -> Line:
    """The host and its GPUs, the number of runs in each active state, and the time."""
    # The past moment needs the room; the runs are listed below.
    is_tight = snapshot.past is not None and width < _TIGHT
    right = _right_of_head(snapshot, keys, is_tight=is_tight)
    agent = snapshot.agent
    is_simulated = demo or (agent is not None and agent.source == "simulated")
    parts: list[Span] = [(clean(host_name), "text"), *_models(snapshot.gpus)]
    if agent is not None and not is_simulated and not is_tight:
        versions = (("driver", agent.driver_version), ("CUDA", agent.cuda_version))
        parts += [(f"{name} {clean(version)}", "dim") for name, version in versions if version]
    if is_simulated:
        parts.append(("simulated", "warn"))
    if readonly:
        parts.append(("read only", "dim"))
    pieces: list[list[Span]] = [[(" gputui", "title")]]
    separator = ("  ", "dim")
    for part in parts:
        pieces.append([separator, part])
        separator = (" · ", "dim")
    room = width - sum(len(text) for text, _ in right)
    return justify(fit_parts(pieces, room), right, width)


def _models(gpus: Sequence[GpuView]) -> list[Span]:
    """``4 × H100 80GB``: how many GPUs of each model there are."""
    matches = [_MODEL.match(clean(gpu.name)) for gpu in gpus]
    models = Counter(match["model"].strip() for match in matches if match is not None)
    return [(f"{number} × {model}", "text") for model, number in models.items()]


def _right_of_head(snapshot: Snapshot, keys: KeyWords, *, is_tight: bool) -> list[Span]:
    """Whether the queue is paused, the number of runs in each active state, and the time."""
    spans: list[Span] = [("  ", "text")]
    if snapshot.machine.queue_pause is not None:
        spans.append(("queue paused", "warn"))
        if keys.get("queue_toggle") and not is_tight:
            spans += [(", ", "dim"), (keys["queue_toggle"], "key"), (" opens", "dim")]
        spans.append(("  ", "text"))
    counts = Counter(row.run.shown_state for row in snapshot.runs)
    for state in _CONCERNING:
        if counts[state] and not is_tight:
            spans.append((f"{counts[state]} {run_sign(state).word}  ", run_sign(state).style))
    return [*spans, *right_end(snapshot.at, snapshot.past, keys)]


def demo_line(snapshot: Snapshot, width: int) -> Line:
    """The first keys to press in the demo, with the moment just after the first failure of its last day."""
    failures = [
        event.at
        for event in snapshot.events
        if event.severity == "error" and event.run_id is not None and snapshot.at - event.at < DEMO_BACK_SECONDS
    ]
    parts: list[list[Span]] = [[(" demo:", "warn"), (" ↵ opens a run", "dim")]]
    if failures:
        parts.append([(f" · t {clock(min(failures) + 1.0)} shows a failure", "dim")])
    parts += [[(" · n launches", "dim")], [(" · q ends it, nothing is kept", "dim")]]
    return fit_parts(parts, width)


def notice_lines(snapshot: Snapshot, agent_notice: str | None, width: int) -> list[Line]:
    """Problems on the way from the driver to the screen, one sentence each.

    Args:
        agent_notice: a sentence about what is wrong with the agent; None if it runs.
    """
    past = snapshot.past
    agent = snapshot.agent
    notices = [text for text in (agent_notice, snapshot.problem, snapshot.unsent) if text]
    notices += past_notices(snapshot)
    is_explained = bool(agent_notice or snapshot.problem) or (past is not None and past.gap is not None)
    if past is None and snapshot.gpus and agent is not None and agent.gpu_problem:
        notices.append(agent.gpu_problem)
    elif not is_explained and (silence := driver_silence(snapshot)) is not None:
        notices.append(silence)
    return [line for text in notices for line in warning_lines(text, width)]


def warning_lines(text: str, width: int) -> list[Line]:
    """A marked sentence, in as many lines as it needs."""
    return paragraph((" ▲ ", "warn"), clean(text), "warn", width)


def driver_silence(snapshot: Snapshot) -> str | None:
    """A sentence if the newest samples are stale."""
    agent = snapshot.agent
    if agent is None:
        return None
    patience = AGENT_SILENT_SECONDS + agent.interval_seconds
    silent_for = snapshot.at - agent.heartbeat_at
    is_agent_silent = silent_for > patience
    if not snapshot.gpus and snapshot.past is None:
        if not is_agent_silent:
            return None
        shown_of = dated_clock(agent.heartbeat_at, snapshot.at)
        return f"no news from the agent for {duration(silent_for)}; what is shown is of {shown_of}"
    newest = _newest_stale_sample(snapshot.gpus)
    has_begun = snapshot.at - agent.started_at <= patience
    if newest is None or has_begun:
        return None
    subject = "no news from the agent" if is_agent_silent else "driver silent"
    last = dated_clock(newest, snapshot.at)
    return f"{subject} for {duration(snapshot.at - newest)}, last sample {last}; the values shown are of then"


def _newest_stale_sample(gpus: Sequence[GpuView]) -> float | None:
    """When the newest sample was taken, if all are stale; None if one is not, or none is known."""
    if any(gpu.state == "ok" for gpu in gpus):
        return None
    return max((gpu.at for gpu in gpus if gpu.state == "stale" and gpu.at is not None), default=None)


def gpu_figures(snapshot: Snapshot) -> list[list[Span]]:
    """All GPUs together: utilisation now and in the last minutes, memory, power, the hottest, and how many are free;
    the most important first."""
    total = gpu_totals(snapshot.gpus)
    utilizations = tuple(merge_histories([gpu.utilization_percent for gpu in snapshot.gpu_history.values()], fmean))
    base = "dim" if all(gpu.state == "stale" for gpu in snapshot.gpus) else "text"
    memory = f"{gibibytes(total.memory_used_bytes, 0)}/{gibibytes(total.memory_total_bytes, 0)} GiB"
    if any(gpu.facts.memory_is_unified for gpu in snapshot.gpus):
        memory += " unified"
    figures: list[list[Span]] = [
        [
            (f"util {percent(total.utilization_percent)}", base),
            (f" {spark(utilizations, SPARK_CELLS, 0.0, 100.0)}", "history"),
        ],
        [(memory, base)],
        [(_power_words(total), base)],
    ]
    hottest = next((gpu for gpu in snapshot.gpus if gpu.uuid == total.hottest_uuid), None)
    if hottest is not None:
        heat = f"hottest GPU {hottest.index} {celsius(total.hottest_celsius)}"
        if is_hot(hottest):
            figures.append([(f"▲{heat}", "warn")])
        else:
            figures.append([(heat, base)])
    figures.append(_free_spans(snapshot))
    if total.lost_count:
        figures.append([(f"{total.lost_count} lost", "bad")])
    if xid_count := sum(snapshot.machine.xids.values()):
        figures.append([(count_of(xid_count, "XID"), "warn")])
    if total.memory_reserved_bytes is not None:
        figures.append([(f"{gibibytes(total.memory_reserved_bytes)} GiB reserved by the driver", "dim")])
    return figures


def _power_words(total: GpuTotals) -> str:
    """``2.1/5.6 kW``."""
    power = UNKNOWN
    if total.power_watts is not None:
        power = f"{total.power_watts / 1000:.1f}"
    if total.power_limit_watts is not None:
        power += f"/{total.power_limit_watts / 1000:.1f}"
    return f"{power} kW"


def _free_spans(snapshot: Snapshot) -> list[Span]:
    """``3 free, 1 promised``."""
    machine = snapshot.machine
    free = [gpu.uuid for gpu in snapshot.gpus if is_free(gpu) and gpu.uuid not in machine.quarantined]
    if not free:
        return [("0 free", "dim")]
    spans: list[Span] = [(f"{len(free)} free", "good")]
    if promised_count := len(machine.promised.keys() & free):
        spans.append((f", {promised_count} promised", "dim"))
    return spans


def gpu_totals(gpus: Sequence[GpuView]) -> GpuTotals:
    """Totals over all GPUs."""
    return totals(gpus, {gpu.uuid: gpu.index for gpu in gpus})


def host_figures(snapshot: Snapshot, width: int) -> list[list[Span]]:
    """The host, the most important values first, for a line of ``width`` cells."""
    host = snapshot.host
    if host is None:
        return [[("no sample yet", "dim")]]
    memory = _share(host.memory_used_bytes, host.memory_total_bytes)
    disk = _share(host.disk_used_bytes, host.disk_total_bytes)
    shm = _share(host.shm_used_bytes, host.shm_total_bytes)
    used = gibibytes(host.memory_used_bytes, 0)
    total = gibibytes(host.memory_total_bytes, 0)
    past = snapshot.host_history
    cpu = ram = ""
    if past is not None and width >= _SPACIOUS:
        cpu = f" {spark(past.cpu_percent, SPARK_CELLS, 0.0, 100.0).strip()}".rstrip()
        ram = f" {spark(past.memory_used_bytes, SPARK_CELLS, 0.0, host.memory_total_bytes).strip()}".rstrip()
    figures: list[list[Span]] = [
        [(f"cpu {percent(host.cpu_percent)}", _load_style(host.cpu_percent, 95)), (cpu, "history")],
        [(f"ram {used}/{total} GiB", _load_style(memory, 92)), (ram, "history")],
        [(f"disk {percent(disk)}", _load_style(disk, 95))],
        [(f"shm {percent(shm)}", _load_style(shm, 90))],
    ]
    return [*figures, *([(figure, "text")] for figure in _traffic(host))]


def _traffic(host: HostSample) -> list[str]:
    """The rates of disk and network, the load, and swap if it is used."""
    rates = (
        host.disk_read_bytes_per_second,
        host.disk_write_bytes_per_second,
        host.network_received_bytes_per_second,
        host.network_sent_bytes_per_second,
    )
    read, write, received, sent = (byte_rate(rate).replace(" ", "") for rate in rates)
    # Each in the room of the longest rate, so that nothing moves.
    figures = [f"read {read:<8}", f"write {write:<8}", f"net {f'↓{received} ↑{sent}':<19}"]
    if host.load_1m is not None and host.cpu_count:
        figures.append(f"load {host.load_1m:.1f} on {host.cpu_count} cores")
    if host.swap_used_bytes:
        figures.append(f"swap {gibibytes(host.swap_used_bytes)} GiB")
    return figures


def _share(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole:
        return None
    return part / whole * 100


def _load_style(value: float | None, limit: float) -> str:
    if value is not None and value >= limit:
        return "warn"
    return "text"


# --- alerts


def _in_gibibytes(byte_count: float | None) -> float | None:
    if byte_count is None:
        return None
    return byte_count / 2**30


WATCHED: Mapping[str, tuple[str, Callable[[Any], float | None]]] = {
    "gpu_hot": ("{}", lambda gpu: gpu.temperature_celsius),
    "gpu_memory": ("{} memory", lambda gpu: _share(gpu.own_used_bytes, gpu.memory_total_bytes)),
    "gpu_parked": ("{} memory held", lambda gpu: _in_gibibytes(gpu.own_used_bytes)),
    "host_memory": ("Host memory", lambda host: _share(host.memory_used_bytes, host.memory_total_bytes)),
    "disk": ("State disk", lambda host: _share(host.disk_used_bytes, host.disk_total_bytes)),
    "shm": ("/dev/shm", lambda host: _share(host.shm_used_bytes, host.shm_total_bytes)),  # noqa: S108 - for people
}
"""By rule: what it watches of a GPU or of the host, and its value now in the unit of the rule. The other rules watch
means, or what happened once: a snapshot has no such value."""


def alert_words(alert: AlertView, snapshot: Snapshot) -> str:
    """The sentence of an alert with the value now; in the past tense once that is within the limit, or the alert is
    over. Without a value now, as it was raised."""
    # Imported on first use: most screens show no alerts.
    from gputui.recovery.watch.engine import in_unit, zone
    from gputui.recovery.watch.rules import RULES, Observation

    name, now = _watched(alert, snapshot)
    if name is None or alert.value is None or alert.threshold is None:
        return clean(alert.sentence)
    before = in_unit(alert.value, alert.unit)
    limit = in_unit(alert.threshold, alert.unit)
    if not alert.lasts:
        return clean(f"{name} was {before} (limit {limit})")
    if now is None:
        return clean(alert.sentence)
    limit_zone = zone(Observation(alert.rule, now, alert.threshold), RULES[alert.rule])
    if limit_zone == "met":
        return clean(alert.sentence.replace(before, in_unit(now, alert.unit), 1))
    sentence = f"{name} was {before}, now {in_unit(now, alert.unit)} (limit {limit})"
    if limit_zone == "well":
        sentence += ", clearing"
    return clean(sentence)


def _watched(alert: AlertView, snapshot: Snapshot) -> tuple[str | None, float | None]:
    """What an alert watches and its value now; None for what a snapshot does not have."""
    if alert.rule not in WATCHED:
        return None, None
    name, value_of = WATCHED[alert.rule]
    name = name.format(alert.subject_name)
    subject: GpuView | HostSample | None = snapshot.host
    if alert.subject_kind == "gpu":
        subject = next((gpu for gpu in snapshot.gpus if gpu.uuid == alert.subject_id), None)
    if subject is None:
        return name, None
    return name, value_of(subject)


def alert_strip(snapshot: Snapshot, width: int, keys: KeyWords = NO_KEYS) -> Line | None:
    """The number of alerts of each severity, and the worst in words; None if there are none."""
    now = snapshot.at
    news = [alert for alert in snapshot.alerts if alert.is_news(now)]
    if not news:
        return None
    parts: list[Span] = [(" ", "text")]
    for severity in SEVEREST_FIRST:
        count = sum(alert.severity == severity for alert in news)
        if count:
            glyph, style = SIGNS[severity]
            noun = "note" if severity == "info" else severity
            parts.append((f"{glyph} {count_of(count, noun)}  ", style))
    worst = news[0]
    _, worst_style = SIGNS[worst.severity]
    _, value_now = _watched(worst, snapshot)
    sentence = alert_words(worst, snapshot)
    if value_now is None:
        sentence += f", since {dated_clock(worst.raised_at, now)}"
    quiet = len(snapshot.alerts) - len(news)
    end: list[Span] = []
    if quiet and width >= _TIGHT:
        end.append((f"{quiet} acked or silenced  ", "dim"))
    if keys.get("alerts"):
        end += [(f" {keys['alerts']}", "key"), (" alerts ", "dim")]
    return justify([*parts, (sentence, worst_style)], end, width)
