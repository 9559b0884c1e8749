"""Phases: each as complete settings, numbers as shares, and what cannot change in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.texts import mentions
from trainer.config import Settings, phase_at, schema, unfold
from trainer.errors import SettingsError

A = {"name": "a", "steps": 5}
RUN_WIDE = ("task", "model", "width", "output_dir", "seed", "device", "timeout", "phases", "resume", "data")

# Settings that a phase may change.
SETTINGS_OF_PHASES = """
    steps task_options cache_bytes dropout temperature hard_negatives mask_probability label_smoothing augment
    num_workers prefetch pin_memory max_broken_samples parallel tensor_parallel shard_ranks ranks average_every
    average_from check_gradients bucket_cap_mb static_graph gradient_as_bucket_view find_unused_parameters
    broadcast_buffers sync_batchnorm compress_gradients reshard_after_forward cpu_offload precision tf32
    loss_scale loss_scale_growth loss_scale_backoff loss_scale_interval channels_last gradient_checkpointing
    loss_chunk memory_fraction compile compile_scope batch_size max_batch_size oom_retries grad_accum
    samples_per_step optimizer lr lr_shares schedule decay_share warmup_steps final_lr_ratio weight_decay beta1
    beta2 momentum grad_clip gc_every reset_optimizer ema checkpoint_every checkpoint_compression
    epoch_checkpoints async_checkpoints sharded_checkpoints log_every rank_metrics_every validate_every
    validate_samples answer_every answer_tokens histograms_every trace_every bottleneck_every
"""


def test_every_setting_is_marked_or_listed() -> None:
    """Of a new setting somebody must say whether a phase may change it: by the type `RunWide` or `Shape`, or above."""
    assert set(Settings.model_fields) - schema.RUN_WIDE == set(SETTINGS_OF_PHASES.split())


def test_a_phase_is_the_run_with_its_own_changes() -> None:
    cold = {"steps": 10, "lr": 0.5, "precision": "bf16", "ranks": 1}
    hot = {"steps": 20, "gradient_checkpointing": True, "batch_size": "auto"}
    run = Settings(phases=({"name": "cold", **cold}, {"name": "hot.2", **hot}), batch_size=32, lr=0.1)
    rest = run.model_dump() | {"phases": ()}
    first, second = (phase.model_dump() for phase in unfold(run))
    assert first == rest | cold | {"phase": "cold"}
    assert second == rest | hot | {"phase": "hot.2", "gradient_checkpointing": "full"}


def test_shares_follow_a_change_to_the_run() -> None:
    phases = (
        {"name": "a", "steps": "x0.25", "batch_size": "x0.5", "lr": "x2", "warmup_steps": "x0.1", "grad_accum": "x2."},
        {"name": "b", "steps": "x0.75", "batch_size": "x.01", "loss_scale": "x0.5"},
    )
    first, second = unfold(Settings(phases=phases, steps=10, batch_size=25, lr=0.1, warmup_steps=4, grad_accum=3))
    assert (first.steps, first.batch_size, first.lr, first.warmup_steps, first.grad_accum) == (2, 13, 0.2, 0, 6)
    assert (second.steps, second.batch_size, second.loss_scale) == (8, 1, 32768.0)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 2000))
def test_shares_of_steps_add_up_exactly(parts: list[int], steps: int) -> None:
    shares = [f"x{part / sum(parts):.9f}" for part in parts]
    run = Settings(steps=steps, phases=tuple({"name": f"p{n}", "steps": share} for n, share in enumerate(shares)))
    try:
        phases = unfold(run)
    except SettingsError as error:
        assert "too few steps" in str(error)
        assert steps * min(parts) / sum(parts) < 1.01
        return
    assert sum(phase.steps for phase in phases) == steps
    assert all(abs(phase.steps - steps * part / sum(parts)) <= 1.01 for phase, part in zip(phases, parts, strict=True))


@table(
    ("phases", "said"),
    [
        ((A, {"steps": 1}), ["phase 2: ", "name"]),
        ((A, {"name": "a", "steps": 1}), ["phase a: ", "already"]),
        ((A, {"name": "b", "steps": 0}), ["phase b: steps", "at least 1", "0"]),
        ((A, {"name": "b", "steps": True}), ["phase b: steps", "at least 1", "True"]),
        ((A, {"name": "b", "steps": "x0.5"}), ["phase b: steps", "in every phase", "'x0.5'"]),
        ((A, {"name": "b", "steps": 1, "batch_sise": 3}), ["phase b: unknown setting batch_sise", "batch_size?"]),
        ((A, {"name": "b", "steps": 1, "batch_size": 0}), ["phase b: batch_size", "1", "got 0"]),
        ((A, {"name": "b", "steps": 1, "optimizer": "sgd"}), ["phase b: ", "reset_optimizer"]),
        ((A, {"name": "b", "steps": 1, "precision": "x2"}), ["phase b: precision x2", "share", "fp32"]),
        *(
            ((A, {"name": "b", "steps": 1, key: "x"}), [f"phase b: {key} is the same for the whole run"])
            for key in RUN_WIDE
        ),
        (({"name": "a", "steps": "x0.5"}, {"name": "b", "steps": "x0.4"}), ["add up to 1", "0.9"]),
        (({"name": "a", "steps": "x0.001"}, {"name": "b", "steps": "x0.999"}), ["phase a: ", "too few steps", "300"]),
    ],
)
def test_a_wrong_phase_is_one_line_with_its_name(phases: tuple[dict[str, Any], ...], said: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        unfold(Settings(phases=phases))
    assert mentions(str(raised.value), *said)
    assert "\n" not in str(raised.value)


def test_the_phase_of_a_step() -> None:
    phases = unfold(Settings(phases=tuple({"name": f"p{n}", "steps": n} for n in (3, 1, 4))))
    expected = {0: (0, 1, 3), 1: (0, 1, 3), 3: (0, 1, 3), 4: (1, 4, 4), 5: (2, 5, 8), 8: (2, 5, 8), 99: (2, 5, 8)}
    assert {step: phase_at(phases, step) for step in expected} == expected
