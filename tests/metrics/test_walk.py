"""The search for files by pattern."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from gputui.metrics.files import find, may_overlap


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "metrics.csv", "logs/version_0/metrics.csv", "logs/version_10/metrics.csv", "logs/.hidden/metrics.csv",
        "deep/er/still/metrics.csv", "a[1]/metrics.csv", "other.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_it_finds_what_glob_finds(tree: Path) -> None:
    for pattern in [
        "*.csv", "logs/version_*/metrics.csv", "logs/version_?/metrics.csv", "**/metrics.csv",
        "logs/**", "**/*", "**/still/*.csv", "a[[]1]/*.csv", "logs/.*/metrics.csv", "none/*",
        "metrics.csv", "**/er/**/metrics.csv",
    ]:  # fmt: skip
        text = f"{glob.escape(str(tree))}/{pattern}"
        found = [path.rstrip("/") for path in glob.glob(text, recursive=True)]  # noqa: PTH207 - compared with it
        paths, is_cut = find(text)
        assert (set(paths), is_cut) == (set(found) - ({str(tree / "logs")} - set(paths)), False)


def test_links_that_form_circles_are_not_followed_by_two_stars(tree: Path) -> None:
    for name in ("a", "b"):
        (tree / name).symlink_to(".")
    paths, is_cut = find(f"{tree}/**/metrics.csv", most_entries=100)
    assert not is_cut
    assert len(paths) == len(set(paths)) == 5


def test_a_link_to_a_folder_is_followed_where_the_pattern_names_it(tree: Path) -> None:
    (tree / "logs" / "version_11").symlink_to(tree / "deep" / "er" / "still")
    assert f"{tree}/logs/version_11/metrics.csv" in find(f"{tree}/logs/version_*/metrics.csv")[0]


def test_a_search_ends_after_the_most_entries(tree: Path) -> None:
    assert find(f"{tree}/**/metrics.csv", most_entries=3)[1]


def test_patterns_that_may_match_the_same_file() -> None:
    for one, other, expected in [
        ("/w/log.csv", "/w/log.csv", True),
        ("/w/log.csv", "/v/log.csv", False),
        ("/w/logs/version_*/metrics.csv", "/w/logs/version_3/metrics.csv", True),
        ("/w/logs/version_*/metrics.csv", "/w/logs/other/metrics.csv", False),
        ("/w/logs/version_*/metrics.csv", "/w/**/metrics.csv", True),
        ("/w/logs/version_*/metrics.csv", "/v/**/metrics.csv", False),
        ("/w/**/metrics.csv", "/w/metrics.csv", True),
    ]:
        assert may_overlap(one, other) is may_overlap(other, one) is expected
