from __future__ import annotations

from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import ProfileError
from gputui.machine.scenario import Foreign, load_scenario, read_scenario
from tests.tables import table

EXAMPLE = """
gpus: 4
memory: 24GiB
seed: 7
foreign:
  - {gpu: 3, memory: 2.5GiB, user: bob, command: python serve.py, load: 40}
faults:
  - {kind: lost, gpu: 3, at: 20, for: 60}
  - {kind: hot, celsius: 90}
"""


def test_a_scenario_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(EXAMPLE)
    scenario = load_scenario(path)
    assert (scenario.gpus, scenario.memory, scenario.seed) == (4, 24 * 2**30, 7)
    assert scenario.foreign == [Foreign(gpu=3, memory=int(2.5 * 2**30), user="bob", command="python serve.py", load=40)]
    lost, hot = scenario.faults
    assert (lost.kind, lost.gpu, lost.at, lost.for_) == ("lost", 3, 20, 60)
    assert (hot.celsius, hot.gpu, hot.for_) == (90, None, None)


@table("text, line, key, meant", [
    ("- 1", 1, "", None), ("gpu: 4", 1, "gpu", "gpus"), ("gpus: many", 1, "gpus", None),
    ("gpus: true", 1, "gpus", None), ("gpus: -1", 1, "gpus", None), ("gpus: 1.5", 1, "gpus", None),
    ("memory: 80 bananas", 1, "memory", None), ("memory: -1", 1, "memory", None),
    ("faults: {kind: lost}", 1, "faults", None), ("faults: [{gpu: 1}]", 1, "faults.0", None),
    ("faults: [{kind: lose}]", 1, "faults.0.kind", "lost"),
    ("faults:\n- {kind: lost}\n- {kind: lost, when: 3}", 3, "faults.1.when", None),
    ("faults: [{kind: hot, celsius: 300}]", 1, "faults.0.celsius", None),
    ("foreign: [{load: 101}]", 1, "foreign.0.load", None), ("name: [a]", 1, "name", None), ("a: b: c", 1, "", None),
])  # fmt: skip
def test_mistakes_are_named_with_their_place(text: str, line: int, key: str, meant: str | None) -> None:
    with pytest.raises(ProfileError) as raised:
        read_scenario(text, Path("scenario.yaml"))
    (problem,) = raised.value.problems
    assert (problem.line, problem.key, problem.nearest) == (line, key, meant)
