"""Scripts that are given a checkpoint and begin anew, or save none when they are stopped: what is said and counted."""

from __future__ import annotations

import pytest

from tests.conftest import wait_until
from tests.machines import STEPS_SCRIPT, Machine
from tests.texts import mentions


def test_a_script_that_ignores_its_checkpoint_is_told_to_have_begun_anew_and_the_true_loss_counted(
    machine: Machine,
) -> None:
    profile = machine.profile()
    script = STEPS_SCRIPT.replace("begin = int(", "begin = 0 and int(")
    (machine.folder / "steps.py").write_text(script)
    machine.gputui("run", profile, "--set", "fail_at=25", "--wait")
    record = machine.json("show", "steps-1")
    first, second = record["attempts"]
    assert second["resumed_from"].endswith("step_000020.pt")
    assert second["went_on"] == "beginning"
    assert first["incident"]["lost_steps"] == record["cost_of_failures"]["lost_steps"] == 26
    story = " ".join(machine.gputui("explain", "steps-1").split())
    assert mentions(story, "beginning (step 0)", "step_000020.pt")
    assert "started from the beginning" in machine.gputui("show", "steps-1")


@pytest.mark.long
def test_a_stop_after_which_no_checkpoint_lies_there_says_what_is_lost(machine: Machine) -> None:
    profile = machine.profile()
    script = STEPS_SCRIPT.replace("signal.signal(signal.SIGTERM, ask)", "").replace("% 10 == 0", "% 1000 == 0")
    (machine.folder / "steps.py").write_text(script)
    machine.gputui("run", profile, "--set", "steps=2000")
    wait_until(lambda: len(machine.steps("steps-1")) > 20, 60, "some steps")
    machine.gputui("stop", "steps-1")
    machine.wait_for("steps-1", "stopped")
    last = max(step for _, step in machine.steps("steps-1"))
    ((message,),) = machine.rows("SELECT message FROM events WHERE kind = 'stopped'")
    assert f"its steps up to {last} are lost" in message
    assert f"steps up to {last} are lost" in machine.gputui("explain", "steps-1").replace("\n", " ")
