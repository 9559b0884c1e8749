"""All of gputui, for the server that forks command lines and screens."""

import contextlib
import pkgutil
from importlib import import_module

import gputui

for _module in pkgutil.walk_packages(gputui.__path__, "gputui."):
    if not _module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # of a package that is not installed
            import_module(_module.name)
