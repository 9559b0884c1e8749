"""Phases: each as complete settings, numbers as shares, and what cannot change in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.texts import mentions
from trainer.config import Settings, phase_at, unfold
from trainer.errors import SettingsError


def refusal(*phases: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        unfold(Settings(phases=phases, **settings))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_phase_is_the_run_with_its_own_changes() -> None:
    phases = (
        {"name": "cold", "steps": 10, "lr": 0.5, "precision": "bf16", "ranks": 1, "compile": False},
        {"name": "hot.2", "steps": 20, "gradient_checkpointing": True, "batch_size": "auto", "reset_optimizer": True},
    )
    run = Settings(phases=phases, batch_size=32, lr=0.1)
    cold, hot = unfold(run)
    assert (cold.phase, cold.steps, cold.lr, cold.precision, cold.ranks, cold.batch_size) == (
        "cold",
        10,
        0.5,
        "bf16",
        1,
        32,
    )
    assert (hot.phase, hot.steps, hot.lr, hot.gradient_checkpointing, hot.batch_size) == (
        "hot.2",
        20,
        0.1,
        "full",
        "auto",
    )
    assert cold.phases == hot.phases == () and cold.seed == run.seed


def test_shares_follow_a_change_to_the_run() -> None:
    phases = (
        {"name": "a", "steps": "x0.25", "batch_size": "x0.5", "lr": "x2", "warmup_steps": "x0.1", "grad_accum": "x2."},
        {"name": "b", "steps": "x0.75", "batch_size": "x.01", "loss_scale": "x0.5"},
    )
    first, second = unfold(Settings(phases=phases, steps=10, batch_size=25, lr=0.1, warmup_steps=4, grad_accum=3))
    assert (first.steps, first.batch_size, first.lr, first.warmup_steps, first.grad_accum) == (2, 13, 0.2, 0, 6)
    assert (second.steps, second.batch_size, second.loss_scale) == (8, 1, 32768.0)
    halved = unfold(Settings(phases=phases, steps=10, batch_size=12))
    assert [phase.batch_size for phase in halved] == [6, 1]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 2000))
def test_shares_of_steps_add_up_exactly(parts: list[int], steps: int) -> None:
    shares = [f"x{part / sum(parts):.9f}" for part in parts]
    run = Settings(steps=steps, phases=tuple({"name": f"p{n}", "steps": share} for n, share in enumerate(shares)))
    try:
        phases = unfold(run)
    except SettingsError as error:
        assert "too few steps" in str(error) and steps * min(parts) / sum(parts) < 1.01
        return
    assert sum(phase.steps for phase in phases) == steps
    assert all(abs(phase.steps - steps * part / sum(parts)) <= 1.01 for phase, part in zip(phases, parts, strict=True))


@table(
    ("phase", "message"),
    [
        ({"steps": 1}, "phase 2: a name is made of at most 100 letters, digits, dots and dashes; it has no name"),
        ({"name": "a", "steps": 1}, "phase 2: a is the name of another phase already"),
        (
            {"name": "b", "steps": 0},
            "phase b: steps must be a whole number of at least 1, or a share such as x0.5 in every",
        ),
        ({"name": "b", "steps": "x0.5"}, "phase b: steps must be a whole number of at least 1, or a share"),
        ({"name": "b", "steps": 1, "batch_sise": 3}, "phase b: unknown setting batch_sise; did you mean batch_size?"),
        ({"name": "b", "steps": 1, "batch_size": 0}, "phase b: batch_size must be at least 1, got 0"),
        ({"name": "b", "steps": 1, "optimizer": "sgd"}, "phase b: another optimizer than before needs reset_optimizer"),
        (
            {"name": "b", "steps": 1, "precision": "x2"},
            "phase b: precision x2 is a share of a number, but the run's own is",
        ),
    ]
    + [
        (
            {"name": "b", "steps": 1, key: "x"},
            f"phase b: {key} is the same for the whole run and cannot be set in a phase",
        )
        for key in ("task", "model", "width", "output_dir", "seed", "device", "timeout", "phases", "resume", "data")
    ],
)
def test_a_wrong_phase_is_one_line_with_its_name(phase: dict[str, Any], message: str) -> None:
    assert refusal({"name": "a", "steps": 5}, phase).startswith(message)


def test_shares_of_steps_make_a_whole() -> None:
    said = refusal({"name": "a", "steps": "x0.5"}, {"name": "b", "steps": "x0.4"})
    assert mentions(said, "shares", "1", "0.9")
    said = refusal({"name": "a", "steps": "x0.01"}, {"name": "b", "steps": "x0.99"}, steps=10)
    assert mentions(said, "phase a: ", "too few steps", "10")


def test_the_phase_of_a_step() -> None:
    phases = unfold(Settings(phases=tuple({"name": f"p{n}", "steps": n} for n in (3, 1, 4))))
    expected = {1: (0, 1, 3), 3: (0, 1, 3), 4: (1, 4, 4), 5: (2, 5, 8), 8: (2, 5, 8)}
    assert {step: phase_at(phases, step) for step in expected} == expected
    assert phase_at(phases, 0) == (0, 1, 3)
    assert phase_at(phases, 99) == (2, 5, 8)
