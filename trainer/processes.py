"""Processes that this one starts for a part of its work."""

from __future__ import annotations

import os
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """Wait until the process that started this one ends, and end as well."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
