from __future__ import annotations

from pathlib import Path

import pytest

from gputui.gpu.scenario import Fault, Foreign, Scenario, load_scenario, parse_scenario

EXAMPLE = """
gpus: 4
memory: 24GiB
seed: 7
foreign:
  - {gpu: 3, memory: 2.5GiB, user: bob, command: python serve.py, load: 40}
faults:
  - {kind: lost, gpu: 3, at: 20, for: 60}
  - {kind: busy, gpu: 1, memory: 512MiB, user: eve}
  - {kind: no_value, field: power_watts}
"""


def test_a_scenario_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(EXAMPLE)
    scenario = load_scenario(path)
    assert (scenario.gpus, scenario.memory_bytes, scenario.seed) == (4, 24 * 2**30, 7)
    assert scenario.foreign == (Foreign(3, int(2.5 * 2**30), "bob", "python serve.py", 40),)
    lost, busy, hidden = scenario.faults
    assert (lost.kind, lost.gpu, lost.at_seconds, lost.for_seconds) == ("lost", 3, 20, 60)
    assert (busy.process.memory_bytes, busy.process.user) == (512 * 2**20, "eve")
    assert (hidden.field, hidden.gpu) == ("power_watts", None)


def test_an_empty_file_is_eight_quiet_gpus(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text("")
    assert load_scenario(path) == Scenario()
    assert Scenario().gpus == 8


def test_a_fault_is_active_in_its_time_only() -> None:
    fault = Fault("lost", gpu=1, at_seconds=10, for_seconds=5)
    assert [fault.active(moment) for moment in (9.9, 10.0, 14.9, 15.0)] == [False, True, True, False]
    assert Fault("lost").active(1e9)
    assert Fault("lost").hits(5)
    assert not fault.hits(5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1", "the scenario is [1], expected keys and values"),
        ("gpu: 4", "gpu is not known here"),
        ("gpus: many", "gpus is 'many', expected a number"),
        ("gpus: true", "gpus is True, expected a number"),
        ("gpus: -1", "gpus is -1, expected a number from 0 to 256"),
        ("memory: 80 bananas", "memory is '80 bananas', expected a size such as 16GiB"),
        ("faults: {kind: lost}", "faults is {'kind': 'lost'}, expected a list"),
        ("faults: [{kind: lose}]", "faults[0].kind is 'lose', expected one of lost, hang"),
        ("faults: [{kind: lost}, {kind: lost, when: 3}]", "faults[1].when is not known here"),
        ("faults: [{kind: no_value, field: uuid}]", "faults[0].field is 'uuid', expected one of"),
        ("foreign: [{load: 101}]", "foreign[0].load is 101, expected a number from 0 to 100"),
        ("name: [a]", "name is ['a'], expected a text"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as raised:
        load_scenario(path)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_sizes_are_numbers_or_have_units() -> None:
    for text, size in ((1024, 1024), ("1KiB", 1024), ("2 GB", 2 * 10**9), ("80gib", 80 * 2**30)):
        assert parse_scenario({"memory": text}).memory_bytes == size
