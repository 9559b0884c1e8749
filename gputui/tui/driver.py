"""The terminal's modes that are ours: set when the screen takes the terminal, taken back whenever it lets go of it, be
it at the end, for Ctrl-Z or for another program."""

from __future__ import annotations

from typing import Protocol, cast

from textual.drivers.linux_driver import LinuxDriver


class ModeKeeper(Protocol):
    """The app, as the driver needs it."""

    def modes_on(self) -> str:
        """What to write when the terminal was taken."""

    def modes_off(self) -> str:
        """What to write before it is given back."""


class TerminalDriver(LinuxDriver):
    """Textual's driver with the app's own modes around its own."""

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        # Without a writer the terminal was not to be had: a job in the background, asleep again.
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.write(cast("ModeKeeper", self._app).modes_on())

    def stop_application_mode(self) -> None:
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.write(cast("ModeKeeper", self._app).modes_off())
        super().stop_application_mode()
