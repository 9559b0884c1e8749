"""Options of nanoGPT: the globals that its configurator sets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gputui.profiles.init.script_options import Module, Option
from gputui.profiles.init.syntax import arithmetic, constant


def nanogpt_options(module: Module) -> Iterator[Option]:
    """``--name=value`` sets a global that is a literal."""
    if re.search(r"exec\(open\(.*configurator\.py", module.text) is None:
        return
    for node in module.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=assigned) if not name.startswith("_"):
                value = constant(assigned)
                if value is None:
                    value = arithmetic(assigned)
                if value is not None:
                    yield Option(f"--{name}", name, value)
