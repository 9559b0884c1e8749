"""What a run's page keeps of its story between two looks."""

from __future__ import annotations

from contextlib import closing

from gputui.config import Workspace
from gputui.store.database import open_reader
from gputui.store.run_history import read_decisions, read_incidents
from gputui.store.runs import find_run
from gputui.tui.data.run_details import StoryReader
from tests.tui.filling import Filler

RUN = "vit-1"


def test_a_story_goes_on_and_what_is_settled_is_not_read_again(filler: Filler, workspace: Workspace) -> None:
    filler.run(RUN)
    filler.attempt(RUN, 1)
    for number in range(3):
        filler.incident(RUN, 1, f"kind_{number}", f"incident {number}")
    reader = StoryReader()
    statements: list[str] = []
    with closing(open_reader(workspace.database)) as connection:

        def look() -> None:
            run = find_run(connection, RUN)
            incidents, decisions = reader.read(connection, run)
            assert list(incidents) == read_incidents(connection, RUN)
            assert list(decisions) == read_decisions(connection, RUN)

        look()
        # A decision is told what became of it later.
        filler.connection.execute("UPDATE decisions SET outcome = 'recovered' WHERE decision_id < 3")
        look()
        filler.incident(RUN, 1, "kind_3", "incident 3")
        filler.connection.execute("UPDATE decisions SET outcome = 'recovered' WHERE decision_id = 3")
        look()
        run = find_run(connection, RUN)
        connection.set_trace_callback(statements.append)
        reader.read(connection, run)
        connection.set_trace_callback(None)
        assert any("incident_id > 4" in text for text in statements)
        assert any("decision_id > 3" in text for text in statements)
        filler.run("other-1")
        assert reader.read(connection, find_run(connection, "other-1")) == ((), ())
        look()
