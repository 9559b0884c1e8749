"""Fails when a name of Textual moved that the display layer relies on and that nobody promised to keep.

Then: read what changed in Textual, correct gputui/tui/terminal/layer.py, and only then the pin in pyproject.toml.
"""

import inspect
import io
import re
from pathlib import Path

import textual
from textual._compositor import ChopsUpdate, Compositor, LayoutUpdate
from textual._parser import Parser
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.driver import Driver
from textual.drivers._writer_thread import WriterThread
from textual.drivers.headless_driver import HeadlessDriver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.screen import Screen

from gputui.tui.terminal import layer

ROOT = Path(__file__).parents[3]


def test_the_version_is_the_one_that_was_read() -> None:
    assert textual.__version__ == "8.2.8"
    assert '"textual==8.2.8"' in (ROOT / "pyproject.toml").read_text()


def test_only_the_layer_and_the_driver_use_private_names_of_textual() -> None:
    pattern = re.compile(r"from textual[\w.]*\._|import textual\._|self\._(?:driver|batch_count|sync_available)\b")
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gputui").rglob("*.py")
        if pattern.search(path.read_text())
    }
    assert users == {"gputui/tui/terminal/layer.py", "gputui/tui/terminal/driver.py"}


def test_the_screen_hands_its_updates_to_display_and_nobody_else_does() -> None:
    assert (
        str(inspect.signature(App._display))
        == "(self, screen: 'Screen', renderable: 'RenderableType | None') -> 'None'"
    )
    assert "app._display(self, update)" in inspect.getsource(Screen._compositor_refresh)
    package = Path(textual.__file__).parent
    callers = [path.name for path in package.rglob("*.py") if re.search(r"\._display\(", path.read_text())]
    assert callers == ["screen.py"]


def test_updates_have_the_shape_that_is_taken_in() -> None:
    assert str(inspect.signature(LayoutUpdate.__init__)) == (
        "(self, strips: 'list[Iterable[Strip]]', region: 'Region') -> 'None'"
    )
    assert str(inspect.signature(ChopsUpdate.__init__)) == (
        "(self, chops: 'Sequence[Mapping[int, Strip | None]]', spans: 'list[tuple[int, int, int]]', "
        "chop_ends: 'list[list[int]]') -> 'None'"
    )
    assert "chop_ends = [cut_set[1:] for cut_set in self.cuts]" in inspect.getsource(Compositor.render_partial_update)
    assert "chop.values()" in inspect.getsource(Compositor.render_full_update)


async def test_the_app_has_the_names_that_are_used() -> None:
    app: App[None] = App()
    for name in layer.PRIVATE_NAMES["app"]:
        assert hasattr(app, name), name
    async with app.run_test(size=(20, 5)):
        assert app._running is True
        assert app._closed is False
        assert app._batch_count == 0
        assert app._sync_available is False
        assert isinstance(app._driver, HeadlessDriver)
        assert not hasattr(app._driver, "_writer_thread")
        assert app._size == Size(20, 5)
        with app.batch_update():
            assert app._batch_count == 1
    source = inspect.getsource(App._on_resize)
    assert "if self._size == event.size:\n            return" in source


def test_the_driver_writes_through_a_queue_that_can_be_looked_at() -> None:
    assert "self._writer_thread: WriterThread | None = None" in inspect.getsource(LinuxDriver.__init__)
    assert "self._writer_thread = WriterThread(" in inspect.getsource(LinuxDriver.start_application_mode)
    assert "send_size_event()" in inspect.getsource(LinuxDriver.start_application_mode)
    writer = WriterThread(io.StringIO())
    assert writer._queue.qsize() == 0
    assert not writer.is_alive()
    writer.write("x")
    assert writer._queue.qsize() == 1


def test_keys_are_read_by_a_thread_that_the_driver_can_leave_out() -> None:
    assert "self.run_input_thread()" in inspect.getsource(LinuxDriver._run_input_thread)
    assert "target=self._run_input_thread" in inspect.getsource(LinuxDriver.start_application_mode)
    assert "self.disable_input()" in inspect.getsource(LinuxDriver.stop_application_mode)
    assert "self._loop = asyncio.get_running_loop()" in inspect.getsource(Driver.__init__)
    assert issubclass(XTermParser, Parser)
    parser = XTermParser()
    assert parser._timeout_time is None
    assert not list(parser.feed("\x1b"))
    assert parser._timeout_time is not None
