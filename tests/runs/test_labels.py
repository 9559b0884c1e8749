"""Names, tags and notes of runs: what they may be, and the folder's copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.runs.labels import (
    LABELS_FILE,
    MOST_TAGS,
    LabelError,
    Labels,
    checked_labels,
    read_labels,
    write_labels,
)
from gputui.store.runs import LONGEST_NOTE


def test_labels_are_cleaned() -> None:
    assert checked_labels(" vit ", ["#b", "a", "b"], " first\n try ") == Labels("vit", ("a", "b"), "first try")
    assert checked_labels("vit", [], "x" * LONGEST_NOTE).note == "x" * LONGEST_NOTE
    assert (
        "hf_abcdefghijklmnopqrstuvwxyz01234567"
        not in checked_labels("v", [], "hf_abcdefghijklmnopqrstuvwxyz01234567").note
    )


def test_a_secret_is_refused_without_a_word_of_it() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz01234567"
    for name, tags in ((secret, []), ("vit", [secret])):
        with pytest.raises(LabelError) as caught:
            checked_labels(name, tags, "")
        assert secret[:12] not in str(caught.value)


def test_a_long_note_is_refused_not_cut() -> None:
    with pytest.raises(LabelError, match=str(LONGEST_NOTE)):
        checked_labels("vit", [], "x" * (LONGEST_NOTE + 1))


def test_a_note_that_is_no_unicode_can_be_stored() -> None:
    assert checked_labels("vit", [], "caf\udce9").note == "caf?"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 61, "-x"])
def test_a_name_fits_a_command_line(name: str) -> None:
    with pytest.raises(LabelError):
        checked_labels(name, [], "")


@pytest.mark.parametrize("tags", [["a b"], ["-a"], ["x" * 33], ["\x1b[1m"], [str(n) for n in range(MOST_TAGS + 1)]])
def test_a_tag_is_a_word_and_there_are_few(tags: list[str]) -> None:
    with pytest.raises(LabelError):
        checked_labels("vit", tags, "")


def test_the_folder_keeps_them(tmp_path: Path) -> None:
    labels = Labels("vit", ("a",), "first try")
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    for damaged in ("", "[]", '{"name": "a b", "tags": [], "note": ""}', '{"name": "vit"}'):
        (tmp_path / LABELS_FILE).write_text(damaged)
        assert read_labels(tmp_path) is None
