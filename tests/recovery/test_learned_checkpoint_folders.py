"""Of checkpoints below a working directory, those in a folder that the command names are the run's."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gputui.recovery.checkpoints.search import CheckpointSearch
from gputui.runs.learned_checkpoints import LEARNED
from gputui.store.checkpoints import Neighbour
from tests.texts import mentions


def search(folder: Path, *arguments: str, pattern: str = LEARNED) -> CheckpointSearch:
    neighbours = (Neighbour("b-1", str(folder), LEARNED),)
    return CheckpointSearch(
        Path("/db"),
        "a-1",
        folder,
        pattern=pattern,
        rows=(),
        attempts=(),
        command_paths=arguments,
        neighbours=neighbours,
    )


def test_the_folder_that_a_command_names(tmp_path: Path) -> None:
    for name in ("A/runs", "B/runs", "data"):
        (tmp_path / name).mkdir(parents=True)
    own_path = str(tmp_path / "A/runs/step_5.pt")
    foreign_path = str(tmp_path / "B/runs/step_5.pt")
    looks = search(tmp_path, "A/runs", "data", ".", "../x", "0.1")
    folders = looks.own_folders([own_path, foreign_path])
    assert folders == [tmp_path / "A/runs"]
    assert looks.intruder_at(own_path, folders) is None
    assert looks.intruder_at(foreign_path, folders) is not None
    # Where the command names no folder of checkpoints, the claims of the other runs decide.
    assert looks.own_folders([foreign_path]) == []
    assert looks.intruder_at(foreign_path) is not None


def test_the_folder_in_which_only_this_run_writes_metrics(tmp_path: Path) -> None:
    looks = replace(search(tmp_path), metric_folders=(str(tmp_path / "logs/version_1"),))
    assert looks.intruder_at(str(tmp_path / "logs/version_1/checkpoints/last.ckpt")) is None
    assert looks.intruder_at(str(tmp_path / "logs/version_0/checkpoints/last.ckpt")) is not None
    assert looks.intruder_at(str(tmp_path / "last.ckpt")) is not None


def test_a_run_that_names_no_checkpoints_contests_none_of_a_profile(tmp_path: Path) -> None:
    assert search(tmp_path, pattern="step_*.pt").intruder_at(str(tmp_path / "step_5.pt")) is None


def test_what_is_looked_for_is_told_without_the_word_of_a_profile() -> None:
    from_pattern, learned = (search(Path("/runs/a"), pattern=pattern).words for pattern in ("step_*.pt", LEARNED))
    assert mentions(from_pattern, "step_*.pt", "/runs/a")
    assert "/runs/a" in learned
    assert LEARNED not in learned
