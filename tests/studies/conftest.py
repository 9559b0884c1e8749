"""Studies that begin on a home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from gputui.core.config import Workspace
from gputui.studies.spec import StudySpec
from tests.studies.study_home import StudyHome

Begin = Callable[[StudySpec], StudyHome]


@pytest.fixture
def begin(workspace: Workspace) -> Iterator[Begin]:
    """Begin a study on a home of its own."""
    with ExitStack() as stack:
        yield lambda spec: stack.enter_context(closing(StudyHome(workspace, spec)))
