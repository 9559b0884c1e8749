"""The two grids and the emitter alone: right on any sequence of changes, and short."""

from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from gputui.ui.tui.terminal.grid import CellGrid
from gputui.ui.tui.terminal.pens import Pen, PenCase
from tests.ui.tui.emulator import Terminal

LOOKS = ["", "bold", "dim", "bold dim", "italic underline", "reverse", "strike", "red", "red on blue", "on blue"]
STYLES = [Style.parse(look) for look in LOOKS]
PIECES = st.lists(
    st.tuples(st.text(st.sampled_from("ab 漢é█⣿\x1b\u0301👩\u200d"), max_size=6), st.sampled_from(STYLES)), max_size=5
)
CHANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 12), PIECES), max_size=12)


def grid(width: int = 12, height: int = 4, system: ColorSystem | None = ColorSystem.EIGHT_BIT) -> CellGrid:
    grid = CellGrid(PenCase(system))
    grid.resize(width, height)
    return grid


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


def test_no_sequence_inside_of_text_is_written() -> None:
    hostile = (
        "\x1b[2J\x1b[H gone",
        "\x1b]0;owned\x07title",
        "\x1b]52;c;ZWNobw==\x07",
        "\x1bP1;1|\x1b\\",
        "\x9b2J\x9d0;x\x9c",
        "\x1b[6n\x05",
        "a\rb\bc\x07d\x7f\x00e",
        "\u202eevil\u202c\u2066x\u2069\u200e\u200f\u061c",
        "zero\u200bwidth\ufeff\u2060",
        "lone \udc80 surrogate",
        "e" + "\u0335" * 40,
    )
    signs = ("\x1b]", "\x1bP", "\x1b[2J", "\x1b[6n", *"\x05\x07\x7f\x00\x90\x9b\x9c\x9d\u202e\u2066\u200b\ufeff\r")
    for text in hostile:
        cells = grid(40, 1)
        first = cells.emit((0, 0))
        put(cells, 0, 0, text)
        written = first + cells.emit((39, 0))
        terminal = Terminal(40, 1)
        terminal.feed(written)
        assert terminal.wrong_cells(cells) == [], ascii(text)
        written = written.removeprefix(first).encode().decode()
        assert [sign for sign in signs if sign in written] == [], ascii(text)


def test_a_terminal_that_shrinks_while_a_frame_is_put_off_gets_what_is_left() -> None:
    cells = grid(12, 4)
    cells.emit((0, 0))
    put(cells, 3, 0, "the last line")
    cells.resize(12, 2)
    put(cells, 1, 0, "now the last")
    terminal = Terminal(12, 2)
    terminal.feed(cells.emit((0, 0)))
    assert terminal.lines == [" " * 12, "now the last"]
    assert not cells.is_pending


def test_an_unknown_terminal_is_erased_and_blanks_are_not_written() -> None:
    cells = grid(80, 24)
    put(cells, 0, 0, "x")
    first = cells.emit((0, 0))
    assert first == "\x1b[m\x1b[2J\x1b[Hx\b"
    cells.mark_unknown()
    assert cells.emit((0, 0)) == first


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
