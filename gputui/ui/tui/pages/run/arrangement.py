"""The sections of a run's page: which are in view, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, get_args

from gputui.ui.tui.layout.columns import BOX_FROM_WIDTH
from gputui.ui.tui.pages.run.sections import SideSection, share_lines
from gputui.ui.tui.widgets.pane import Area, Pane
from gputui.ui.views.snapshot import RunPage

WIDE = BOX_FROM_WIDTH
"""Least width of a page with all sections side by side."""

Section = Literal["charts", "ranks", "log", "story", "params"]
SECTIONS: tuple[Section, ...] = get_args(Section)
BESIDE: tuple[Section, ...] = ("params", "ranks", "story")
"""The sections at the right of the charts, from above."""

LEAST_LOG_LINES = 5
"""Lines of the log on a low wide page: enough for the end of a traceback."""

MOST_SIDE_WIDTH = 96
"""Cells of the sections beside the charts; on a wider page the charts gain more from the rest."""


class Size(NamedTuple):
    """The cells of a section in a line, and its lines; with its frame."""

    width: int
    height: int


class MakeSections(Protocol):
    """Makes the sections at the side. Of those in ``opened`` everything is shown."""

    def __call__(self, width: int, opened: set[str]) -> Mapping[str, SideSection]: ...


class Arrangement(NamedTuple):
    """The sections in view.

    Attributes:
        sizes: the size of each section in view.
        sections: the content of the sections in view beside charts and log.
        upper: the lines of all sections above the log.
    """

    sizes: Mapping[Section, Size]
    sections: Mapping[str, SideSection]
    upper: int


NOTHING = Arrangement({}, {}, 0)


class Arranger(NamedTuple):
    """Arranges the sections of a page.

    Attributes:
        focus: the section that has the keyboard.
        frame: the cells that a section's frame or line at its left takes of its width, and of its height.
        make: makes the sections at the side.
    """

    page: RunPage
    focus: Section
    frame: int
    make: MakeSections

    def alone(self, size: Size) -> Arrangement:
        """The focused section alone, on a narrow page."""
        upper = 0 if self.focus == "log" else size.height
        return Arrangement({self.focus: size}, self.make(size.width - self.frame, {self.focus}), upper)

    def all(self, size: Size) -> Arrangement:
        """All sections, on a wide page: the log below the others."""
        log_height = max(LEAST_LOG_LINES + self.frame, size.height // 4)
        if self.focus == "log":
            log_height = max(log_height, min(size.height // 2, len(self.page.log.lines) + self.frame))
        if self.page.metric_names or not self.page.run.state.is_over or self.focus == "charts":
            return self._beside_charts(size, log_height)
        return self._without_charts(size, log_height)

    def _beside_charts(self, size: Size, log_height: int) -> Arrangement:
        """Charts, and at their side the other sections below each other."""
        upper = max(0, size.height - log_height)
        side = min(MOST_SIDE_WIDTH, size.width * 9 // 20)
        sections = self.make(side - 2, {self.focus})
        # What is left out elsewhere is shown where there is room.
        opened = self.make(side - 2, {*BESIDE})
        if sum(section.height + self.frame for section in opened.values()) <= upper:
            sections = opened
        needs: dict[str, int] = {name: sections[name].height + self.frame for name in BESIDE}
        heights = share_lines(needs, self.focus, upper)
        sizes: dict[Section, Size] = {"charts": Size(size.width - side, upper)}
        for name in BESIDE:
            sizes[name] = Size(side, heights[name])
        sizes["log"] = Size(size.width, log_height)
        return Arrangement(sizes, sections, upper)

    def _without_charts(self, size: Size, log_height: int) -> Arrangement:
        """The sections side by side: an ended run without metrics has no charts, and its ranks are of no interest."""
        names = [name for name in BESIDE if name != "ranks" or name == self.focus]
        side = size.width // len(names)
        sections = self.make(side - 2, {self.focus})
        highest = max(sections[name].height + self.frame for name in names)
        log_height = max(log_height, size.height - highest, size.height * 3 // 5)
        upper = max(0, size.height - log_height)
        sizes = dict.fromkeys(names, Size(side, upper))
        sizes[names[-1]] = Size(size.width - side * (len(names) - 1), upper)
        sizes["log"] = Size(size.width, log_height)
        return Arrangement(sizes, sections, upper)


class RunPanes:
    """The widgets of a run's page.

    Attributes:
        labels: tags and note of the run.
        banner: the sentence about the run's failure.
        tabs: the names of the sections, where only one is in view.
        sections: the pane of each section.
        middle: the place of all sections but the log.
        side: the place of the sections beside the charts.
    """

    def __init__(self, charts: Pane) -> None:
        self.labels = Pane(id="run-labels")
        self.banner = Pane(id="banner")
        self.tabs = Pane(id="tabs")
        self.sections: Mapping[Section, Pane] = {
            **{name: Pane(id=name) for name in (*BESIDE, "log")}, "charts": charts
        }  # fmt: skip
        self.side = Area(*(self.sections[name] for name in BESIDE), id="side")
        self.middle = Area(charts, self.side, id="middle")
        self._is_beside = True

    def place(self, arrangement: Arrangement) -> None:
        """Give the sections their places."""
        sizes = arrangement.sizes
        self.middle.display = arrangement.upper > 0
        self.middle.styles.height = arrangement.upper
        names = [name for name in BESIDE if name in sizes]
        self.side.display = bool(names)
        is_beside = "charts" in sizes or len(names) < 2
        if is_beside != self._is_beside:
            # Textual lays everything out again whenever this is set.
            self._is_beside = is_beside
            self.side.styles.layout = "vertical" if is_beside else "horizontal"
        for name, pane in self.sections.items():
            size = sizes.get(name, Size(0, 0))
            pane.display = min(size) > 0
            pane.styles.width = size.width
