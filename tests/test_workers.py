"""How tests are divided among processes."""

from __future__ import annotations

from tests.conftest import TESTS, WORKERS


def test_each_folder_with_a_process_of_its_own_is_there() -> None:
    folders = {path.name for path in TESTS.rglob("*") if path.is_dir()}
    assert WORKERS.keys() <= folders
