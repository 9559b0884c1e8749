"""Population-based training, against its definition and on an optimum that moves."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from gputui.runs.spec import Scalar
from gputui.studies.pbt import PopulationMember, choose_exploits, due_milestone, first_point, perturb
from gputui.studies.spec import Dimension, Objective, PbtSpec

SPACE = (
    Dimension("lr", "float", 1e-4, 1e-1, log=True),
    Dimension("width", "int", 8, 64, step=8),
    Dimension("kind", "choice", choices=("a", "b", "c")),
)
LOSS = Objective("loss")
SPEC = PbtSpec(members=8, every=10)


def member(number: int, value: float, *, can_give: bool = True) -> PopulationMember:
    return PopulationMember(number, {"lr": 0.01, "width": 16, "kind": "b"}, value, can_give)


def fits(params: Mapping[str, Scalar]) -> bool:
    lr = params["lr"]
    width = params["width"]
    assert isinstance(lr, float)
    assert isinstance(width, int)
    return 1e-4 <= lr <= 1e-1 and width in range(8, 65, 8) and params["kind"] in ("a", "b", "c")


def test_a_milestone_is_due_once_the_last_member_has_passed_it() -> None:
    values = [{1: 0.5, 2: 0.4, 3: 0.3}, {1: 0.5, 2: 0.4}]
    assert due_milestone(values, 0) == due_milestone(values, 1) == 2
    assert due_milestone(values, 2) is None
    assert due_milestone([*values, {}], 0) is None
    assert due_milestone([], 0) is None


def test_the_worst_quarter_goes_on_from_the_best() -> None:
    members = [member(number, float(number)) for number in range(8)]
    exploits = choose_exploits(members, 1, SPEC, space=SPACE, objective=LOSS, seed=7)
    assert {exploit.number for exploit in exploits} == {6, 7}
    assert {exploit.donor for exploit in exploits} <= {0, 1}
    assert exploits == choose_exploits(members, 1, SPEC, space=SPACE, objective=LOSS, seed=7)
    upwards = choose_exploits(members, 1, SPEC, space=SPACE, objective=Objective("accuracy", "maximize"), seed=7)
    assert {one.number for one in upwards} == {0, 1}
    assert {one.donor for one in upwards} <= {6, 7}


def test_what_is_no_number_is_worst_and_gives_nothing() -> None:
    members = [member(0, math.nan), member(1, 0.5), member(2, 0.4, can_give=False), member(3, 0.6)]
    [exploit] = choose_exploits(members, 1, SPEC, space=SPACE, objective=LOSS, seed=1)
    assert (exploit.number, exploit.donor) == (0, 1)  # the best has no whole checkpoint
    assert (
        choose_exploits(
            [candidate._replace(can_give=False) for candidate in members], 1, SPEC, space=SPACE, objective=LOSS, seed=1
        )
        == []
    )
    [exploit] = choose_exploits(
        [member(0, math.nan), *members[1:2], *members[3:]], 1, SPEC, space=SPACE, objective=LOSS, seed=1
    )
    assert (exploit.number, exploit.donor) == (0, 1)
    assert choose_exploits([member(0, 0.5), member(1, 0.5)], 1, SPEC, space=SPACE, objective=LOSS, seed=1) == []


def test_points_stay_in_the_space() -> None:
    draw = random.Random(3)
    edge: Mapping[str, Scalar] = {"lr": 1e-1, "width": 64, "kind": "c"}
    assert all(fits(perturb(edge, SPACE, SPEC, draw)) for _ in range(200))
    assert all(fits(first_point(SPACE, 0, number)) for number in range(50))
    assert first_point(SPACE, 0, 1) == first_point(SPACE, 0, 1) != first_point(SPACE, 0, 2)


def test_without_resampling_numbers_are_multiplied() -> None:
    spec = PbtSpec(members=8, every=10, resample=0.0)
    draw = random.Random(1)
    rates = {perturb({"lr": 0.01, "width": 32, "kind": "b"}, SPACE, spec, draw)["lr"] for _ in range(50)}
    assert rates == {0.008, 0.012}
