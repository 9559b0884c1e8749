"""What a run took, in words."""

from __future__ import annotations

import pytest

from gputui.cli.show import cost_words
from gputui.store.costs import RunCost


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (RunCost(3.2, 7.7e6, False, ()), "3.2 GPU-hours, 2.14 kWh"),
        (RunCost(0.014, 3156.0, True, ()), "0.014 GPU-hours, at least 0.877 Wh"),
        (RunCost(12.0, None, True, ()), "12 GPU-hours"),
    ],
)
def test_taken(cost: RunCost, words: str) -> None:
    assert cost_words(cost) == words
