"""Which folders a save that was cut short has left, by the times and names of their files."""

from __future__ import annotations

from gputui.recovery.cut_saves import TICK_NS, OlderFolder, SavedFile, lacking, of_two_saves, with_old_index
from tests.tables import table


def parts(**times: int) -> list[SavedFile]:
    return [
        SavedFile(name, "".join("#" if each.isdigit() else each for each in name), at) for name, at in times.items()
    ]


@table(
    ("times", "old"),
    [
        ({"model": 31, "optimizer": 32}, None),
        ({"model": 31, "optimizer": 22}, "optimizer"),
        ({"model": 31, "sampler": 22, "optimizer": 21}, "optimizer"),
        # Written once, in the first save.
        ({"model": 31, "base": 2}, None),
        ({"model": 31, "optimizer": 21, "base": 2}, "optimizer"),
        # Not begun.
        ({"model": 21, "optimizer": 22}, None),
        ({}, None),
    ],
)
def test_files_of_two_saves_are_told_from_those_that_were_written_once(times: dict[str, int], old: str | None) -> None:
    assert of_two_saves(parts(**times), 22, lambda at_ns: at_ns < 20) == old


@table(("index_at", "is_old"), [(5, False), (4 - TICK_NS, True), (4, False)])
def test_the_index_of_a_distributed_checkpoint_is_written_last(index_at: int, is_old: bool) -> None:
    found = with_old_index(
        [SavedFile("a/__0_0.distcp", "", 5), SavedFile("a/.metadata", "", index_at), SavedFile(".metadata", "", 1)]
    )
    assert found == ("a/__0_0.distcp" if is_old else None)


@table(
    ("mine", "is_of_attempt", "missing"),
    [
        (["model", "rank_0", "rank_1"], True, None),
        (["model", "rank_0", "rank_1", "extra"], True, None),
        (["model"], True, "rank_0"),
        (["rank_0", "rank_1"], True, "model"),
        (["model", "rank_0"], True, "rank_0"),
        # With one rank, or with other names for ranks.
        (["model", "rank_0"], False, None),
        (["model", "rank"], False, None),
        (["rank_0", "rank_1"], False, "model"),
    ],
)
def test_a_folder_must_have_what_those_before_it_have(
    mine: list[str], is_of_attempt: bool, missing: str | None
) -> None:
    older = OlderFolder(parts(model=1, rank_0=1, rank_1=1), is_of_attempt)
    assert lacking(parts(**dict.fromkeys(mine, 2)), [older]) == missing
    assert lacking(parts(**dict.fromkeys(mine, 2)), []) is None


def test_what_only_some_folders_have_is_not_missed() -> None:
    every_second = [OlderFolder(parts(model=1, optimizer=1), True), OlderFolder(parts(model=1), True)]
    assert lacking(parts(model=2), every_second) is None
    assert lacking(parts(optimizer=2), every_second) == "model"
