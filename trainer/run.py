"""A run of all phases, from the beginning or from a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import os
import time
from collections.abc import Iterator

from trainer.checkpoints import (
    Checkpointer,
    Parts,
    ResumeChoice,
    State,
    check_fits,
    choose,
    load,
    parts_on_host,
    require_writable,
    shared_state,
)
from trainer.config import Settings, phase_at, unfold
from trainer.config.lengths import Consumed, settled
from trainer.data import Data, Text
from trainer.data.files import require_data_dir
from trainer.data.text import prepared_folder
from trainer.errors import CheckpointError, SettingsError, one_line
from trainer.exporting import describe, export, require_exportable, require_replaceable
from trainer.faults import Injector
from trainer.loop import Loop, PhaseEnd
from trainer.models.weights import name_in_files
from trainer.parallel.build import check
from trainer.precision import release_memory, snapshot_at_out_of_memory
from trainer.preparing import PreparationPlan, Prepared, prepare
from trainer.session import PhaseSession, TrainingProgress, load_for_all
from trainer.signals import Signals
from trainer.telemetry.telemetry import Telemetry
from trainer.world import World, join, lost_a_peer

# Seconds that a rank which lost a peer gives the launcher to notice that peer's end first.
PEER_GRACE = 5.0


def run(settings: Settings) -> None:
    """Train to the end, or to the checkpoint after a stop signal. Raises any error."""
    world = join(settings)
    telemetry = Telemetry(settings, world)
    try:
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        launcher = os.getppid() if launched else None
        with Signals(settings.stop_timeout, launcher=launcher) as signals:
            try:
                Run(settings, world, telemetry, signals).train()
            except Exception as error:
                # The launcher blames the rank that fails first, so one that only lost a peer waits for that peer's end.
                if lost_a_peer(error) and launched:
                    signals.wait_for_stop(PEER_GRACE)
                raise
    finally:
        telemetry.close()


class Run:
    """One rank's phases of a run. Every rank calls the same methods in the same order (collective).

    `meeting` is the group, without a timeout, for what ranks agree on outside of phases.
    """

    def __init__(self, settings: Settings, world: World, telemetry: Telemetry, signals: Signals) -> None:
        self.settings = settings
        self.world = world
        self.telemetry = telemetry
        self.signals = signals
        self.phases = self.asked = unfold(settings)
        self.step = 0  # of the run, as far as this rank knows
        self.former: State | None = None  # that the next phase starts from
        self.data: Data | None = None  # where they had to be loaded before a phase begins
        self.faults = Injector(settings.inject, world.rank, settings.output_dir / "faults")
        for phase in self.phases:
            if phase.ranks > world.size:
                raise SettingsError(f"--ranks {phase.ranks} are more than the {world.size} that were started")
            # All phases are checked at the start, not after hours of training.
            check(phase, dataclasses.replace(world, size=phase.ranks or world.size))
        if settings.memory_snapshot and world.device.type == "cuda":
            snapshot_at_out_of_memory(settings.output_dir / "evidence" / f"memory_rank_{world.rank}.pickle")
        # All ranks must create all groups, in the same order.
        self.meeting = world.patient()
        self.worlds = {
            size: world.subgroup(size) for size in sorted({phase.ranks or world.size for phase in self.phases})
        }

    def train(self) -> None:
        """Train all phases, from the chosen checkpoint on."""
        began = time.perf_counter()
        if not self.prepare_tokens():
            return
        choice = self.choose_checkpoint()
        if choice.path is not None:
            self.former = load(choice.path)
        self.settle()
        number = 0
        if choice.path is not None and self.former is not None:
            number, _, _ = phase_at(self.phases, self.former["step"] + 1)
            check_fits(self.former, self.phases[number], choice.path)
        ending = self.train_phases(number, choice)
        self.signals.reached()
        if ending.stopped:
            self.telemetry.event(self.step, "stop", reason=ending.stopped)
            self.telemetry.say(f"stopped at step {self.step} after a checkpoint")
            return
        self.export_weights()
        tested = {name.replace("val/", "test_"): value for name, value in sorted(ending.validation.items())}
        self.telemetry.event(self.step, "end", **tested, seconds=time.perf_counter() - began)
        means = (f"{name.replace('_', ' ', 1)} {value:.4f}" for name, value in tested.items())
        self.telemetry.say(f"done: {', '.join(means)}")

    def train_phases(self, number: int, choice: ResumeChoice) -> PhaseEnd:
        """Train the phases from this number on, until the last or a stop request. Returns the end of the last one."""
        while True:
            with self.hearing_stops(number):
                own_ending, carried = self.phase(number, choice)
                ending = self.meeting.from_main(own_ending)
            assert ending is not None
            if ending.stopped or number == len(self.phases) - 1:
                return ending
            self.former = shared_state(carried, self.meeting, self.settings.checkpoint_dir)
            del carried
            number += 1
            choice = ResumeChoice(None)

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def settle(self) -> None:
        """Settle the steps and micro batches of all phases, now that data, ranks and the beginning are known."""
        consumed = Consumed()
        epoch_samples = 0
        if self.settings.epochs:
            self.data = load_for_all(self.settings, self.meeting)
            epoch_samples = len(self.data.train)
            if self.former is not None:
                consumed = Consumed(self.former["step"], self.former["samples"])
        phases = []
        for phase in self.phases:
            ranks = (phase.ranks or self.world.size) // phase.tensor_parallel
            phases.append(settled(phase, epoch_samples, ranks, consumed))
        self.phases = tuple(phases)

    def hearing_stops(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Inside a phase, a stop request on a rank that waits counts on those that train, too.

        It travels as a note, because ranks that wait join no collective until the phase has ended.
        """
        ranks = self.phases[number].ranks or self.world.size
        notes = self.meeting if ranks < self.world.size else self.world
        key = f"stop_in_phase_{number}"
        if self.worlds[ranks] is None:
            return self.signals.waiting(functools.partial(notes.leave_note, key))
        return self.signals.listening(functools.partial(notes.note, key))

    # --- before and after ---------------------------------------------------------------------------------------------

    def prepare_tokens(self) -> bool:
        """Prepare the tokens of --data documents on rank 0 while the others wait. Returns False if it was stopped."""
        settings = self.settings
        if settings.data != "documents":
            return True

        def made() -> Prepared:
            source = require_data_dir(settings, "text, JSON lines or Parquet files", allow_file=True)
            assert settings.tokenizer is not None
            column = settings.data_column or "text"
            plan = PreparationPlan((source,), settings.tokenizer, settings.context, column=column)
            return prepare(plan, prepared_folder(settings), stopping=lambda: bool(self.signals.stop))

        prepared = self.meeting.on_main(made)
        self.telemetry.event(
            0, "prepared", documents=prepared.documents, tokens=prepared.tokens, seconds=prepared.seconds
        )
        if not prepared.finished:
            self.signals.reached()
            self.telemetry.event(0, "stop", reason=self.signals.stop or "signal on another rank")
            self.telemetry.say("stopped before all tokens were prepared; the next start goes on from here")
        return prepared.finished

    def export_weights(self) -> None:
        """Export the result as a model of transformers for --export, on rank 0."""
        settings = self.settings
        out = settings.output_dir / "hf"
        if settings.export == "none" or not self.world.is_main:
            return
        exported = export(settings.checkpoint_dir, out, settings.export)
        self.telemetry.event(self.step, "export", path=str(out), checkpoint=str(exported.checkpoint))
        self.telemetry.say(f"exported the weights of step {exported.step} to {out}")

    # --- phases -------------------------------------------------------------------------------------------------------

    def phase(self, number: int, choice: ResumeChoice) -> tuple[PhaseEnd | None, Parts]:
        """Train one phase. Returns its end, None on ranks that wait in it, and this rank's part of its last state."""
        settings = self.phases[number]
        state = self.former
        self.former = None  # else it stays in memory
        first_step = sum(phase.steps for phase in self.phases[:number]) + 1
        world = self.worlds[settings.ranks or self.world.size]
        if world is None:
            return None, ({}, {})
        with contextlib.ExitStack() as stack:
            progress = TrainingProgress(step=first_step - 1)
            session = stack.enter_context(PhaseSession(settings, world, first_step, progress, data=self.data))
            if state is not None:
                self.take_over(session, state, choice)
            del state
            self.telemetry.enter(settings, world, self.total_steps)
            checkpoints = Checkpointer(settings, world, before_write=self.faults.before_checkpoint)
            # Writing must end before the process group is destroyed.
            stack.callback(checkpoints.close)
            for path in checkpoints.begin(progress.step, choice.path):
                self.telemetry.say(f"set aside {path}: this run starts before it", error=True)
            self.announce(session, number)
            self.describe_model(session)
            last = number == len(self.phases) - 1
            ending = Loop(session, self.telemetry, checkpoints, self.signals, self.faults).train(last_phase=last)
            self.step = progress.step
            carried: Parts = ({}, {})
            if not last and not ending.stopped:
                carried = parts_on_host(session.state(), world)
        del session
        gc.collect()
        release_memory(world.device)
        return ending, carried

    def take_over(self, session: PhaseSession, state: State, choice: ResumeChoice) -> None:
        """Load a state, and log it if it is from a file. Raises CheckpointError if it does not fit the model."""
        try:
            session.load(state)
        except (KeyError, ValueError) as error:
            source = f"checkpoint {choice.path}" if choice.path else "the state of the phase before"
            raise CheckpointError(f"{source} does not fit this model: {error.args[0]}") from None
        if choice.path:
            step = session.progress.step
            samples = session.progress.samples
            self.telemetry.event(step, "resume", path=str(choice.path), samples=samples)
            self.telemetry.say(f"resumed from {choice.path} at step {step}")
            former_samples = math.prod(state["batch"].values())
            now = session.samples_per_step
            if now and former_samples != now and state["phase"] == session.settings.phase:
                length = "epochs" if session.settings.epochs else "steps"
                self.telemetry.say(
                    f"{now} samples per step instead of {former_samples}; {length} and rate stay as given"
                )
            former = state["config"]["optimizer"]
            optimizer = session.settings.optimizer
            if former != optimizer:
                self.telemetry.say(f"the optimizer's state starts afresh: {optimizer} instead of {former}")

    def announce(self, session: PhaseSession, number: int) -> None:
        """Log the start of the run or of a phase."""
        settings = session.settings
        step = session.progress.step
        event = "start" if not number or self.step == 0 else "phase"
        self.telemetry.event(
            step,
            event,
            task=settings.task,
            model=session.built.name,
            total_steps=self.total_steps,
            world_size=session.world.size,
            parallel=settings.parallel,
            batch_size=session.batches.size or "auto",
            grad_accum=session.batches.per_step,
            samples_per_step=session.samples_per_step or "auto",
            device=session.world.device.type,
            precision=settings.precision,
            parameters=session.facts.parameters,
            phase=settings.phase or None,
        )
        for remark in self.remarks(session, number):
            self.telemetry.say(remark)
        if settings.oom_retries and not session.strategy.can_settle:
            self.telemetry.say(
                f"--oom-retries {settings.oom_retries} has no effect in this phase: with --parallel fsdp, "
                "--static-graph, --sync-batchnorm or contrastive learning a rank without memory leaves others waiting",
                error=True,
            )

    def remarks(self, session: PhaseSession, number: int) -> Iterator[str]:
        """Lines about a phase: its length, and what the settings alone do not say."""
        settings = session.settings
        yield _length(session)
        warmup = self.asked[number].warmup_steps
        if warmup != settings.warmup_steps:
            yield f"warm-up: {settings.warmup_steps} steps; the {warmup} asked for are more than all steps"
        if settings.phase:
            last_step = session.first_step + settings.steps - 1
            place = f"phase {number + 1} of {len(self.phases)}, {settings.phase}"
            yield f"{place}: steps {session.first_step} to {last_step}"
        trained = sum(parameter.numel() for parameter in session.strategy.names if parameter.requires_grad)
        if trained < session.facts.parameters:
            yield f"trains {trained:,} of {session.facts.parameters:,} parameters; the others are frozen"
        if session.built.fresh:
            fresh = ", ".join(name_in_files(session.built.model, name) for name in session.built.fresh)
            yield f"not in {settings.weights}, so they start fresh: {fresh}"
        if session.mixes_documents:
            yield f"{session.built.name}: attention reaches over documents' ends"

    def describe_model(self, session: PhaseSession) -> None:
        """Write the model's description beside the checkpoints. Raises SettingsError if --export is impossible."""
        exports = self.settings.export != "none"
        if exports:
            require_exportable(session.built.model)
            require_replaceable(self.settings.output_dir / "hf")
        if not self.world.is_main:
            return
        tokenizer = session.data.tokenizer if isinstance(session.data, Text) else None
        try:
            describe(session.built.model, tokenizer, session.settings.checkpoint_dir)
        except Exception as error:  # not only the disk's: transformers raises many types
            if exports:
                raise SettingsError(f"--export: {one_line(error)}") from None
            self.telemetry.say(f"checkpoints cannot be exported: {one_line(error)}", error=True)

    def choose_checkpoint(self) -> ResumeChoice:
        """The checkpoint that rank 0 chooses to start from, for all ranks. Raises CheckpointError and SettingsError."""

        def chosen() -> ResumeChoice:
            require_writable(self.settings.checkpoint_dir)
            return choose(self.settings.resume, self.settings.checkpoint_dir)

        choice = self.meeting.on_main(chosen)
        for reason in choice.rejected:
            self.telemetry.event(0, "checkpoint_rejected", reason=reason)
            self.telemetry.say(f"{reason}; trying the one before", error=True)
        return choice


def _length(session: PhaseSession) -> str:
    """The words for a phase's steps, and how its samples are spread over epochs, ranks and micro batches."""
    steps = session.settings.steps
    samples = len(session.data.train)
    per_step = session.samples_per_step
    if not per_step:
        return f"{steps} steps; an epoch has {samples:,} samples"
    ranks = session.strategy.data_ranks
    size, count = session.batches
    samples_so_far = session.phase_step * per_step
    if session.first_step == 1:
        samples_so_far = session.progress.samples  # before a resume, steps may have had more or fewer
    trained = samples_so_far + (steps - session.phase_step) * per_step
    return (
        f"{steps} steps of {per_step:,} samples (ranks x batch x accumulation: {ranks} x {size} x {count}), "
        f"{trained / samples:.3g} epochs of {samples:,} samples"
    )
