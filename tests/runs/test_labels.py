"""Names, tags and notes of runs: what they may be, and the folder's copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.runs.labels import LABELS_FILE, MOST_TAGS, LabelError, Labels, checked_labels, read_labels, write_labels
from gputui.store.runs import LONGEST_NOTE
from tests.tables import table


def test_labels_are_cleaned() -> None:
    assert checked_labels(" vit ", ["#b", "a", "b"], " first\n try ") == Labels("vit", ("a", "b"), "first try")
    assert checked_labels("vit", [], "x" * LONGEST_NOTE).note == "x" * LONGEST_NOTE


def test_a_secret_is_refused_without_a_word_of_it() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz01234567"
    assert secret not in checked_labels("v", [], secret).note
    for name, tags in ((secret, []), ("vit", [secret])):
        with pytest.raises(LabelError) as caught:
            checked_labels(name, tags, "")
        assert secret[:12] not in str(caught.value)


MANY = [str(number) for number in range(MOST_TAGS + 1)]


@table("name, tags", [
    ("", []), ("a b", []), ("../x", []), ("x" * 61, []), ("-x", []),
    ("vit", ["a b"]), ("vit", ["-a"]), ("vit", ["x" * 33]), ("vit", ["\x1b[1m"]), ("vit", MANY),
])  # fmt: skip
def test_names_and_tags_are_words_of_a_command_line(name: str, tags: list[str]) -> None:
    with pytest.raises(LabelError):
        checked_labels(name, tags, "")


def test_the_folder_keeps_them(tmp_path: Path) -> None:
    labels = Labels("vit", ("a",), "first try")
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    for damaged in ("", "[]", '{"name": "a b", "tags": [], "note": ""}', '{"name": "vit"}'):
        (tmp_path / LABELS_FILE).write_text(damaged)
        assert read_labels(tmp_path) is None
