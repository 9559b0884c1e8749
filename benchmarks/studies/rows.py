"""The rows of the table: what was measured, and its goal."""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.studies.parts import SAMPLERS

FIGURES: tuple[Figure, ...] = (
    Figure(
        "overhead", "16 trials on 4 GPUs, wall above trial seconds / slots", "%", ("overhead_percent",), 5.0, "at most"
    ),
    Figure("overhead", "the same, for each round of 4 trials", "s", ("seconds_per_round",)),
    Figure("overhead", "the study's process, memory (RSS)", "MB", ("rss_bytes",), 60e6, "at most"),
    Figure("overhead", "the study's process, CPU of a core", "%", ("cpu_percent",)),
    Figure("overhead", "processes of a study that is over", "", ("processes_when_over",), 0.0, "at most"),
    *(
        figure
        for sampler in SAMPLERS
        for figure in (
            Figure(
                "sampling",
                f"{sampler}: ask, 10 reports and tell, a trial",
                "ms",
                (sampler, "median_seconds"),
                0.025,
                "at most",
            ),
            Figure("sampling", f"{sampler}: the same, processor time", "ms", (sampler, "median_cpu_seconds")),
            Figure("sampling", f"{sampler}: memory (RSS)", "MB", (sampler, "rss_bytes"), 60e6, "at most"),
        )
    ),
    Figure("pruning", "a value reported → pruning decided", "s", ("noticed_seconds",)),
    Figure("pruning", "pruning decided → stop asked for", "s", ("asked_seconds",), 1.0, "at most"),
    Figure("pruning", "pruning decided → the agent stops it", "s", ("carried_out_seconds",), 1.0, "at most"),
    Figure("pruning", "pruning decided → next trial's torchrun started", "s", ("next_started_seconds",)),
    Figure("pruning", "pruning decided → next trial's first step", "s", ("next_step_seconds",), 10.0, "at most"),
    Figure("pruning", "the same, the worst", "s", ("worst_next_step_seconds",), 10.0, "at most"),
    Figure("hyperband", "Hyperband, 32 trials: compute saved", "%", ("saved_percent",), 50.0, "at least"),
    Figure("hyperband", "its best loss above that without pruning", "", ("worse_by",), 0.03, "at most"),
    Figure("hyperband", "with real processes: compute saved", "%", ("live", "saved_percent"), 50.0, "at least"),
    Figure("hyperband", "its best loss above that without pruning", "", ("live", "worse_by"), 0.03, "at most"),
    Figure("population", "seeds in which it beats the best fixed of 8", "%", ("won_percent",), 90.0, "at least"),
    Figure(
        "population",
        "attempts whose learning rate is the decided one",
        "%",
        ("live", "lr_exact_percent"),
        100.0,
        "at least",
    ),
    Figure("population", "lineages that replay to the same loss", "%", ("live", "replayed_percent"), 100.0, "at least"),
    Figure("kills", "kills of agent, study process and trials", "", ("kills",)),
    Figure("kills", "verdicts, points or lines lost or doubled", "", ("lost",), 0.0, "at most"),
)
