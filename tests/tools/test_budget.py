from __future__ import annotations

from pathlib import Path

from tests.texts import mentions
from tools.budget import Room, Shape, dump, load, lowered, problems, shapes

FILES = ["gputui/a/one.py", "gputui/a/two.py", "gputui/b.py", "docs/page.md"]


def lay(root: Path) -> None:
    for file, text in zip(
        FILES, ["x = 1\n\n", "y = 1\n" + "#" * 101 + "\n", "z = 1\n", "Three short words.\n"], strict=True
    ):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)


def rooms(lines: int, doc_words: int = 3) -> dict[str, Room]:
    return {
        "a": Room(("gputui/a",), {"lines": lines, "files": 2}),
        "b": Room(("gputui/b.py",), {"lines": 5, "files": 1}),
        "docs": Room(("docs",), {"words": doc_words}),
    }


def test_a_room_may_have_its_budget_and_no_more(tmp_path: Path) -> None:
    lay(tmp_path)
    assert list(problems(rooms(lines=5), FILES, tmp_path)) == []
    code, docs = problems(rooms(lines=4, doc_words=1), FILES, tmp_path)
    assert mentions(code, "a: 5 lines", "1 above", "4")
    assert mentions(docs, "docs: 3 words", "2 above", "1")


def test_a_file_without_a_room_is_a_problem(tmp_path: Path) -> None:
    lay(tmp_path)
    (tmp_path / "gputui/c.py").touch()
    assert [problem.split()[0] for problem in problems(rooms(5), [*FILES, "gputui/c.py"], tmp_path)] == ["gputui/c.py"]


def test_lowering_takes_what_is_unused_and_never_raises(tmp_path: Path) -> None:
    lay(tmp_path)
    rooms_after = lowered(rooms(lines=4), FILES, tmp_path)
    assert rooms_after["a"].limits == {"lines": 4, "files": 2}
    assert rooms_after["b"].limits == {"lines": 1, "files": 1}
    (tmp_path / "budget.toml").write_text(dump(rooms_after))
    assert load(tmp_path / "budget.toml") == rooms_after


def test_lowered_lines_keep_slack(tmp_path: Path) -> None:
    (tmp_path / "gputui").mkdir()
    (tmp_path / FILES[2]).write_text("z = 1\n" * 100)
    (room,) = lowered({"b": Room((FILES[2],), {"lines": 200, "files": 9})}, FILES[2:3], tmp_path).values()
    assert room.limits == {"lines": 103, "files": 1}


def test_a_function_named_by_no_second_line_is_used_once(tmp_path: Path) -> None:
    (tmp_path / "gputui/a").mkdir(parents=True)
    (tmp_path / FILES[0]).write_text("def f():\n    pass\n\n\ndef g():\n    f()\n    f()\n    return f\n\n\ng()\n")
    (tmp_path / FILES[1]).write_text("from gputui.a.one import g\n")
    measured = list(shapes({"a": rooms(9)["a"]}, FILES[:2], tmp_path))
    assert measured == [Shape("a", lines=12, files=2, longest=11, mean=3.0, once=1)]
