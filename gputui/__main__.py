"""`python -m gputui`."""

from gputui.ui.cli.main import entry

entry()
