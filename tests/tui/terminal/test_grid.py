"""The two grids and the emitter alone: right on any sequence of changes, and short."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from gputui.tui.terminal.cells import cells_of
from gputui.tui.terminal.grid import CellGrid
from gputui.tui.terminal.pens import Pen, PenCase
from tests.tui.emulator import Terminal

STYLES = [
    Style.parse(text)
    for text in (
        "",
        "bold",
        "dim",
        "bold dim",
        "italic underline",
        "reverse",
        "strike",
        "red",
        "red on blue",
        "on blue",
    )
]
PIECES = st.lists(
    st.tuples(st.text(st.sampled_from("ab 漢é█⣿\x1b\u0301👩\u200d"), max_size=6), st.sampled_from(STYLES)), max_size=5
)
CHANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 12), PIECES), max_size=12)


def grid(width: int = 12, height: int = 4, system: ColorSystem | None = ColorSystem.EIGHT_BIT) -> CellGrid:
    made = CellGrid(PenCase(system))
    made.resize(width, height)
    return made


def put(target: CellGrid, y: int, x: int, text: str, style: str = "") -> None:
    segment = Segment(text, Style.parse(style) if style else None)
    target.feed(y, x, segment.cell_length, [segment])


@given(st.lists(CHANGES, max_size=5), st.tuples(st.integers(-3, 20), st.integers(-3, 9)))
def test_any_changes_arrive(
    frames: list[list[tuple[int, int, int, list[tuple[str, Style]]]]], caret: tuple[int, int]
) -> None:
    cells = grid()
    terminal = Terminal(12, 4)
    for changes in frames:
        for y, x, width, pieces in changes:
            cells.feed(y, x, width, [Segment(text, style) for text, style in pieces])
        terminal.feed(cells.emit(caret))
        assert terminal.wrong_cells(cells) == []
        assert terminal.cursor == (min(max(caret[0], 0), 11), min(max(caret[1], 0), 3))
        assert cells.emit(caret) == ""
        assert not cells.is_pending


@given(CHANGES)
def test_a_line_always_has_whole_wide_characters(changes: list[tuple[int, int, int, list[tuple[str, Style]]]]) -> None:
    cells = grid()
    for y, x, width, pieces in changes:
        cells.feed(y, x, width, [Segment(text, style) for text, style in pieces])
    for y in range(4):
        texts = [text for text, _ in cells.line(y)]
        for x, text in enumerate(texts):
            if not text:
                assert x > 0
                assert cells_of(texts[x - 1])[1:] == [""]
            elif len(cells_of(text)) == 2:
                assert texts[x + 1] == ""


def test_a_terminal_that_shrinks_while_a_frame_is_put_off_gets_what_is_left() -> None:
    cells = grid(12, 4)
    cells.emit((0, 0))
    put(cells, 3, 0, "the last line")
    cells.resize(12, 2)
    put(cells, 1, 0, "now the last")
    terminal = Terminal(12, 2)
    terminal.feed(cells.emit((0, 0)))
    assert terminal.lines == [" " * 12, "now the last"] and not cells.is_pending


def test_frames_left_out_are_made_up_for() -> None:
    cells = grid()
    terminal = Terminal(12, 4)
    terminal.feed(cells.emit((0, 0)))
    for number in range(50):
        put(cells, 1, 0, f"{number:>12}", "red")
    terminal.feed(cells.emit((0, 0)))
    assert terminal.lines[1] == f"{49:>12}"
    put(cells, 1, 11, "x")
    put(cells, 1, 11, "9", "red")
    assert cells.emit((0, 0)) == ""


@pytest.mark.parametrize(
    ("before", "after", "longest"),
    [
        ("abcdefgh", "abcdefgx", 12),
        ("abcdefgh", "xbcdefgx", 16),
        ("abcdefgh", "xbcxefgh", 13),
        ("        ", "⣿⣿⣿⣿⣿⣿⣿⣿", 33),
        ("漢字漢字", "漢字漢文", 16),
    ],
)
def test_small_changes_take_few_bytes(before: str, after: str, longest: int) -> None:
    cells = grid()
    put(cells, 2, 1, before)
    cells.emit((0, 0))
    put(cells, 2, 1, after)
    assert len(cells.emit((0, 0)).encode()) <= longest


def test_the_pen_is_remembered_from_run_to_run() -> None:
    cells = grid(40, 10)
    for y in range(10):
        put(cells, y, 0, "a" * 40, "green on black")
    cells.emit((0, 0))
    for y in range(10):
        put(cells, y, 10, "b", "green on black")
    frame = cells.emit((0, 0))
    assert frame.count("m") == 2
    assert frame.endswith("\x1b[m\x1b[H")


def test_spaces_ride_on_any_pen_of_their_background() -> None:
    cells = grid(40, 1)
    put(cells, 0, 0, "red", "red on blue")
    put(cells, 0, 3, "   ", "green on blue")
    put(cells, 0, 6, "red", "red on blue")
    assert cells.emit((0, 0)).count("m") == 3  # erase, one pen, reset


def test_an_unknown_terminal_is_erased_and_blanks_are_not_written() -> None:
    cells = grid(80, 24)
    put(cells, 0, 0, "x")
    first = cells.emit((0, 0))
    assert first == "\x1b[m\x1b[2J\x1b[Hx\b"
    cells.mark_unknown()
    assert cells.emit((0, 0)) == first


def test_zero_size_and_places_outside_are_nothing() -> None:
    cells = grid(0, 0)
    put(cells, 0, 0, "x")
    assert cells.emit((0, 0)) == ""
    cells = grid(4, 2)
    put(cells, 7, 0, "x")
    put(cells, 0, 9, "x")
    put(cells, 0, 2, "漢漢漢")
    cells.feed(1, 0, 9, [Segment("control", None, [(1,)]), Segment("ab")])  # type: ignore[list-item]
    assert [text for text, _ in cells.line(0)] == [" ", " ", "漢", ""]
    assert [text for text, _ in cells.line(1)] == ["a", "b", " ", " "]


def test_pens_of_equal_look_are_one_object() -> None:
    case = PenCase(ColorSystem.EIGHT_BIT)
    one = case.for_style(Style(color="red", meta={"row": 1}, link="http://x"))
    assert one is case.for_style(Style(color="red", meta={"row": 2}))
    assert one.blank is case.default
    assert case.for_style(Style(blink=True)) is case.default
    assert case.for_style(None) is case.default


def test_caches_stay_bounded() -> None:
    case = PenCase(ColorSystem.TRUECOLOR)
    source = random.Random(1)
    for number in range(20_000):
        case.for_style(Style(color=f"rgb({source.randrange(256)},{source.randrange(256)},9)", meta={"n": number}))
    assert len(case._by_style) <= 4096
    assert len(case._by_look) <= 4097


def test_a_pen_that_the_case_forgot_changes_to_its_equal_without_a_code() -> None:
    case = PenCase(ColorSystem.TRUECOLOR)
    red = case.for_style(Style.parse("bold #ff0000"))
    for number in range(5000):
        red.change_to(case.for_style(Style(color=f"#{number:06x}")))
    again = case.for_style(Style.parse("bold #ff0000"))
    assert again is not red
    assert red.change_to(again) == ""
    assert case.for_style(Style()) is case.default


@given(st.sampled_from(STYLES), st.sampled_from(STYLES), st.sampled_from(STYLES))
def test_every_change_of_pen_lands_on_the_pen(first: Style, second: Style, third: Style) -> None:
    case = PenCase(ColorSystem.STANDARD)
    one, two, three = map(case.for_style, (first, second, third))
    cells = grid(3, 1)
    terminal = Terminal(3, 1)
    sequence = case.default.change_to(one) + "x" + one.change_to(two) + "x" + two.change_to(three) + "x"
    cells.resize(3, 1)
    cells.feed(0, 0, 3, [Segment("x", first), Segment("x", second), Segment("x", third)])
    terminal.feed("\x1b[H" + sequence)
    shown = [terminal.screen.buffer[0][x] for x in range(3)]
    reference = Terminal(3, 1)
    reference.feed(cells.emit((0, 0)))
    colours = [(each.bold, each.blink, each.italics, each.underscore, each.reverse, each.bg) for each in shown]
    again = [reference.screen.buffer[0][x] for x in range(3)]
    assert colours == [(each.bold, each.blink, each.italics, each.underscore, each.reverse, each.bg) for each in again]


def test_sixteen_colours_never_hide_text() -> None:
    case = PenCase(ColorSystem.STANDARD)
    for foreground, background in (("#0178d4", "#0000c0"), ("#e0e0e0", "#c8c8c8"), ("#101010", "#050505")):
        pen = case.for_style(Style(color=foreground, bgcolor=background))
        assert int(pen.foreground) + 10 != int(pen.background)
    same = case.for_style(Style(color="red", bgcolor="red"))
    assert int(same.foreground) + 10 == int(same.background)


def test_without_colours_only_attributes_are_left() -> None:
    pen = PenCase(None).for_style(Style(color="red", bgcolor="blue", bold=True, reverse=True))
    assert (pen.foreground, pen.background) == ("", "")
    assert Pen(0, "", "").change_to(pen) == "\x1b[1;7m"
