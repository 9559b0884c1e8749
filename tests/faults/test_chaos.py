"""The short form of the chaos drill."""

from __future__ import annotations

import pytest

from tests.faults.chaos import Chaos
from tests.machine import Machine


@pytest.mark.long
@pytest.mark.timeout(400)
def test_chaos_loses_doubles_and_leaves_nothing(machine: Machine) -> None:
    chaos = Chaos(machine, seed=20261121, digits=1, steps=40)
    try:
        chaos.rage(24)
        ends = chaos.check()
    finally:
        chaos.victims.close_screen()
    assert sum(ends.values()) == len(chaos.clients.runs()) >= 3
    assert sum(chaos.done.values()) >= 24
