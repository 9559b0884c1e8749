"""Numbers in texts, and nulls that stand for NaN."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from gputui.metrics.contract import ParsedLine, parse_line
from gputui.metrics.null_values import NullMeanings
from gputui.metrics.printed import OutputPatterns
from gputui.metrics.values import number_in_text
from gputui.store.metrics.losses import last_sound_step, unsound_since
from gputui.store.metrics.queries import latest
from gputui.store.metrics.step_lines import StepLines
from gputui.store.metrics.stored_lines import NULL_NAN
from tests.metrics.conftest import RUN, MetricsHome
from tests.tables import table


def meanings(*losses: float | None, **values: Any) -> list[object]:
    """The loss of each line as it is stored."""
    nulls = NullMeanings()
    losses_read = []
    for step, loss in enumerate(losses):
        line = {"step": step, "loss": loss, **values}
        losses_read.append(nulls.read(line)["loss"])
    return losses_read


@table(
    ("text", "number"),
    [
        ("0.5123", 0.5123), (" 0.5123 ", 0.5123), ("0.5123(0.5200)", 0.5123), ("0.5123 (avg)", 0.5123),
        ("0.512±0.1", 0.512), ("0.512 ± 0.1", 0.512), ("0.512 +- 0.1", 0.512), ("0.512+/-0.1", 0.512),
        ("0.5123nats", 0.5123), ("0.5123 nats", 0.5123), ("-1.5e-3 [best]", -0.0015), ("1,234.5 (avg)", 1234.5),
        ("5 of 10", 5), ("12.3%", 12.3), ("0.5, 0.6", 0.5), ("0.5|0.6", 0.5), ("17.4ms", 0.0174),
        ("2026-11-28 10:00:00", None), ("10:00:00", None), ("1.2.3", None), ("192.168.0.1", None), ("3/10", None),
        ("8xH100", None), ("2024_exp1", None), ("0,5123", None), ("", None), ("n/a", None), ("--", None),
        ("nancy", None), ("infra", None), ("information", None), ("avg 0.5", None), ("tensor(0.5)", 0.5),
        ("tensor(0.5123, device='cuda:0', grad_fn=<NllLossBackward0>)", 0.5123), ("np.float32(-2e-3)", -0.002),
        ("tensor([0.5, 0.6])", None), ("func(a, 0.5)", None),
        # Underscores separate thousands, as Python writes them, and nothing else.
        ("1_234", 1234), ("1_234_567", 1234567), ("1_2", None), ("run_1_000", None), ("1_2e3", None), ("12_34", None),
    ],
)  # fmt: skip
def test_the_number_that_a_text_begins_with(text: str, number: float | None) -> None:
    expected = None if number is None else pytest.approx(number)
    assert number_in_text("loss", text) == expected


@table(
    ("text", "stored"),
    [("nan", "NaN"), ("NaN", "NaN"), ("NAN", "NaN"), ("-inf", "-Infinity"), ("Infinity", "Infinity"),
     ("nan (avg)", "NaN"), ("nan±nan", "NaN"), ("inf(inf)", "Infinity"), ("diverged", "diverged"),
     ("tensor(nan)", "NaN")],
)  # fmt: skip
def test_text_that_is_not_finite_has_the_stored_form(text: str, stored: str) -> None:
    answer = parse_line(json.dumps({"step": 1, "loss": text}).encode())
    assert isinstance(answer, ParsedLine)
    assert json.loads(answer.data)["loss"] == stored


def test_names_of_events_stay_text() -> None:
    answer = parse_line(b'{"step": 1, "event": "2 saved", "phase": "1", "loss": "0.5"}')
    assert isinstance(answer, ParsedLine)
    assert dict(answer.values) == {"step": 1, "event": "2 saved", "phase": "1", "loss": 0.5}


def test_a_null_after_numbers_is_nan() -> None:
    assert meanings(3, 2, 1, None, None) == [3, 2, 1, NULL_NAN, NULL_NAN]
    assert meanings(3, 2, None, lr=0.1) == [3, 2, NULL_NAN]
    # Before any number, and after a single one, it says nothing.
    assert meanings(None, None, None) == [None] * 3
    assert meanings(3, None, None) == [3, None, None]


def test_a_null_between_measurements_is_no_nan() -> None:
    every_fifth = [step if step % 5 == 0 else None for step in range(60)]
    assert meanings(*every_fifth) == every_fifth
    # Longer than twice the gaps before: the loss has become NaN.
    nulls = meanings(*every_fifth[:31], *[None] * 20)
    assert nulls[31:39] == [None] * 8
    assert nulls[39:] == [NULL_NAN] * 12


def test_nan_that_passed_does_not_hide_the_next() -> None:
    losses = [3.0, 2.0, None, 1.0, 1.0, *[None] * 6]
    assert meanings(*losses)[-4:] == [NULL_NAN] * 4


def test_a_line_that_measures_something_else_has_no_nan() -> None:
    nulls = NullMeanings()
    for step in range(3):
        nulls.read({"step": step, "loss": 1.0, "lr": 0.1, "val_loss": None})
    for step in range(3, 9):
        line = {"step": step, "loss": None, "lr": None, "val_loss": 0.5}
        assert nulls.read(line) is line
    line = {"step": 9, "loss": None, "lr": 0.1, "val_loss": None}
    assert nulls.read(line) == {**line, "loss": NULL_NAN}


def test_a_loss_of_text_is_stored_and_judged_as_a_number(home: MetricsHome) -> None:
    home.begin()
    home.append("".join(json.dumps({"step": step, "loss": f"{1 / step:.4f} (avg)"}) + "\n" for step in range(1, 9)))
    home.pump()
    lines = StepLines(home.connection, RUN)
    assert latest(home.connection, RUN)["loss"] == 0.125
    assert unsound_since(lines, 1) is None
    assert last_sound_step(lines, 1) == 8


def test_a_loss_of_unknown_text_is_neither_sound_nor_unsound(home: MetricsHome) -> None:
    home.begin()
    home.append("".join(json.dumps({"step": step, "loss": "high"}) + "\n" for step in range(1, 9)))
    home.pump()
    lines = StepLines(home.connection, RUN)
    assert (unsound_since(lines, 1), last_sound_step(lines, 1)) == (None, None)


def test_a_loss_that_turns_to_null_is_unsound_also_after_the_agent_began_anew(home: MetricsHome) -> None:
    home.begin()
    for step in range(1, 7):
        home.append(json.dumps({"step": step, "loss": None if step > 4 else 1 / step, "lr": 0.1}) + "\n")
        if step == 5:
            home.pump()
            home.restart()
    home.pump()
    lines = StepLines(home.connection, RUN)
    unsound = unsound_since(lines, 1)
    assert unsound is not None
    assert unsound.step == 5
    assert last_sound_step(lines, 1) == 4
    assert [row[0] for row in home.connection.execute("SELECT data ->> '$.loss' FROM metrics")][-2:] == [
        NULL_NAN,
        NULL_NAN,
    ]


@table(("text", "number"), [
    ("12", 12), (str(2**63 - 1), 2**63 - 1), (str(2**63), float(2**63)), ("9" * 400, math.inf),
    ("-" + "9" * 400, -math.inf),
    ("9" * 5_000, math.inf), ("1" + ",000" * 200, math.inf), ("9" * 400 + "k", math.inf), ("9" * 400 + "ms", math.inf),
])  # fmt: skip
def test_numbers_beyond_64_bits_are_floats(text: str, number: float) -> None:
    parsed = number_in_text("loss", text)
    assert (type(parsed), parsed) == (type(number), number)


def test_a_number_without_end_has_a_unit() -> None:
    output = OutputPatterns([r"step (?P<step>\d+) time (?P<time_s>\d+)"], units={"time_s": 1e-3})
    parsed = output.parse(f"step 1 time {'9' * 400}".encode())
    assert isinstance(parsed, ParsedLine)
    assert parsed.values["time_s"] == "Infinity"


def test_a_long_text_is_read_in_milliseconds() -> None:
    begun = time.process_time()
    for text in ("9" * 100_000 + "é", "9" * 100_000 + ".9.9", "tensor(" + "9" * 100_000 + "x"):
        number_in_text("loss", text)
    assert time.process_time() - begun < 1
