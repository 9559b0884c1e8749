"""Short histories: the range in which a curve tells how training goes on."""

from __future__ import annotations

import math

from gputui.ui.tui.layout.sparklines import ease_losses, spark, to_quantiles


def test_a_loss_that_still_falls_differs_from_one_that_does_not() -> None:
    def drawn(losses: tuple[float | None, ...]) -> str:
        return spark(ease_losses(losses), 10)

    falling = tuple(10 * math.exp(-number) + 3 - 0.1 * number for number in range(10))
    settled = tuple(10 * math.exp(-number) + 3 + 0.1 * (number % 2) for number in range(10))
    assert drawn(falling) == "▆▅▄▃▃▃▂▂▂▁"
    assert drawn(settled)[-4:] in ("▁▂▁▂", "▂▁▂▁")
    assert drawn((7.0, 3.0, 2.0, 2.0, 40.0, math.nan, None)) == "   ▄▂▁▁▆× "
    assert drawn((5.0, 5.0)) == " " * 8 + "▁▁"
    assert drawn(()) == " " * 10
    assert drawn((1.7e308, -1.7e308)) == " " * 8 + "▆▁"


def test_curves_of_trials_differ_where_most_values_are() -> None:
    among = [2.0, 2.1, 2.2, 2.3, 9.0]
    assert to_quantiles([9.0, 2.3, None, 2.1, math.inf, 2.0], among) == [1.0, 0.75, None, 0.25, math.inf, 0.0]
    assert to_quantiles([math.nan], [])[0] is not None
    assert to_quantiles([], []) == []
