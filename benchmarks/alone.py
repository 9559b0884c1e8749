"""Running one measurement by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.fakenvml.build import BuildError


def alone(measure: Callable[..., dict[str, Any]]) -> None:
    """Take the measurement, for as many seconds as the first argument says, and print it as JSON."""
    try:
        found = measure(*map(float, sys.argv[1:2]))
    except (BuildError, ValueError) as error:
        sys.exit(f"benchmark: {error}")
    print(json.dumps(found, indent=2))
