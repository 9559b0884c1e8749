"""Random histories of runs against a model that knows what every checkpoint really holds.

    python -m tests.faults.lineages --rounds 10000 --seed 1

Attempts end in any way, with a sound loss or a NaN, are restarted, rolled back and resumed by hand; two runs share a
folder; clocks of files are false; checkpoints are cut short, copied, touched, renamed, rotated away and put there by
others; the agent is away; the database is restored from a backup. The real ledger, store and checks choose; after each
choice the model says whether it is of this lineage, and the newest whole one of it.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import random
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.start_conditions import start_check
from gputui.core.config import locate
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.choices import CheckpointChoice, choose, for_person
from gputui.recovery.checkpoints.resumable import WORKED_SECONDS
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed, unsound_loss_of
from gputui.recovery.kinds import KINDS
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store import checkpoints
from gputui.store.rows import insert, named_rows
from gputui.store.runs import Run, get_run
from tests.homes import Home, add_boundary, add_line, add_run, add_source

WANTED = 3
# One of so many steps has a line, or the lines of so many steps come together.
EVERY = 7
BEGIN = 1_700_000_000.0
PAUSE_SECONDS = 10.0
LAUNCH = Launch(("x",), {}, "/", 1.0)


@dataclass(eq=False)
class Content:
    """The real content of a checkpoint. ``attempt`` is 0 where no attempt of a run wrote it;
    ``loads``: a script can begin from it; ``is_known``: its format can be checked; ``is_named``:
    its name tells its step; ``counted``: its step as the lines count it; ``is_poisoned``: it holds
    a NaN."""

    run_id: str
    attempt: int
    step: int
    is_whole: bool = True
    loads: bool = True
    is_known: bool = True
    is_named: bool = False
    counted: int = 0
    is_poisoned: bool = False


@dataclass(eq=False)
class ModelRun:
    """The true lineage of a run.

    ``line``: the contents of the lineage, as they were seen; ``unclear``: those that may be cast out, because the lines
    leave it open whether they are sound; ``growing``: of unknown format, seen once alone at the end;
    ``chosen_by_person``: those that a person named; ``first_seen_at``: when the agent saw each first;
    ``written_lines``: of each attempt the time, the step and whether the loss was finite; ``lives``: when its attempts
    lived.
    """

    record: Run
    folder: Path
    has_metrics: bool
    lines: str
    source_id: int = 0
    attempts: int = 0
    line: list[Content] = field(default_factory=list)
    base: Content | None = None
    excluded: set[Content] = field(default_factory=set)
    unclear: set[Content] = field(default_factory=set)
    growing: set[Content] = field(default_factory=set)
    chosen_by_person: set[Content] = field(default_factory=set)
    failed_starts: dict[Content, int] = field(default_factory=dict)
    first_seen_at: dict[Content, float] = field(default_factory=dict)
    scanned_at: float = 0.0
    has_worked: bool = False
    is_alive: bool = False
    lives: list[list[float]] = field(default_factory=list)
    written_lines: dict[int, list[tuple[float, int, bool]]] = field(default_factory=dict)
    unwritten: list[tuple[int, bool]] = field(default_factory=list)
    counted_from: int = 0

    @property
    def run_id(self) -> str:
        return self.record.run_id


class LostError(AssertionError):
    """A choice that the model does not allow."""


class History:
    """One random history of runs in a home, which saves in a folder of its own."""

    def __init__(self, seed: int, folder: Path, home: Home) -> None:
        self.seed = seed
        self.random = chance = random.Random(seed)
        self.folder = folder / "out"
        self.workspace = home.workspace
        self.connection = home.connection
        self.context = AgentContext.of(self.connection, self.workspace, wake=lambda: None, now=lambda: self.now)
        self.now = BEGIN
        self.contents: dict[str, Content] = {}
        self.journal: list[str] = []
        self.choices = self.written = 0
        self.training: dict[str, tuple[Iterator[tuple[str | None, int | None] | None], Content | None]] = {}
        self.chosen: dict[str, tuple[str, Content] | None] = {}
        self.is_folders = chance.random() < 0.3
        self.naming = chance.choice(["step", "step", "epoch", "odd", "last", "slots"])
        self.clock = chance.choice(["true", "true", "ahead", "behind", "frozen", "any"])
        self.keeps = chance.choice([0, 0, 2, 3])
        self.known = chance.choice([1.0, 1.0, 0.7])
        has_metrics = chance.random() < 0.8
        # The script counts its steps anew after each start; names without a step keep it from overwriting files.
        self.counts_anew = self.naming == "odd" and chance.random() < 0.5
        # Files that appear between two scans have no order if neither name nor time tells their step.
        is_told = self.naming == "step" or (self.naming != "last" and self.clock in ("true", "ahead", "behind"))
        self.looks = chance.choice([0.05, 0.3]) if is_told and self.naming != "slots" else 1.0
        self.runs = [self._run(place, has_metrics) for place in range(chance.choice([1, 1, 2]))]

    def _run(self, place: int, has_metrics: bool) -> ModelRun:
        self.folder.mkdir(exist_ok=True)
        metrics = (MetricsSpec("jsonl", "/m"),) if has_metrics else ()
        spec = RunSpec(
            name="job", launcher="python", program=("x.py",), python="/p", workdir="/",
            metrics=metrics, loss="loss",
            checkpoints=CheckpointSpec(str(self.folder), "*", ("--resume", "{checkpoint}")),
        )  # fmt: skip
        run_id = f"job{self.seed}-{place}"
        record = add_run(self.connection, run_id, spec=spec, now=self.now)
        source = add_source(self.connection, run_id)
        lines = "each" if self.counts_anew else self.random.choice(["each", "each", "every", "blocks"])
        return ModelRun(record, self.folder, has_metrics, lines, source)

    # --- the world ----------------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        self.journal.append(f"{self.now - BEGIN:7.1f}  {text}")

    def name(self, step: int) -> str:
        chance = self.random
        stem = {
            "step": f"step_{step:06d}",
            "epoch": f"epoch={step // 10}-val_loss=0.{chance.randrange(100):02d}",
            "odd": "".join(chance.choices("abcdfghijkl", k=8)),
            "last": chance.choice(["last", f"step_{step}"]),
            "slots": "slot.0",
        }[self.naming]
        return stem if self.is_folders else f"{stem}.pt"

    def file_time(self) -> float:
        """The time by the clock of the file system."""
        shift = {"true": 0.0, "ahead": 3600.0, "behind": -120.0, "frozen": BEGIN - self.now}
        return self.now + shift.get(self.clock, self.random.uniform(-5000.0, 5000.0))

    def write(self, path: Path, content: Content) -> None:
        """Write a content, cut short where it is not whole. All have one size, and no two the same weights."""
        self.written += 1
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("weights", f"{self.written:>40}")
        whole = buffer.getvalue()
        if path.is_dir():
            shutil.rmtree(path)
        if self.is_folders:
            path.mkdir()
            (path / "model.pt").write_bytes(whole if content.is_whole else whole[:-9])
            if content.loads:
                (path / "optimizer.txt").write_text("{}")
        else:
            data = whole if content.is_known else f"a format of its own {self.written}".encode()
            path.write_bytes(data if content.is_whole else whole[:-9])
        self.date(path, self.file_time())
        self.contents[str(path)] = content

    def date(self, path: Path, at: float) -> None:
        for entry in (*(path.iterdir() if path.is_dir() else ()), path):
            os.utime(entry, (at, at))

    def remove(self, path: str) -> None:
        del self.contents[path]
        shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()

    def rename(self, path: Path, name: str) -> None:
        target = path.with_name(name)
        if str(target) in self.contents:
            self.remove(str(target))
        path.rename(target)
        self.contents[str(target)] = self.contents.pop(str(path))

    def rotate(self) -> None:
        """Free the newest slot: each checkpoint goes to the next one."""
        first = self.folder / self.name(0)
        for slot in (2, 1, 0):
            path = first.with_name(first.name.replace("0", str(slot)))
            if str(path) in self.contents:
                self.rename(path, first.name.replace("0", str(slot + 1)))

    def somebody_moves(self, run: ModelRun | None = None) -> None:
        """Let a person or a script rename, touch or copy a checkpoint, of a run's lineage where one is given."""
        paths = [
            Path(path)
            for path, content in self.contents.items()
            if run is None or content in run.line or content in run.excluded
        ]
        if not paths:
            return
        path = self.random.choice(paths)
        what = self.random.choice(["rename", "touch", "copy", "copy away and back"])
        copy = path.with_name(self.random.choice(["best", f"{path.stem}.bak"]) + path.suffix)
        if what == "rename":
            self.rename(path, f"{path.stem}.bak{path.suffix}")
        elif what == "touch":
            self.date(path, self.now + self.random.uniform(-5000.0, 5000.0))
        elif what == "copy" and copy != path:
            if str(copy) in self.contents:
                self.remove(str(copy))
            shutil.copytree(path, copy) if path.is_dir() else shutil.copyfile(path, copy)
            self.contents[str(copy)] = self.contents[str(path)]
        else:
            away = path.with_name(".away")
            shutil.copytree(path, away) if path.is_dir() else shutil.copyfile(path, away)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            away.rename(path)
        self.tell(f"somebody: {what} {path.name} {copy.name}")

    def somebody_writes(self) -> None:
        """Another program, or a person, puts something there."""
        # Where not each step has a line, the training itself might have written a file of this name again.
        step = self.random.randrange(200) + (0 if all(run.lines == "each" for run in self.runs) else 1000)
        path = self.folder / self.name(step)
        self.write(path, Content("", 0, step))
        self.tell(f"somebody writes {path.name}")

    # --- what the model expects ---------------------------------------------------------------------------------------

    def saw(self, run: ModelRun) -> None:
        """Note that the agent has looked: new contents are of the living attempt, unless another run lived."""
        others = [life for neighbour in self.runs if neighbour is not run for life in neighbour.lives]
        is_shared = any(end >= run.scanned_at for _, end in others)
        # What the end of an attempt may have cut short stays in doubt.
        of_ended = {content for content in run.growing if not run.is_alive or content.attempt != run.attempts}
        run.growing = of_ended
        fresh = [content for content in dict.fromkeys(self.contents.values()) if content not in run.first_seen_at]
        for content in sorted(fresh, key=lambda content: (content.attempt, content.step)):
            run.first_seen_at[content] = self.now
            run.growing = of_ended | ({content} if not content.is_known else set())
            if run.is_alive and not is_shared:
                run.line.append(content)
        run.scanned_at = self.now

    def expected(self, run: ModelRun, chosen: list[Content]) -> list[Content]:
        """The checkpoints of the run's training that can be gone on from, as they are to be taken. Those that may be
        cast out count if they are taken."""
        present = set(self.contents.values()) - ((run.unclear | run.growing) - set(chosen))
        candidates = [
            content for content in run.line if content in present and content.is_whole and content not in run.excluded
        ]
        candidates.reverse()
        least = min((run.failed_starts.get(content, 0) for content in candidates), default=0)
        best = [content for content in candidates if run.failed_starts.get(content, 0) == least]
        # Contents of an unknown format come behind those that are whole, each group from the newest on.
        return sorted(best, key=lambda content: not content.is_known)

    def check(self, run: ModelRun, choice: CheckpointChoice, count: int) -> None:
        self.choices += 1
        chosen = [self.contents[str(info.path)] for info in choice.usable]
        expected = self.expected(run, chosen)
        checkable = [content for content in expected if content.is_known]
        if len(checkable) >= count:
            # There are enough whole ones; how many others were looked at on the way does not matter.
            expected = checkable[:count]
            chosen = chosen[:count]
        poisoned = [content for content in chosen if content in run.excluded]
        if [id(content) for content in chosen] != [id(content) for content in expected] or poisoned:
            names = {content: Path(path).name for path, content in self.contents.items()}
            would = [info.path.name for info in choice.usable]
            should = [names[content] for content in expected]
            raise LostError(f"seed {self.seed}: {run.run_id} would take {would}, and should take {should}")

    # --- attempts -----------------------------------------------------------------------------------------------------

    def search(self, run: ModelRun, ended_at: float | None = None) -> CheckpointSearch:
        search = checkpoint_survey.search_now(self.context, self.record(run), ended_at)
        assert search is not None
        return search

    def record(self, run: ModelRun) -> Run:
        record = get_run(self.connection, run.run_id)
        assert record is not None
        return record

    def own_folder(self, run: ModelRun) -> Path:
        folder = self.workspace.run_dir(run.run_id) / "attempts" / str(run.attempts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def ready(self, run: ModelRun, path: str | None) -> bool:
        """The look before an attempt; whether its checkpoint is still there."""
        search = self.search(run)
        survey, choice = start_check(search, path, self.now)
        with transaction(self.connection) as connection:
            rows = survey.rows if choice is None else choice.rows
            checkpoint_survey.write_ledger(connection, search, rows)
        self.saw(run)
        return choice is None

    def begin(self, run: ModelRun, base: Content | None, path: str | None) -> None:
        self.now += PAUSE_SECONDS
        run.attempts += 1
        number = run.attempts
        run.unwritten = []
        run.has_worked = False
        with transaction(self.connection) as connection:
            repository.set_next_attempt(connection, run.run_id, params={}, resume_from=path, not_before=None)
            record = self.record(run)
            repository.insert_attempt(connection, record, number=number, gpus=(), launch=LAUNCH, now=self.now)
            checkpoint_survey.attempt_begins(connection, record, number, run.folder, self.own_folder(run))
            repository.set_attempt_started(connection, run.run_id, number, self.now)
            add_boundary(connection, number, run.source_id)
        run.is_alive = True
        run.scanned_at = self.now
        run.lives.append([self.now, float("inf")])
        run.base = base
        if base is None:
            run.line = []
        self.tell(f"{run.run_id} attempt {number} begins from {path}")

    def note_step(self, run: ModelRun, step: int, *, is_sound: bool = True, is_last: bool = False) -> None:
        if not run.has_metrics:
            return
        step -= run.counted_from
        lines = run.written_lines.setdefault(run.attempts, [])
        if run.lines != "every" or not lines or is_last or step % EVERY == 0:
            run.unwritten.append((step, is_sound))
        if not run.unwritten or (run.lines == "blocks" and lines and not is_last and len(run.unwritten) < EVERY):
            return
        for line_step, line_is_sound in run.unwritten:
            lines.append((self.now, line_step, line_is_sound))
            data = {"loss": 1.0 if line_is_sound else "NaN"} | ({} if run.lines == "blocks" else {"time": self.now})
            add_line(self.connection, line_step, self.now, data, source=run.source_id, attempt=run.attempts, rank=0)
            self.connection.execute(
                "UPDATE attempts SET first_step = coalesce(first_step, ?), last_step = ? "
                "WHERE run_id = ? AND number = ?",
                (line_step, line_step, run.run_id, run.attempts),
            )
        run.unwritten = []

    def cast_out(self, run: ModelRun) -> int | None:
        """The step from which the lines are bad when an attempt ends: the first bad step; None if
        the last loss was sound."""
        written = run.written_lines.get(run.attempts, [])
        if not written or written[-1][2]:
            return None
        bad_at, bad = next((at, step) for at, step, is_sound in written if not is_sound)
        sound_steps = [step for _, step, is_sound in written if is_sound and step < bad]
        if not any(is_sound for lines in run.written_lines.values() for _, _, is_sound in lines):
            # Where no loss was ever sound, the lines do not tell sound contents from others.
            return bad
        for content in run.line:
            # What a person chose stays, and contents of other lineages are out already.
            if content in run.chosen_by_person or (content.attempt != run.attempts and sound_steps):
                continue
            lines = run.written_lines.get(content.attempt, [])
            sound = max((step for _, step, is_sound in lines if is_sound), default=-1)
            is_followed = any(is_sound and run.first_seen_at[content] + 1.0 < at < bad_at for at, _, is_sound in lines)
            if content.attempt == run.attempts and content.counted >= bad:
                run.excluded.add(content)
            elif content.counted > sound and lines:
                run.unclear.add(content)
                if content is run.base:
                    run.excluded.add(content)
            elif not (content.is_named or is_followed):
                run.unclear.add(content)
        return bad

    def save(self, run: ModelRun, step: int, *, is_poisoned: bool) -> None:
        chance = self.random
        is_whole = chance.random() > 0.1
        loads = not self.is_folders or chance.random() > 0.1
        path = run.folder / self.name(step)
        if self.naming == "slots":
            self.rotate()
        is_known = self.is_folders or not is_whole or chance.random() < self.known
        is_named = path.name.startswith("step_")
        counted = step - run.counted_from
        content = Content(
            run.run_id,
            run.attempts,
            step,
            is_whole=is_whole,
            loads=loads,
            is_known=is_known,
            is_named=is_named,
            counted=counted,
            is_poisoned=is_poisoned,
        )
        self.write(path, content)
        remarks = ["" if is_whole else ", cut", "" if loads else ", does not load", "" if is_known else ", unknown"]
        self.tell(f"{run.run_id} saves {path.name}{''.join(remarks)}{', poisoned' if is_poisoned else ''}")
        paths = {
            content: path
            for path, content in self.contents.items()
            if (content.run_id, content.attempt) == (run.run_id, run.attempts)
        }
        for old in sorted(paths, key=lambda content: content.step)[: -self.keeps] if self.keeps else ():
            self.remove(paths[old])

    def train(self, run: ModelRun, base: Content | None) -> Iterator[tuple[str | None, int | None] | None]:
        """The script's actions until it ends, step by step; at last the kind of incident and its
        step, None where there is none."""
        chance = self.random
        if base is not None and not base.loads:
            yield chance.choice(["user_exception", "corrupt_checkpoint"]), None
            return
        if chance.random() < 0.15:
            yield chance.choice(["killed", "launch_failed", "cuda_oom"]), None
            return
        start = 0 if base is None else base.step
        run.counted_from = start if self.counts_anew else 0
        steps = chance.randrange(1, 30)
        poison = start + chance.randrange(steps) + 1 if run.has_metrics and chance.random() < 0.25 else 1 << 60
        poison = start if base is not None and base.is_poisoned else poison
        every = chance.randrange(3, 9)
        if not run.has_metrics:
            # Without metrics nothing but time and checkpoints shows that it worked.
            self.now += WORKED_SECONDS
        self.work(run, base)
        for step in range(start + 1, start + steps + 1):
            self.now += chance.randrange(1, 4)
            self.note_step(run, step, is_sound=step < poison)
            if step % every == 0 and self.naming == "slots" and chance.random() < 0.1:
                # Killed between the rotation and the new save.
                self.rotate()
                yield "killed", None
                return
            if step % every == 0:
                self.now += 0.5
                self.save(run, step, is_poisoned=step >= poison)
                if chance.random() < self.looks:
                    self.scan(run)
            if chance.random() < 0.03:
                self.scan(run)
            if chance.random() < 0.03:
                self.somebody_moves(run)
            yield None
        if chance.random() < 0.5:
            self.note_step(run, start + steps, is_sound=start + steps < poison, is_last=True)
        self.now += chance.choice([0.0, 10.0])
        yield chance.choice([None, "killed", "user_exception", "interrupted", "nan_loss"]), None

    def work(self, run: ModelRun, base: Content | None) -> None:
        """The attempt makes its first step: what lies beyond its base is left."""
        run.has_worked = True
        if base is not None:
            run.line = run.line[: run.line.index(base) + 1]
            run.failed_starts.pop(base, None)

    def scan(self, run: ModelRun) -> None:
        """The agent looks while an attempt lives."""
        search = self.search(run)
        survey = checkpoint_survey.scan(search, self.now)
        with transaction(self.connection) as connection:
            checkpoints.note_scan(connection, run.run_id, run.attempts, str(survey.search.real_folder), self.now)
            checkpoint_survey.write_ledger(connection, search, survey.rows)
        self.saw(run)

    def end(self, run: ModelRun, base: Content | None, kind: str | None) -> CheckpointChoice:
        """As the examination of an attempt does it."""
        self.now += 1.5
        number = run.attempts
        if kind is not None and KINDS[kind].may_be_checkpoint and base is not None and not run.has_worked:
            if kind == "corrupt_checkpoint":
                run.excluded.add(base)
            else:
                run.failed_starts[base] = run.failed_starts.get(base, 0) + 1
        search = self.search(run, ended_at=self.now)
        rows = surveyed(search, lambda: self.now)
        self.saw(run)
        run.is_alive = False
        run.lives[-1][1] = self.now
        bad = self.cast_out(run)
        if kind == "nan_loss" and bad is None:
            kind = "killed"
        self.tell(f"{run.run_id} attempt {number} ends: {kind}, bad since {bad}")
        unsound = None
        if kind is not None and KINDS[kind].fault == "training":
            unsound = unsound_loss_of(search, rows, number, bad)
        rows = ledger.attempt_ended(rows, search.attempts, number, kind, unsound)
        choice = CheckpointChoice(rows) if kind is None else choose(rows, search.attempts, WANTED)
        with transaction(self.connection) as connection:
            state = "failed" if kind else "stopped"
            repository.end_attempt(connection, run.run_id, number, state=state, ended_at=self.now, exit_record={})
            checkpoint_survey.attempt_ended(
                connection, search, choice.rows, self.own_folder(run), is_seen=True, now=self.now
            )
        if kind is not None:
            self.check(run, choice, WANTED)
        return choice

    # --- what follows an end ------------------------------------------------------------------------------------------

    def recover(self, run: ModelRun, choice: CheckpointChoice, kind: str) -> str | None:
        """The content from which recovery begins: the best, or one further back."""
        usable = choice.usable
        if not usable:
            return None
        if kind == "nan_loss" and len(usable) > 1 and self.random.random() < 0.5:
            path = str(usable[1].path)
            before = tuple(checkpoints.of_run(self.connection, run.run_id, with_gone=True))
            with transaction(self.connection) as connection:
                after = ledger.rolled_back(before, path, "was left by a rollback")
                checkpoints.save(connection, run.run_id, before, after)
                checkpoint_survey.keep(self.own_folder(run), after, self.now)
            place = run.line.index(self.contents[path])
            run.excluded |= set(run.line[place + 1 :])
            run.line = run.line[: place + 1]
            self.tell(f"{run.run_id} rolls back to {path}")
            return path
        return str(usable[0].path)

    def by_hand(self, run: ModelRun) -> str | None:
        """A person resumes."""
        search = self.search(run)
        path = None
        if self.contents and self.random.random() < 0.2:
            path, content = self.random.choice(list(self.contents.items()))
            if not content.is_whole:
                return None
        choice = for_person(search, None if path is None else Path(path), wall=lambda: self.now)
        self.saw(run)
        if path is None:
            self.check(run, choice, 1)
        with transaction(self.connection) as connection:
            checkpoint_survey.write_ledger(connection, search, choice.rows)
            checkpoint_survey.keep(self.own_folder(run), choice.rows, self.now)
        if path is None:
            return None if not choice.usable else str(choice.usable[0].path)
        self.tell(f"a person names {path}")
        named_content = self.contents[path]
        rows = [row for row in choice.rows if row.path == path and row.gone_at is None]
        if rows[0].origin != "named" and named_content in run.line and named_content not in run.excluded:
            run.line = run.line[: run.line.index(named_content) + 1]
        else:
            run.excluded |= set(self.contents.values()) | set(run.line)
            run.line = [named_content]
            run.chosen_by_person.add(named_content)
        run.excluded.discard(named_content)
        run.unclear.discard(named_content)
        run.failed_starts.pop(named_content, None)
        return path

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
            if not self.ready(run, path):
                path = self.by_hand(run)
                base = None if path is None else self.contents[path]
                self.ready(run, path)
            self.begin(run, base, path)
            self.training[run.run_id] = (self.train(run, base), base)
        training, base = self.training[run.run_id]
        ended = next((end for end in itertools.islice(training, steps) if end is not None), None)
        if ended is None:
            return
        del self.training[run.run_id]
        backup = self.backup(run) if self.random.random() < 0.1 else None
        kind, _ = ended
        choice = self.end(run, base, kind)
        self.now += PAUSE_SECONDS
        if backup is not None:
            self.restore(run, backup)
        what = self.random.random()
        if what < 0.15:
            # A person starts it from the beginning.
            path = None
        elif kind is None or backup is not None or what < 0.35:
            path = self.by_hand(run)
        else:
            path = self.recover(run, choice, kind)
        self.chosen[run.run_id] = None if path is None else (path, self.contents[path])
        # What a stranger writes while an attempt lives looks like the attempt's own.
        if self.random.random() < 0.15 and not self.training:
            self.somebody_writes()
        if self.random.random() < 0.2 and not self.training:
            self.somebody_moves()

    # --- a database from a backup -------------------------------------------------------------------------------------

    def backup(self, run: ModelRun) -> list[dict[str, Any]]:
        return named_rows(self.connection, "SELECT * FROM checkpoints WHERE run_id = ?", (run.run_id,))

    def restore(self, run: ModelRun, backup: list[dict[str, Any]]) -> None:
        """The rows are as they were, but for the attempts that are read back from the disk, as is the ledger."""
        self.tell(f"the rows of {run.run_id} come from a backup")
        with transaction(self.connection) as connection:
            connection.execute("DELETE FROM checkpoints WHERE run_id = ?", (run.run_id,))
            for row in backup:
                insert(connection, "checkpoints", **row)
            checkpoint_survey.restore(connection, run.run_id, self.workspace.run_dir(run.run_id))


def play(rounds: int, seed: int, folder: Path, tell: Callable[[str], None] = lambda _: None) -> int:
    """So many histories; how many choices were checked. Raises LostError."""
    home = Home(locate(folder / "home", {}))
    home.connection.execute("PRAGMA synchronous = OFF")
    choices = 0
    for place in range(rounds):
        place_of_history = folder / f"history-{place}"
        place_of_history.mkdir()
        history = History(seed + place, place_of_history, home)
        try:
            history.play()
        except Exception as error:
            error.add_note("\n".join([f"seed {history.seed}", *history.journal]))
            raise
        choices += history.choices
        shutil.rmtree(place_of_history)
        home.connection.execute("DELETE FROM runs")
        if place % 1000 == 999:
            tell(json.dumps({"histories": place + 1, "choices": choices}))
    home.close()
    return choices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        choices = play(options.rounds, options.seed, Path(folder), tell=lambda text: print(text, flush=True))
    print(f"{options.rounds} histories, {choices} choices, each the newest whole checkpoint of its lineage")


if __name__ == "__main__":
    main()
