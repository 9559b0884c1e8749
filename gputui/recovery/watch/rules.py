"""The rules as data: what is watched, its limits and durations, what it leads to, and the remedy.

`RULES` lead to alerts, which are raised, told and cleared. `FINDINGS` are reported once
an attempt (*show*), or end it if its policy says so (*end*). Detectors report both as an
`Observation`. A new rule is a row here, an observation in `machine` or `metric_history`, a case in
``tests/recovery/watch`` and ``python -m docs.tables``.

Limits of hardware values follow NVIDIA's documentation. The others come from experience with
training runs, and are meant to be changed in ``alerts.yaml`` or in a profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.store.alerts import AlertView

SubjectKind = Literal["gpu", "host", "run"]
Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
"""In ascending order."""


class Observation(Struct, frozen=True):
    """A detector's finding about a GPU, the host or a run.

    Attributes:
        kind: a rule's id, or a finding.
        value: in the unit of the rule. None is unknown, which neither raises nor clears an alert.
        limit: in the same unit.
        text: goes into the sentence.
        applies: False if the rule is irrelevant now (no run uses the GPU), which clears an alert.
        since: the step at which it began.
        rank: the rank that it concerns.
        hold_seconds: how long it must be seen before it counts.
    """

    kind: str
    value: float | None = None
    limit: float = 0.0
    text: str = ""
    applies: bool = True
    since: int | None = None
    rank: int | None = None
    hold_seconds: float = 0.0


class Threshold(Struct, frozen=True):
    """A number of a rule.

    Attributes:
        unit: as it is printed.
        help: for the documentation.
        least: the smallest valid value.
        most: the greatest valid value.
    """

    name: str
    default: float
    unit: str
    help: str
    least: float = 0.0
    most: float = 1e12


class Rule(Struct, frozen=True):
    """A condition of a GPU, the host or a run that raises an alert, as shipped or with `overrides`.

    Attributes:
        id: its name in files and rows.
        subject: what it is about: a GPU, the host or a run.
        title: for headings.
        sentence: with ``{subject}``, ``{value}``, ``{limit}`` and ``{text}``.
        remedy: what to do.
        unit: of the value and of ``hysteresis``.
        below: the alert is raised below the limit, not above it.
        for_seconds: time beyond the limit until the alert is raised.
        hysteresis: distance from the limit at which the value counts as back.
        clear_seconds: time back until the alert is cleared.
        cooldown_seconds: time after that until it can be raised again.
        of_run: concerns a run, even if its subject is a GPU; a profile with ``alerts: off``
            disables it.
        is_reported: an event already reports it, so no event is added.
        limits: the effective thresholds by name.
        sources: who set a value, by its name; standard values are missing.
    """

    id: str
    subject: SubjectKind
    title: str
    severity: Severity
    sentence: str
    remedy: str
    thresholds: tuple[Threshold, ...] = ()
    unit: str = ""
    below: bool = False
    for_seconds: float = 0.0
    hysteresis: float = 0.0
    clear_seconds: float = 60.0
    cooldown_seconds: float = 600.0
    of_run: bool = False
    is_reported: bool = False
    enabled: bool = True
    limits: Mapping[str, float] = msgspec.field(default_factory=dict)
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)


RuleSet = Mapping[str, Rule]
"""Every rule by its id."""


def _percent(default: float, help_text: str, name: str = "above_percent") -> tuple[Threshold, ...]:
    return (Threshold(name, default, "%", help=help_text, least=0.0, most=1e6),)


_RULES: tuple[Rule, ...] = (
    # --- GPUs
    Rule("gpu_lost", "gpu", "GPU lost", severity="error",
         sentence="{subject} is lost: the driver does not answer for it",
         remedy="see gputui gpus and the kernel log; it usually needs a reset or a reboot",
         clear_seconds=30.0, cooldown_seconds=60.0, is_reported=True),
    Rule("xid_hardware", "gpu", "XID of the hardware", severity="error",
         sentence="{subject} reported {text}",
         remedy="move the run to other GPUs; drain, reset and test this one",
         clear_seconds=3600.0, cooldown_seconds=0.0, is_reported=True),
    Rule("xid", "gpu", "XID", severity="warning",
         sentence="{subject} reported {text}",
         remedy="usually a bug in the program: look at the log of the rank on this GPU",
         clear_seconds=900.0, cooldown_seconds=0.0, is_reported=True),
    Rule("ecc", "gpu", "uncorrected memory errors", severity="error",
         sentence="{subject} counted {value} new uncorrected memory errors",
         remedy="restart what ran there; if it repeats, take the GPU out and have it tested",
         clear_seconds=3600.0, cooldown_seconds=0.0),
    Rule("row_remap", "gpu", "bad memory row", severity="warning",
         sentence="{subject}: {text}",
         remedy="reset the GPU when it is free (nvidia-smi --gpu-reset); if remapping failed, replace it",
         clear_seconds=0.0, cooldown_seconds=0.0),
    Rule("gpu_memory", "gpu", "GPU memory nearly full", severity="warning",
         sentence="{subject} memory {value} used (limit {limit})",
         remedy="use a smaller batch or gradient checkpointing",
         thresholds=_percent(95.0, "share of the memory in use"),
         unit="%", for_seconds=300.0, hysteresis=2.0),
    Rule("gpu_hot", "gpu", "GPU hot", severity="warning",
         sentence="{subject} at {value} (limit {limit}){text}",
         remedy="check fans, dust and the room's air; a lower power cap cools it at once",
         thresholds=(
             Threshold("above_celsius", 85.0, "°C", help="absolute limit", least=20.0, most=150.0),
             Threshold("margin_celsius", 5.0, "°C", help="or this close to the driver's slowdown limit",
                       least=0.0, most=60.0),
         ),
         unit="°C", for_seconds=30.0, hysteresis=3.0),
    Rule("gpu_throttled", "gpu", "GPU throttled", severity="warning",
         sentence="{subject} was throttled for {value} of the last minute{text}",
         remedy="for heat check cooling, for a power brake the power supply; a power cap alone raises no alert",
         thresholds=_percent(20.0, "share of the last minute with a harmful reason"),
         unit="%", for_seconds=10.0, hysteresis=10.0),
    Rule("gpu_underused", "gpu", "GPU underused", severity="warning",
         sentence="{subject} is used {value} by {text}, less than {limit}",
         remedy="look at the run's data wait and communication: the GPU waits for something",
         thresholds=_percent(50.0, "mean utilisation over a minute while a run trains on it", "below_percent"),
         unit="%", below=True, for_seconds=300.0, hysteresis=10.0, of_run=True),
    Rule("gpu_parked", "gpu", "GPU memory held, nothing computed", severity="warning",
         sentence="{subject} has {value} held{text} and computes nothing",
         remedy="end or resume the process that holds it; gputui gpus names it",
         thresholds=(Threshold("above_gib", 1.0, "GiB", "memory held at 0 % utilisation"),),
         unit="GiB", for_seconds=1800.0, clear_seconds=30.0, cooldown_seconds=1800.0),
    Rule("power_trend", "gpu", "power changed", severity="info",
         sentence="{subject}: power {text}",
         remedy="less power for the same work means waiting or throttling: compare step time and clocks",
         thresholds=_percent(25.0, "change of a five-minute mean against the hour before", "change_percent"),
         unit="%", for_seconds=120.0, hysteresis=10.0, cooldown_seconds=3600.0, of_run=True),
    # --- the host
    Rule("host_memory", "host", "host memory nearly full", severity="error",
         sentence="host memory {value} used (limit {limit})",
         remedy="use fewer data loader workers or a smaller cache, or end processes, before the kernel does",
         thresholds=_percent(92.0, "share of the memory in use, page cache not counted"),
         unit="%", for_seconds=60.0, hysteresis=4.0),
    Rule("host_memory_growth", "host", "host memory grows", severity="warning",
         sentence="the host's memory fills by {value}{text}",
         remedy="look for lists that grow in a data set or a training loop; restart the run before memory is full",
         thresholds=(
             Threshold("above_gb_per_hour", 2.0, "GB/h", "growth over the last half hour, in each of its quarters"),
         ),
         unit="GB/h", for_seconds=120.0, hysteresis=1.0, clear_seconds=300.0, cooldown_seconds=3600.0),
    Rule("disk", "host", "disk nearly full", severity="error",
         sentence="state disk {value} full (limit {limit})",
         remedy="remove finished runs (gputui rm) or old checkpoints",
         thresholds=_percent(95.0, "share of the file system in use"),
         unit="%", for_seconds=60.0, hysteresis=1.0, cooldown_seconds=3600.0),
    Rule("shm", "host", "shared memory nearly full", severity="warning",
         sentence="/dev/shm {value} full (limit {limit})",  # noqa: S108 - a name for people
         remedy="use fewer data loader workers, or a larger /dev/shm (--shm-size in containers)",
         thresholds=_percent(90.0, "share of /dev/shm in use"),
         unit="%", for_seconds=30.0, hysteresis=5.0),
    # --- runs
    Rule("nccl_errors", "run", "NCCL errors", severity="error",
         sentence="{subject}: {text}",
         remedy="gputui explain names the rank; NCCL_DEBUG=INFO under env logs more",
         clear_seconds=900.0, cooldown_seconds=0.0, of_run=True),
    Rule("no_improvement", "run", "no improvement", severity="warning",
         sentence="{subject}: {text}",
         remedy="stop it, lower the learning rate, or accept that it has converged",
         thresholds=(
             Threshold("steps", 1000.0, "steps", "without a better loss (means over half as many steps)", 1.0),
             Threshold("epochs", 10.0, "epochs", "without a better val/loss (or loss, if there is none)", 0.1),
             Threshold("minutes", 10.0, "min", "and for at least this long", 0.0),
         ),
         clear_seconds=0.0, cooldown_seconds=1800.0, of_run=True),
    Rule("gradient_norm", "run", "large gradients", severity="warning",
         sentence="{subject}: gradient norm {value} (limit {limit})",
         remedy="clip gradients, warm up longer, or lower the learning rate",
         thresholds=(Threshold("above", 10.0, "", "norm of the gradients"),),
         for_seconds=30.0, hysteresis=1.0, of_run=True),
    Rule("slow_steps", "run", "slow steps", severity="warning",
         sentence="{subject}: step time {value} (limit {limit}){text}",
         remedy="look at the ranks, at data wait and at the GPUs' clocks",
         thresholds=(
             Threshold("above_milliseconds", 200.0, "ms", "a step takes longer than this"),
             Threshold("times_median", 2.0, "×", help="and this many times the run's own median",
                       least=0.0, most=1000.0),
         ),
         unit="ms", for_seconds=60.0, hysteresis=10.0, of_run=True),
    Rule("data_wait", "run", "waits for data", severity="warning",
         sentence="{subject}: data wait {value} a step (limit {limit}){text}",
         remedy="use more data loader workers, a faster disk, or a cache",
         thresholds=(
             Threshold("above_milliseconds", 50.0, "ms", "a step waits longer than this for data"),
             Threshold("above_percent", 10.0, "%", help="and this share of the step", least=0.0, most=100.0),
         ),
         unit="ms", for_seconds=60.0, hysteresis=5.0, of_run=True),
    Rule("cache_misses", "run", "cache misses", severity="info",
         sentence="{subject}: cache hits {value} (limit {limit})",
         remedy="enlarge the cache or turn it off: it costs memory and helps little",
         thresholds=_percent(80.0, "share found in the cache, after the first epoch", "below_percent"),
         unit="%", below=True, for_seconds=120.0, hysteresis=5.0, of_run=True),
    Rule("skipped_samples", "run", "samples skipped", severity="warning",
         sentence="{subject}: {value} of the samples unreadable (limit {limit})",
         remedy="see the run's log for their names; check the data set",
         thresholds=_percent(5.0, "share of the samples, of at least 100"),
         unit="%", for_seconds=10.0, hysteresis=1.0, of_run=True),
    Rule("lr_off_schedule", "run", "learning rate off its schedule", severity="warning",
         sentence="{subject}: the learning rate {text}",
         remedy="check the scheduler, above all after a resume: it may have restarted",
         thresholds=_percent(1.0, "difference from the schedule"),
         unit="%", for_seconds=30.0, of_run=True),
)  # fmt: skip

RULES: RuleSet = {
    rule.id: replace(rule, limits={threshold.name: threshold.default for threshold in rule.thresholds})
    for rule in _RULES
}
"""Every rule as shipped, by its id, in the order in which they are shown."""

RUN_RULE_IDS: tuple[str, ...] = tuple(rule.id for rule in _RULES if rule.of_run)
"""The rules about a run, which a profile may change or switch off."""


class FindingRule(NamedTuple):
    """A finding in a live attempt.

    ``head`` begins its message; ``ends_on`` is the word in a policy by which it ends the attempt, None if it is only
    shown.
    """

    head: str
    ends_on: str | None = None


FINDINGS: Mapping[str, FindingRule] = {
    "hang": FindingRule("no progress", "hang"),
    "rank_left_early": FindingRule("no progress", "hang"),
    "slow": FindingRule("slow"),
    "paused": FindingRule("paused"),
    "nan_loss": FindingRule("the loss is not a number", "nan_loss"),
    "loss_spike": FindingRule("the loss jumped", "loss_spike"),
    "gradient_spike": FindingRule("gradients grew"),
    "straggler": FindingRule("slow rank"),
    "memory_leak": FindingRule("host memory grows", "memory_leak"),
    "no_metrics": FindingRule("no metrics"),
    "not_resumed": FindingRule("another checkpoint was loaded"),
    "no_first_rank": FindingRule("metrics are not watched"),
}


def titles_by_subject(alerts: Iterable[AlertView]) -> dict[str, str]:
    """The title of an alert of each subject that has one."""
    return {alert.subject_id: RULES[alert.rule].title for alert in alerts if alert.rule in RULES}
