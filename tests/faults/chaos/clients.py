"""Commands that are sent at any moment, also where no agent answers, and what each said became of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from subprocess import CompletedProcess
from typing import Any

from tests.machines import Machine

SENT_AT_ONCE = 4
# Longer than a command waits for its answer.
CLIENT_SECONDS = 180.0

Done = Callable[["CompletedProcess[str]"], None]


class Clients:
    """Sends commands in threads. ``accepted`` and ``refused`` have the names of the runs whose launch was; ``removed``
    the ids of runs that were removed."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self.machine = machine
        self.chance = chance
        self.accepted: dict[str, str] = {}
        self.refused: set[str] = set()
        self.removed: set[str] = set()
        # Names of launches whose outcome their clients could not learn.
        self.undecided: set[str] = set()
        self.launches = 0
        # Run name → kind of profile.
        self.kinds: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(SENT_AT_ONCE + 1)
        self._sent: list[tuple[tuple[str, ...], Future[CompletedProcess[str]], Done]] = []

    @property
    def is_busy(self) -> bool:
        return len(self._sent) >= SENT_AT_ONCE

    def is_sending(self, verb: str) -> int:
        """The number of such commands that have not been answered."""
        return sum(arguments[0] == verb for arguments, _, _ in self._sent)

    def sent_about(self, names: set[str]) -> bool:
        """Return whether a command about runs of these names has not been answered."""
        return any({word.rpartition("-")[0] or word for word in arguments} & names for arguments, _, _ in self._sent)

    def send(self, *arguments: str, then: Done = lambda _: None) -> None:
        """Begin a command; ``then`` gets how it ended, in the thread that calls `turn`."""
        future = self._pool.submit(self.machine.call, *arguments, timeout=CLIENT_SECONDS)
        self._sent.append((arguments, future, then))

    def turn(self) -> None:
        """Take the answers that have come. Raises AssertionError where one is a traceback."""
        for entry in [entry for entry in self._sent if entry[1].done()]:
            arguments, future, then = entry
            self._sent.remove(entry)
            done = future.result()
            assert "Traceback" not in done.stderr, (arguments, done.stderr)
            then(done)

    def finish(self) -> bool:
        """Return whether all commands were answered."""
        self.turn()
        return not self._sent

    # --- the commands -------------------------------------------------------------------------------------------------

    def launch(self, profile: str, *more: str, kind: str = "") -> None:
        """Launch a run under a name of its own."""
        name = f"run{self.launches}"
        self.kinds[name] = kind
        self.launches += 1

        def note(done: CompletedProcess[str]) -> None:
            if done.returncode == 0:
                self.accepted[name] = json.loads(done.stdout)["id"]
            elif "may still be carried out" in done.stderr:
                self.undecided.add(name)
            else:
                self.refused.add(name)

        self.send("run", profile, "--name", name, *more, "--json", then=note)

    def remove(self, run_id: str) -> None:
        def note(done: CompletedProcess[str]) -> None:
            if done.returncode == 0:
                self.removed.add(run_id)

        self.send("rm", run_id, then=note)

    def restart(self, run_id: str) -> None:
        self.send("restart", run_id)

    def resume(self, run_id: str) -> None:
        self.send("resume", run_id, "--set", f"steps={self.chance.randrange(40, 120)}")

    # --- what must hold -----------------------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """Every run that was launched and not removed."""
        return [run_id for run_id in self.accepted.values() if run_id not in self.removed]

    def check_launches(self) -> None:
        """Raises AssertionError where a launch made another number of runs than its client was told."""
        run_ids: dict[str, list[str]] = {}
        for run_id, name in self.machine.rows("SELECT run_id, name FROM runs"):
            if name not in self.undecided:
                run_ids.setdefault(name, []).append(run_id)
        expected = {name: [run_id] for name, run_id in self.accepted.items() if run_id not in self.removed}
        assert run_ids == expected, {name: run_ids.get(name) for name in run_ids.keys() ^ expected.keys()}
        folders = {path.name for path in self.machine.workspace.runs.iterdir() if path.is_dir()}
        recorded = {row[0] for row in self.machine.rows("SELECT run_id FROM runs")}
        strays = {
            name: sorted(map(str, self.machine.workspace.run_dir(name).rglob("*"))) for name in folders - recorded
        }
        assert folders == recorded, (strays, recorded - folders)

    def remains(self) -> dict[str, Any]:
        """The remains of removed runs (by table, the lines of metrics, folders), and of launches
        that nobody was asked for."""
        remains: dict[str, Any] = {}
        for (table,) in self.machine.rows(
            "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c ON c.name = 'run_id' "
            "WHERE m.type = 'table' AND m.name NOT IN ('commands', 'former_neighbours')"
        ):
            run_ids = {row[0] for row in self.machine.rows(f"SELECT DISTINCT run_id FROM {table}")}
            if removed := run_ids & self.removed:
                remains[table] = sorted(removed)
        for (table,) in self.machine.rows(
            "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c ON c.name = 'source_id' "
            "WHERE m.type = 'table'"
        ):
            ((count,),) = self.machine.rows(
                f"SELECT count(*) FROM {table} WHERE source_id NOT IN "
                "(SELECT source_id FROM metric_sources WHERE run_id IS NOT NULL)"
            )
            if count:
                remains[f"{table} without a run"] = count
        tickets_of_commands = {
            json.loads(row[0]).get("ticket") for row in self.machine.rows("SELECT args FROM commands")
        }
        state = self.machine.workspace.state
        # The agent keeps the tickets of commands for an hour.
        if tickets := [path.name for path in (state / "inbox").glob("*") if path.stem not in tickets_of_commands]:
            remains["inbox"] = tickets
        if folders := [path.name for path in (state / "removed").glob("*")]:
            remains["removed"] = folders
        return remains
