"""Files that are replaced as a whole."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gputui.core.files import replaced


def test_readers_find_the_old_content_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b"old")
    with replaced(path, 0o600) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.glob("*settings*")) == [path]


def test_an_error_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), replaced(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.glob("*settings*")) == [path]
