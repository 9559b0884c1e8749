"""Running measurements from the command line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.fakenvml.build import BuildError


def alone(measure: Callable[..., dict[str, Any]]) -> None:
    """Take the measurement, for as many seconds as the first argument says, and print it as JSON."""
    end_tidily()
    try:
        figures = measure(*map(float, sys.argv[1:2]))
    except (BuildError, ValueError) as error:
        sys.exit(f"benchmark: {error}")
    print(json.dumps(figures, indent=2))


def end_tidily() -> None:
    """From now on a signal that asks the process to end unwinds it, so that each scene takes down what it set up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
