"""Random histories of runs against a model that knows what every checkpoint really holds.

    python -m tests.faults.courses --rounds 10000 --seed 1

Attempts end in any way, are restarted, rolled back and resumed by hand; folders are shared, by runs of one home or of
two, names are foreign, files and folders are cut short, rotated away and put there by others. The real ledger, store
and checks choose; after each choice the model says whether it is of this course, and the newest whole one of it.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import random
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from gputui.agent.lifecycle import checkpoint_survey
from gputui.core.config import Workspace, locate
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_search, checkpoint_writers
from gputui.recovery.attempt_steps import trouble_of
from gputui.recovery.checkpoint_ledger import NUMERIC_INCIDENTS
from gputui.recovery.checkpoint_scan import SETTLED_SECONDS
from gputui.recovery.checkpoint_search import CheckpointChoice, choose, for_person, surveyed
from gputui.recovery.checkpoints import look_in
from gputui.recovery.ledger_inputs import UNKNOWN_TROUBLE, WORKED_SECONDS, CheckpointSearch, FoundCheckpoint
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors import Executors
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store import checkpoints
from gputui.store.checkpoints import AFTER_END_SECONDS
from gputui.store.runs import Run, get_run
from tests.stores import open_store

WANTED = 3
# Of so many steps one is told, or their lines come at once.
EVERY = 7
BEGIN = 1_700_000_000.0
# Nobody else writes within the time that a file server's clock may be ahead.
PAUSE_SECONDS = 2 * AFTER_END_SECONDS
LAUNCH = Launch(("x",), {}, "/", 1.0)


def _archive(weights: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("weights", f"{weights:>40}")
    return buffer.getvalue()


@dataclass(frozen=True)
class Home:
    """One of the installations whose runs share a folder."""

    workspace: Workspace
    connection: sqlite3.Connection


@dataclass(eq=False)
class Content:
    """What one checkpoint really holds. ``attempt`` is 0 where no attempt of a run wrote it; ``loads``: a script can
    begin from it; ``is_shared``: another run lived when it was written; ``is_known``: its format can be checked;
    ``is_step_named``: its name tells its step; ``told``: how many lines its attempt had told before;
    ``counted``: its step as the lines count it."""

    run_id: str
    attempt: int
    at: float
    step: int
    is_whole: bool = True
    loads: bool = True
    is_shared: bool = False
    is_known: bool = True
    is_step_named: bool = False
    told: int = 0
    counted: int = 0


@dataclass(eq=False)
class ModelRun:
    """What is true of a run: the line of training that leads to where it stands, as (attempt, until when).

    ``base_step``: where its newest attempt began.

    ``lines``: it tells each step, every few steps, or its lines come in blocks without times. ``told``: of each
    attempt what came at once, as (step, whether the loss was a number). ``begins``: whether an attempt began anew.
    """

    record: Run
    home: Home
    folder: Path
    has_metrics: bool
    source_id: int = 0
    attempts: int = 0
    line: list[tuple[int, float]] = field(default_factory=list)
    base: Content | None = None
    excluded: set[Content] = field(default_factory=set)
    failed_starts: dict[Content, int] = field(default_factory=dict)
    lives: list[tuple[float, float]] = field(default_factory=list)
    lines: str = "each"
    told: dict[int, list[list[tuple[int, bool]]]] = field(default_factory=dict)
    unwritten: list[tuple[int, bool]] = field(default_factory=list)
    begins: dict[int, bool] = field(default_factory=dict)
    base_step: int = 0

    @property
    def run_id(self) -> str:
        return self.record.run_id

    def cut_to(self, content: Content) -> None:
        """The training goes back to this checkpoint."""
        if content is self.base:
            self.line = []
            return
        place = next(place for place, (number, _) in enumerate(self.line) if number == content.attempt)
        self.line = [*self.line[:place], (content.attempt, content.at)]


class LostError(AssertionError):
    """A choice that the model does not allow."""


class History:
    """One random history in a folder of its own."""

    def __init__(self, seed: int, folder: Path, homes: Sequence[Home]) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.folder = folder / "out"
        self.homes = homes
        self.now = BEGIN
        self.contents: dict[str, Content] = {}
        self.told: list[str] = []
        self.choices = self.written = 0
        self.training: dict[str, tuple[Iterator[tuple[str | None, int | None] | None], Content | None]] = {}
        self.chosen: dict[str, tuple[str, Content] | None] = {}
        chance = self.random
        self.is_folders = chance.random() < 0.3
        self.naming = chance.choice(["step", "epoch", "odd", "last", "slots"])
        self.keeps = chance.choice([0, 0, 2, 3])
        self.known = chance.choice([1.0, 1.0, 0.7])
        has_metrics = chance.random() < 0.8
        # The script counts its steps from 1 after each start. Names that tell nothing keep it from writing over others.
        self.counts_anew = self.naming == "odd" and chance.random() < 0.5
        self.runs = [self._run(place, has_metrics) for place in range(chance.choice([1, 1, 2]))]

    def _run(self, place: int, has_metrics: bool) -> ModelRun:
        folder = self.folder
        folder.mkdir(exist_ok=True)
        home = self.random.choice(self.homes)
        spec = RunSpec(
            name="job", launcher="python", program=("x.py",), python="/p", workdir="/",
            metrics=(MetricsSpec("jsonl", "/m"),) if has_metrics else (),
            checkpoints=CheckpointSpec(str(folder), "*", ("--resume", "{checkpoint}")),
        )  # fmt: skip
        run_id = f"job{self.seed}-{place}"
        with transaction(home.connection) as connection:
            sequence = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()[0]
            repository.insert_run(
                connection, run_id=run_id, sequence=sequence, name="job", spec=spec, params={}, now=self.now, actor="me"
            )
            source = connection.execute(
                "INSERT INTO metric_sources (run_id, path, format) VALUES (?, '/m', 'jsonl')", (run_id,)
            ).lastrowid
        record = get_run(home.connection, run_id)
        assert record is not None and source is not None
        lines = "each" if self.counts_anew else self.random.choice(["each", "each", "every", "blocks"])
        return ModelRun(record, home, folder, has_metrics, source, lines=lines)

    # --- the world ----------------------------------------------------------------------------------------------------

    def wall(self) -> float:
        return self.now

    def tell(self, text: str) -> None:
        self.told.append(f"{self.now - BEGIN:7.0f}  {text}")

    def name(self, step: int) -> str:
        chance = self.random
        stem = {
            "step": f"step_{step:06d}",
            "epoch": f"epoch={step // 10}-val_loss=0.{chance.randrange(100):02d}",
            "odd": f"{chance.randrange(1 << 30):x}",
            "last": chance.choice(["last", f"step_{step}"]),
            "slots": "slot.0",
        }[self.naming]
        return stem if self.is_folders else f"{stem}.pt"

    def write(self, path: Path, content: Content) -> None:
        """Bring it to the disk as it is; what is cut short looks so. All have one size, and no two the same weights."""
        self.written += 1
        whole = _archive(f"{self.written}")
        if path.is_dir():
            shutil.rmtree(path)
        if self.is_folders:
            path.mkdir()
            (path / "model.pt").write_bytes(whole if content.is_whole else whole[:-9])
            if content.loads:
                (path / "trainer_state.json").write_text("{}")
            for entry in (*path.iterdir(), path):
                os.utime(entry, (content.at, content.at))
        else:
            data = whole if content.is_known else f"a format of its own {self.written}".encode()
            path.write_bytes(data if content.is_whole else whole[:-9])
            os.utime(path, (content.at, content.at))
        self.contents[str(path)] = content

    def remove(self, path: str) -> None:
        del self.contents[path]
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    def rename(self, path: Path, name: str) -> None:
        target = path.with_name(name)
        if str(target) in self.contents:
            self.remove(str(target))
        path.rename(target)
        self.contents[str(target)] = self.contents.pop(str(path))

    def somebody_renames(self) -> None:
        """A person or a script gives one of them another name."""
        path = Path(self.random.choice(list(self.contents)))
        self.rename(path, f"{path.stem}.bak{path.suffix}")
        self.tell(f"somebody renames {path.name}")

    def rotate(self, folder: Path) -> None:
        """Free the newest slot: each checkpoint goes to the next one."""
        first = folder / self.name(0)
        for slot in (2, 1, 0):
            path = first.with_name(first.name.replace("0", str(slot)))
            if str(path) in self.contents:
                self.rename(path, first.name.replace("0", str(slot + 1)))

    def somebody_writes(self) -> None:
        """Another program, or a person, puts something there."""
        self.now += PAUSE_SECONDS
        # Where not each step is told, one of the same name might have been written again by the training.
        step = self.random.randrange(200) + (0 if all(run.lines == "each" for run in self.runs) else 1000)
        path = self.runs[0].folder / self.name(step)
        self.write(path, Content("", 0, self.now, step))
        self.tell(f"somebody writes {path.name}")
        self.now += PAUSE_SECONDS

    # --- what the model expects ---------------------------------------------------------------------------------------

    def expected(self, run: ModelRun) -> list[Content]:
        """The checkpoints of the run's training that can be gone on from, as they are to be taken."""
        there = [one for one in self.contents.values() if one.is_whole and one not in run.excluded]
        found = [
            content
            for number, until in run.line
            for content in sorted(there, key=lambda one: one.at)
            if (content.run_id, content.attempt) == (run.run_id, number)
            and content.at <= until
            and not content.is_shared
        ]
        if run.base is not None and run.base in there:
            found.insert(0, run.base)
        found.reverse()
        least = min((run.failed_starts.get(content, 0) for content in found), default=0)
        best = [content for content in found if run.failed_starts.get(content, 0) == least]
        # What cannot be checked comes behind what is whole, the newest of them first.
        return sorted(best, key=lambda content: not content.is_known)

    def check(self, run: ModelRun, choice: CheckpointChoice, wanted: int) -> None:
        self.choices += 1
        expected = self.expected(run)
        known = [content for content in expected if content.is_known]
        if len(known) >= wanted:
            # Enough that are whole: how many others are looked at on the way is of no consequence.
            expected = known[:wanted]
        taken = [self.contents[str(info.path)] for info in choice.usable]
        if [id(one) for one in (taken[:wanted] if len(known) >= wanted else taken)] != [id(one) for one in expected]:
            names = {content: Path(path).name for path, content in self.contents.items()}
            would, should = [info.path.name for info in choice.usable], [names[one] for one in expected]
            raise LostError(f"seed {self.seed}: {run.run_id} would take {would}, and should take {should}")

    # --- attempts -----------------------------------------------------------------------------------------------------

    def begin(self, run: ModelRun, base: Content | None, path: str | None) -> None:
        self.now += PAUSE_SECONDS
        run.attempts += 1
        number = run.attempts
        run.begins[number], run.unwritten = path is None, []
        with transaction(run.home.connection) as connection:
            repository.set_next_attempt(connection, run.run_id, params={}, resume_from=path, not_before=None)
            record = get_run(connection, run.run_id)
            assert record is not None
            repository.insert_attempt(connection, record, number=number, gpus=(), launch=LAUNCH, now=self.now)
            checkpoint_survey.attempt_begins(connection, record, number, run.folder)
            repository.set_attempt_started(connection, run.run_id, number, self.now)
            place = connection.execute("SELECT count(*) FROM metrics WHERE source_id = ?", (run.source_id,)).fetchone()[
                0
            ]
            connection.execute("INSERT INTO metric_boundaries VALUES (?, 0, ?, ?)", (run.source_id, place, number))
        run.lives.append((self.now, float("inf")))
        search = self.search(run)
        checkpoint_writers.write_record(search.home, run.run_id, search.attempts, run.folder, self.now)
        if base is None:
            run.line, run.base = [], None
        self.tell(f"{run.run_id} attempt {number} begins from {path}")

    def counted_from(self, run: ModelRun) -> int:
        """The step from which the lines of the newest attempt count."""
        return run.base_step if self.counts_anew else 0

    def note_step(self, run: ModelRun, step: int, *, is_sound: bool = True, is_last: bool = False) -> None:
        if not run.has_metrics:
            return
        step -= self.counted_from(run)
        told = run.told.setdefault(run.attempts, [])
        if run.lines != "every" or not told or is_last or step % EVERY == 0:
            run.unwritten.append((step, is_sound))
        if not run.unwritten or (run.lines == "blocks" and told and not is_last and len(run.unwritten) < EVERY):
            return
        told.append(run.unwritten)
        for line_step, line_is_sound in run.unwritten:
            place = run.home.connection.execute(
                "SELECT count(*) FROM metrics WHERE source_id = ?", (run.source_id,)
            ).fetchone()[0]
            data = {"loss": 1.0 if line_is_sound else "NaN"} | ({} if run.lines == "blocks" else {"time": self.now})
            run.home.connection.execute(
                "INSERT INTO metrics VALUES (?, 0, ?, ?, 0, ?, ?, ?)",
                (run.source_id, place, run.attempts, line_step, self.now, json.dumps(data)),
            )
            run.home.connection.execute(
                "UPDATE attempts SET first_step = coalesce(first_step, ?), last_step = ? "
                "WHERE run_id = ? AND number = ?",
                (line_step, line_step, run.run_id, run.attempts),
            )
        run.unwritten = []

    def may_be_bad(self, run: ModelRun, content: Content, bad: int) -> bool:
        """Whether a checkpoint may be of step ``bad`` or later, by what the lines and its name tell."""
        if content.is_step_named or run.lines == "each":
            return content.counted >= bad
        told = run.told.get(content.attempt, [])
        if content.told and told[content.told - 1][-1][0] >= bad:
            return True
        if content.told < len(told):
            following = told[content.told]
            return (following[-1][0] if run.lines == "blocks" else following[0][0] - 1) >= bad
        ends = [[block[-1][0] for block in run.told.get(number, [])[-9:]] for number in range(content.attempt, 0, -1)]
        widest = [max((later - earlier for earlier, later in itertools.pairwise(each)), default=None) for each in ends]
        # Attempts with one block tell nothing, however many they were.
        earlier_gaps = [gap for gap in widest[1:] if gap is not None][:3]
        gap = max((gap for gap in (widest[0], *earlier_gaps) if gap is not None), default=1)
        return told[-1][-1][0] + gap - 1 >= bad

    def trouble(self, run: ModelRun) -> int:
        """The first step that the lines tell to be bad; what may have been saved since the last sound one is left."""
        step = next(step for block in run.told[run.attempts] for step, is_sound in block if not is_sound)
        # What an attempt with a sound loss began from was sound, however its steps are counted.
        own = [one for block in run.told[run.attempts] for one, is_sound in block if is_sound and one < step]
        only_own = bool(own) or (self.counts_anew and not run.begins[run.attempts])
        sound = -1
        for number in range(run.attempts, 0, -1):
            known = [one for block in run.told.get(number, []) for one, is_sound in block if is_sound and one < step]
            if known or run.begins[number]:
                sound = max(known, default=-1)
                break
        for content in self.contents.values():
            first = run.attempts if only_own else 0
            is_own = content.run_id == run.run_id and first <= content.attempt <= run.attempts
            # What a person chose stays their choice.
            if is_own and content is not run.base and self.may_be_bad(run, content, sound + 1):
                run.excluded.add(content)
        return step

    def save(self, run: ModelRun, step: int, *, is_whole: bool, loads: bool) -> None:
        path = run.folder / self.name(step)
        if self.naming == "slots":
            self.rotate(run.folder)
        others = [life for other in self.runs if other is not run for life in other.lives]
        is_shared = any(begin <= self.now <= end + AFTER_END_SECONDS for begin, end in others)
        is_known = self.is_folders or not is_whole or self.random.random() < self.known
        content = Content(
            run.run_id, run.attempts, self.now, step, is_whole, loads, is_shared, is_known,
            path.name.startswith("step_"), len(run.told.get(run.attempts, [])), step - self.counted_from(run),
        )  # fmt: skip
        self.write(path, content)
        told = ["" if is_whole else ", cut", "" if loads else ", does not load", "" if is_known else ", unknown"]
        self.tell(f"{run.run_id} saves {path.name}{''.join(told)}")
        own = sorted(
            (path for path, one in self.contents.items() if one.run_id == run.run_id and one.attempt == run.attempts),
            key=lambda path: self.contents[path].at,
        )
        for old in own[: -self.keeps] if self.keeps else ():
            self.remove(old)

    def train(self, run: ModelRun, base: Content | None) -> Iterator[tuple[str | None, int | None] | None]:
        """What the script does until it ends, step by step; at last the kind of incident and its step, None where there
        is none."""
        chance = self.random
        if base is not None and not base.loads:
            yield chance.choice(["user_exception", "corrupt_checkpoint"]), None
            return
        if chance.random() < 0.15:
            yield chance.choice(["killed", "launch_failed", "cuda_oom"]), None
            return
        start = run.base_step = 0 if base is None else base.step
        steps = chance.randrange(1, 30)
        poison = start + chance.randrange(steps) + 1 if run.has_metrics and chance.random() < 0.2 else None
        every = chance.randrange(3, 9)
        if not run.has_metrics:
            # Without metrics nothing but time and checkpoints shows that it worked.
            self.now += WORKED_SECONDS
        self.go_on(run, base)
        for step in range(start + 1, start + steps + 1):
            self.now += chance.randrange(1, 4)
            self.note_step(run, step, is_sound=poison is None or step < poison)
            if step % every == 0 and self.naming == "slots" and chance.random() < 0.1:
                # Killed before the new one is there.
                self.rotate(run.folder)
                self.now += 2 * SETTLED_SECONDS
                yield "killed", None
                return
            if step % every == 0:
                self.now += 0.5
                self.save(run, step, is_whole=chance.random() > 0.1, loads=not self.is_folders or chance.random() > 0.1)
            if chance.random() < 0.05:
                self.survey(run)
            if self.contents and chance.random() < 0.02:
                self.somebody_renames()
            yield None
        self.now += 2 * SETTLED_SECONDS
        if poison is not None:
            self.note_step(run, start + steps, is_sound=False, is_last=True)
            yield "nan_loss", self.trouble(run)
        else:
            yield chance.choice([None, "killed", "user_exception", "interrupted"]), None

    def go_on(self, run: ModelRun, base: Content | None) -> None:
        """The attempt makes its first step: what lies beyond its base is left."""
        if base is not None:
            run.cut_to(base)
            run.failed_starts.pop(base, None)
        run.line.append((run.attempts, float("inf")))

    def search(self, run: ModelRun, ended_at: float | None = None) -> CheckpointSearch:
        found = checkpoint_survey.search_of(
            run.home.connection,
            run.home.workspace,
            self.record(run),
            self.now,
            executors=Executors(),
            ended_at=ended_at,
        )
        assert found is not None
        return found

    def survey(self, run: ModelRun) -> None:
        search = checkpoint_survey.search_of(
            run.home.connection, run.home.workspace, self.record(run), self.now, executors=Executors()
        )
        assert search is not None
        rows = surveyed(search, self.wall)
        with transaction(run.home.connection) as connection:
            checkpoint_survey.write(connection, search, rows, self.now)

    def record(self, run: ModelRun) -> Run:
        record = get_run(run.home.connection, run.run_id)
        assert record is not None
        return record

    def end(self, run: ModelRun, base: Content | None, kind: str | None, step: int | None) -> CheckpointChoice:
        """As the examination of an attempt does it."""
        run.lives[-1] = (run.lives[-1][0], self.now)
        number = run.attempts
        if (
            kind not in (None, *ledger.EXTERNAL_INCIDENTS)
            and base is not None
            and run.line[-1:] != [(number, float("inf"))]
        ):
            if kind == "corrupt_checkpoint":
                run.excluded.add(base)
            else:
                run.failed_starts[base] = run.failed_starts.get(base, 0) + 1
        self.tell(f"{run.run_id} attempt {number} ends: {kind} {step}")
        search = self.search(run, ended_at=self.now)
        rows = surveyed(search, self.wall)
        trouble = trouble_of(search, rows, number, step) if kind in NUMERIC_INCIDENTS else UNKNOWN_TROUBLE
        rows = ledger.attempt_ended(rows, search.attempts, number, kind, step, trouble)
        checkpoint_writers.write_record(search.home, run.run_id, search.attempts, run.folder, self.now)
        checkpoint_writers.remove_records(search.home, run.folder, self.now)
        choice = CheckpointChoice(rows) if kind is None else choose(rows, search.attempts, WANTED)
        with transaction(run.home.connection) as connection:
            repository.end_attempt(
                connection, run.run_id, number, state="failed" if kind else "stopped", ended_at=self.now, exit_record={}
            )
            if kind is not None:
                connection.execute(
                    "INSERT INTO incidents (run_id, attempt, at, kind, step, summary, fingerprint, evidence) "
                    "VALUES (?, ?, ?, ?, ?, '', '', '[]')",
                    (run.run_id, number, self.now, kind, step),
                )
            checkpoint_survey.write(connection, search, choice.rows, self.now)
        if kind is not None:
            self.check(run, choice, WANTED)
        return choice

    # --- what follows an end ------------------------------------------------------------------------------------------

    def recover(self, run: ModelRun, choice: CheckpointChoice, kind: str) -> str | None:
        """What recovery begins from: the best, or one further back."""
        usable = choice.usable
        if not usable:
            return None
        if kind == "nan_loss" and len(usable) > 1 and self.random.random() < 0.5:
            path = str(usable[1].path)
            before = tuple(checkpoints.of_run(run.home.connection, run.run_id))
            with transaction(run.home.connection) as connection:
                after = ledger.rolled_back(before, path, "was left by a rollback")
                checkpoints.save(connection, run.run_id, before, after, self.now)
            run.cut_to(self.contents[path])
            self.tell(f"{run.run_id} rolls back to {path}")
            return path
        return str(usable[0].path)

    def by_hand(self, run: ModelRun) -> str | None:
        """A person resumes."""
        search = checkpoint_survey.search_of(
            run.home.connection, run.home.workspace, self.record(run), self.now, executors=Executors()
        )
        assert search is not None
        path = None
        if self.contents and self.random.random() < 0.2:
            path, content = self.random.choice(list(self.contents.items()))
            if not content.is_whole:
                return None
        before = self.expected(run)
        choice = for_person(search, None if path is None else Path(path))
        if path is None:
            self.check(run, choice, 1)
        with transaction(run.home.connection) as connection:
            checkpoint_survey.write(connection, search, choice.rows, self.now)
        if path is None:
            return None if not choice.usable else str(choice.usable[0].path)
        self.tell(f"a person names {path}")
        named = self.contents[path]
        if named in before or (named not in run.excluded and named in run.failed_starts and self._is_of(run, named)):
            run.cut_to(named)
        else:
            run.line, run.base = [], named
        run.excluded.discard(named)
        run.failed_starts.pop(named, None)
        return path

    def _is_of(self, run: ModelRun, content: Content) -> bool:
        return content is run.base or any(
            (run.run_id, number) == (content.run_id, content.attempt) and content.at <= until
            for number, until in run.line
        )

    def play(self) -> None:
        """All of it. Raises LostError."""
        chance = self.random
        for _ in range(chance.randrange(3)):
            self.somebody_writes()
        for _ in range(chance.randrange(2, 12)):
            run = chance.choice(self.runs)
            self.advance(run, chance.choice([3, 1000, 1000]))
        for run in self.runs:
            if run.run_id in self.training:
                self.advance(run, 1000)

    def advance(self, run: ModelRun, steps: int) -> None:
        """Begin an attempt where none lives, and let it do so many steps; what follows where it ends."""
        if run.run_id not in self.training:
            path, base = self.chosen.get(run.run_id) or (None, None)
            if path is not None and self.contents.get(path) is not base:
                # Somebody else wrote it again meanwhile.
                path = self.by_hand(run)
                base = None if path is None else self.contents[path]
            self.begin(run, base, path)
            self.training[run.run_id] = (self.train(run, base), base)
        training, base = self.training[run.run_id]
        ended = next((said for said in itertools.islice(training, steps) if said is not None), None)
        if ended is None:
            return
        del self.training[run.run_id]
        kind, step = ended
        choice = self.end(run, base, kind, step)
        self.now += PAUSE_SECONDS
        what = self.random.random()
        if what < 0.15:
            path = None  # a person restarts it
        elif kind is None or what < 0.35:
            path = self.by_hand(run)
        else:
            path = self.recover(run, choice, kind)
        self.chosen[run.run_id] = None if path is None else (path, self.contents[path])
        # What a stranger writes while an attempt lives looks like the attempt's own.
        if self.random.random() < 0.15 and not self.training:
            self.somebody_writes()
        if self.contents and self.random.random() < 0.15:
            self.somebody_renames()


def play(rounds: int, seed: int, folder: Path, tell: Callable[[str], None] = lambda _: None) -> int:
    """So many histories; how many choices were checked. Raises LostError."""
    homes = [_home(folder / name) for name in ("home", "other")]
    choices = 0
    for place in range(rounds):
        place_of_history = folder / f"history-{place}"
        place_of_history.mkdir()
        history = History(seed + place, place_of_history, homes)
        try:
            with patch.object(checkpoint_search, "look_in", _without_inode_times):
                history.play()
        except Exception as error:
            error.add_note("\n".join([f"seed {history.seed}", *history.told]))
            raise
        choices += history.choices
        shutil.rmtree(place_of_history)
        for home in homes:
            home.connection.execute("DELETE FROM runs")
        if place % 1000 == 999:
            tell(json.dumps({"histories": place + 1, "choices": choices}))
    for home in homes:
        home.connection.close()
    return choices


def _home(folder: Path) -> Home:
    workspace = locate(folder, {})
    workspace.create()
    connection = open_store(workspace.database)
    connection.execute("PRAGMA synchronous = OFF")
    return Home(workspace, connection)


def _without_inode_times(folder: Path, pattern: str) -> list[FoundCheckpoint]:
    """What lies there. The times of a history are made up, which those of inodes cannot be."""
    return [one._replace(changed_ns=None) for one in look_in(folder, pattern)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        choices = play(options.rounds, options.seed, Path(folder), tell=lambda text: print(text, flush=True))
    print(f"{options.rounds} histories, {choices} choices, each the newest whole checkpoint of its course")


if __name__ == "__main__":
    main()
