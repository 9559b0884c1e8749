"""Whether an attempt went on from the checkpoint that it was given."""

from __future__ import annotations

import pytest

from gputui.recovery.history import Resumption, resumptions
from tests.recovery.test_history import attempt


@pytest.mark.parametrize(
    ("first", "given", "what"),
    [
        (1800, 1800, "resumed"),
        (1801, 1800, "resumed"),
        (1790, 1800, "resumed"),
        (2000, 1800, "resumed"),
        (9, 1800, "beginning"),
        (0, 1800, "beginning"),
        (901, 1800, "earlier"),
        (None, 1800, None),
        (9, None, None),
    ],
)
def test_the_first_step_shows_it(first: int | None, given: int | None, what: Resumption | None) -> None:
    attempts = [
        attempt(1, at=0.0, last=1879, first_step=9),
        attempt(2, at=60.0, last=first, first_step=first, resumed_from="/c/x.ckpt", resumed_step=given),
    ]
    assert resumptions(attempts).get(2) == what


def test_steps_that_begin_anew_with_every_epoch_show_nothing() -> None:
    attempts = [
        attempt(1, at=0.0, last=14, first_step=0),
        attempt(2, at=60.0, last=14, first_step=0, resumed_from="/c/x.ckpt", resumed_step=14),
    ]
    assert resumptions(attempts) == {2: "beginning"}
    assert resumptions(attempts, lambda number, step: (number, step) == (1, 0)) == {}


def test_a_run_that_was_given_nothing_has_nothing_to_go_on_from() -> None:
    assert resumptions([attempt(1, at=0.0, last=9, first_step=0), attempt(2, at=9.0, last=9, first_step=0)]) == {}
