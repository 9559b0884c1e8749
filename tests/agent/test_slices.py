"""Time budgets of the agent's loop."""

from __future__ import annotations

from gputui.agent.slices import TURN_SECONDS, Turn


def test_a_part_waits_for_one_turn_at_most() -> None:
    now = 0.0
    turn = Turn(lambda: now)
    turn.begin()
    assert not turn.postpones("starting")
    now += 2 * TURN_SECONDS
    assert turn.postpones("starting") and turn.postpones("upkeep")
    turn.begin()
    now += 2 * TURN_SECONDS
    assert not turn.postpones("starting")
    # The next long turn may postpone it again.
    assert turn.postpones("starting")
