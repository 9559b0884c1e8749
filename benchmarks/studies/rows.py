"""The rows of the table: what was measured, and its goal."""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.studies.parts import SAMPLERS

FIGURES: tuple[Figure, ...] = (
    Figure(
        "overhead",
        "16 trials on 4 GPUs, wall above trial seconds / slots",
        "%",
        path=("overhead_percent",),
        aim=5.0,
        aim_is="at most",
    ),
    Figure("overhead", "the same, for each round of 4 trials", "s", ("seconds_per_round",)),
    Figure("overhead", "the study's process, memory (RSS)", "MB", path=("rss_bytes",), aim=60e6, aim_is="at most"),
    Figure("overhead", "the study's process, CPU of a core", "%", ("cpu_percent",)),
    Figure(
        "overhead", "processes of a study that is over", "", path=("processes_when_over",), aim=0.0, aim_is="at most"
    ),
    *(
        figure
        for sampler in SAMPLERS
        for figure in (
            Figure(
                "sampling",
                f"{sampler}: ask, 10 reports and tell, a trial",
                "ms",
                path=(sampler, "median_seconds"),
                aim=0.025,
                aim_is="at most",
            ),
            Figure("sampling", f"{sampler}: the same, processor time", "ms", (sampler, "median_cpu_seconds")),
            Figure(
                "sampling", f"{sampler}: memory (RSS)", "MB", path=(sampler, "rss_bytes"), aim=60e6, aim_is="at most"
            ),
        )
    ),
    Figure("pruning", "a value reported → pruning decided", "s", ("noticed_seconds",)),
    Figure("pruning", "pruning decided → stop asked for", "s", path=("asked_seconds",), aim=1.0, aim_is="at most"),
    Figure(
        "pruning", "pruning decided → the agent stops it", "s", path=("carried_out_seconds",), aim=1.0, aim_is="at most"
    ),
    Figure("pruning", "pruning decided → next trial's torchrun started", "s", ("next_started_seconds",)),
    Figure(
        "pruning",
        "pruning decided → next trial's first step",
        "s",
        path=("next_step_seconds",),
        aim=10.0,
        aim_is="at most",
    ),
    Figure("pruning", "the same, the worst", "s", path=("worst_next_step_seconds",), aim=10.0, aim_is="at most"),
    Figure(
        "hyperband", "Hyperband, 32 trials: compute saved", "%", path=("saved_percent",), aim=50.0, aim_is="at least"
    ),
    Figure("hyperband", "its best loss above that without pruning", "", path=("worse_by",), aim=0.03, aim_is="at most"),
    Figure(
        "hyperband",
        "with real processes: compute saved",
        "%",
        path=("live", "saved_percent"),
        aim=50.0,
        aim_is="at least",
    ),
    Figure(
        "hyperband",
        "its best loss above that without pruning",
        "",
        path=("live", "worse_by"),
        aim=0.03,
        aim_is="at most",
    ),
    Figure(
        "population",
        "seeds in which it beats the best fixed of 8",
        "%",
        path=("won_percent",),
        aim=90.0,
        aim_is="at least",
    ),
    Figure(
        "population",
        "attempts whose learning rate is the decided one",
        "%",
        path=("live", "lr_exact_percent"),
        aim=100.0,
        aim_is="at least",
    ),
    Figure(
        "population",
        "lineages that replay to the same loss",
        "%",
        path=("live", "replayed_percent"),
        aim=100.0,
        aim_is="at least",
    ),
    Figure("kills", "kills of agent, study process and trials", "", ("kills",)),
    Figure("kills", "verdicts, points or lines lost or doubled", "", path=("lost",), aim=0.0, aim_is="at most"),
)
