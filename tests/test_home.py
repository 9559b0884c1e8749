"""Which home a command means when it is not told."""

from __future__ import annotations

from pathlib import Path

from gputui.config import locate, own_checkout

CHECKOUT = Path(__file__).parent.parent.resolve()


def test_a_checkout_with_a_venv_of_its_own_is_its_own_home() -> None:
    assert own_checkout(str(CHECKOUT / ".venv")) == CHECKOUT
    for elsewhere in ("/usr", str(CHECKOUT), "/home/anna/.venv"):
        assert own_checkout(elsewhere) is None


def test_what_is_said_goes_before_it() -> None:
    checkout, environ = Path("/checkout"), {"HOME": "/h", "GPUTUI_HOME": "/said"}
    assert locate("/given", environ, checkout=checkout).state == Path("/given/state")
    assert locate(None, environ, checkout=checkout).state == Path("/said/state")
    assert locate(None, {"HOME": "/h"}, checkout=checkout).state == Path("/checkout/state")
    assert locate(None, {"HOME": "/h"}).state == Path("/h/.local/state/gputui")
