"""Lines of logs, printed whole and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.ui.cli.logs import WINDOW_BYTES, follow_once, print_tail
from tests.tables import table


@table("count, with_rest, first, last", [
    (0, True, 0, 20_000), (0, False, 0, 19_999), (3, True, 19_997, 20_000), (3, False, 19_996, 19_999),
])  # fmt: skip
def test_lines_are_whole_over_windows_and_only_the_last_may_have_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, with_rest: bool, first: int, last: int
) -> None:
    path = tmp_path / "output.log"
    lines = [f"line {number} {'x' * 40}" for number in range(20_000)]
    path.write_text("\n".join(lines))
    assert path.stat().st_size > 3 * WINDOW_BYTES
    end = print_tail(path, "", count, with_rest=with_rest)
    assert capsys.readouterr().out.splitlines() == lines[first:last]
    assert end == path.stat().st_size - (0 if with_rest else len(lines[-1]))


def test_following_prints_a_last_line_once_it_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes" / "0").mkdir(parents=True)
    path = tmp_path / "nodes" / "0" / "output.log"
    positions = dict[Path, int]()
    path.write_text("step 1\nKeyErr")
    assert follow_once(tmp_path, rank=None, positions=positions, with_rest=False)
    assert not follow_once(tmp_path, rank=None, positions=positions, with_rest=False)
    path.write_text("step 1\nKeyError: 3")
    assert follow_once(tmp_path, rank=None, positions=positions, with_rest=True)
    assert not follow_once(tmp_path, rank=None, positions=positions, with_rest=True)
    assert capsys.readouterr().out == "step 1\nKeyError: 3\n"
