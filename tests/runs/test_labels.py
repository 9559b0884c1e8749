"""Names, tags and notes of runs: what they may be, and the folder's copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.runs.labels import (
    LABELS_FILE,
    LONGEST_NOTE,
    MOST_TAGS,
    LabelError,
    Labels,
    fitting_labels,
    read_labels,
    write_labels,
)


def test_labels_are_cleaned() -> None:
    assert fitting_labels(" vit ", ["#b", "a", "b"], " first\n try ") == Labels("vit", ("a", "b"), "first try")
    assert len(fitting_labels("vit", [], "x" * 2 * LONGEST_NOTE).note) == LONGEST_NOTE
    assert (
        "hf_abcdefghijklmnopqrstuvwxyz01234567"
        not in fitting_labels("v", [], "hf_abcdefghijklmnopqrstuvwxyz01234567").note
    )


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 61, "-x"])
def test_a_name_fits_a_command_line(name: str) -> None:
    with pytest.raises(LabelError):
        fitting_labels(name, [], "")


@pytest.mark.parametrize("tags", [["a b"], ["-a"], ["x" * 33], ["\x1b[1m"], [str(n) for n in range(MOST_TAGS + 1)]])
def test_a_tag_is_a_word_and_there_are_few(tags: list[str]) -> None:
    with pytest.raises(LabelError):
        fitting_labels("vit", tags, "")


def test_the_folder_keeps_them(tmp_path: Path) -> None:
    labels = Labels("vit", ("a",), "first try")
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    for damaged in ("", "[]", '{"name": "a b", "tags": [], "note": ""}', '{"name": "vit"}'):
        (tmp_path / LABELS_FILE).write_text(damaged)
        assert read_labels(tmp_path) is None
