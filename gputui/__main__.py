"""The console script `gputui`, and `python -m gputui`."""

import gc


def entry() -> None:
    """Run the command line."""
    # Imported modules are no garbage: to look for some among them takes a tenth of a start.
    gc.disable()
    from gputui.ui.main import entry as run

    gc.enable()
    run()


if __name__ == "__main__":
    entry()
