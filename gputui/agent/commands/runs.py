"""Commands about runs: launch, stop, restart, resume, remove, label, and a client's report of the
orphans that it ended."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputui.agent import removal
from gputui.agent.commands.request import CommandRequest, RefusedError, Result, UnansweredError
from gputui.agent.jobs import JobKey, Purpose
from gputui.agent.lifecycle.checkpoint_survey import attempts_to_resume, search_now, write_ledger
from gputui.agent.lifecycle.run_files import living_attempt, open_metrics
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import redact_params, redact_text
from gputui.core.secret_patterns import REDACTED
from gputui.core.text import clean
from gputui.recovery.checkpoints.choices import CheckpointChoice, NotUsableError, for_person, passed_over
from gputui.recovery.checkpoints.search import CheckpointSearch
from gputui.runs import repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.labels import (
    LabelError,
    Labels,
    checked_name,
    checked_note,
    checked_tag,
    checked_tags,
    store_labels,
    write_labels,
)
from gputui.runs.redaction import redact_spec
from gputui.runs.spec import RunSpec, Scalar, SpecError
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import SPEC_FILE, read_spec, write_spec
from gputui.store import commands
from gputui.store.events import EventKind, Severity
from gputui.store.metrics.roles import stored_names
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from gputui.studies.rows import adopt_run, keep_cost

# Hundreds of gigabytes of checkpoints are read in minutes; a file system that hangs never answers.
SEARCH_SECONDS = 900.0
COMMAND_CHARACTERS = 200  # tells one command from another in a list


def launch(request: CommandRequest) -> Result:
    """Queue a new run."""
    context = request.context
    connection = request.connection
    ticket, spec = request.ticket()
    name = _new_name(request, spec)
    request.refuse_id_as_name(name)
    try:
        folders = {entry.name for entry in context.workspace.runs.iterdir()}
        run_id, sequence = repository.next_run_id(connection, name, folders)
        folder = context.workspace.run_dir(run_id)
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        request.undo.callback(shutil.rmtree, folder)
        (folder / SPEC_FILE).hardlink_to(ticket)
    except OSError as error:
        raise RefusedError(f"cannot make the run's folder: {error}; free some disk space") from error
    repository.insert_run(
        connection,
        repository.NewRun(
            run_id=run_id, sequence=sequence, name=name, spec=redact_spec(spec), params=redact_params(spec.params)
        ),
        now=context.now(),
        actor=request.actor,
    )
    study_id = spec.study_id
    number = request.command.command_id
    if study_id is not None and not adopt_run(connection, study_id, spec.trial or 0, number, run_id):
        raise RefusedError(f"the study {study_id} does not want this trial any more")
    open_metrics(context.ingest, run_id, spec, folder)
    context.note("launched", f"launched by {request.actor}", run_id)
    request.afterwards.append(partial(ticket.unlink, missing_ok=True))
    return {"id": run_id, "state": RunState.QUEUED}


def stop(request: CommandRequest) -> Result:
    """Stop a run: gracefully, or at once with ``now``. A study gives its ``reason``."""
    target = request.run()
    if target.state.is_over:
        raise RefusedError(f"{target.run_id} {target.state.phrase} already")
    at_once = bool(request.args.get("now"))
    return end_run(request, target, "stop", at_once=at_once, reason=request.args.get("reason"))


def end_run(request: CommandRequest, target: Run, intent: str, *, at_once: bool, reason: str | None = None) -> Result:
    """Ask a run to end; it is signalled once that is stored."""
    supervisor = request.supervisor
    run_id = target.run_id
    state = supervisor.note_stop(target, intent=intent, actor=request.actor, at_once=at_once, reason=reason)
    request.afterwards.append(partial(supervisor.signal_stop, run_id, at_once=at_once))
    return {"id": run_id, "state": state}


class _StartingPoint(NamedTuple):
    """The starting point of a run that is queued again.

    Attributes:
        description: for people.
        path: the checkpoint; None at the start of the training, and if its target is to choose one.
        step: the checkpoint's step, if it is known here.
        skips: which newer checkpoints were passed over, and why.
    """

    description: str
    path: str | None = None
    step: int | None = None
    skips: str = ""


def restart(request: CommandRequest) -> Result:
    """Restart a run from scratch with the parameters as launched; an active run is stopped
    first."""
    target = request.run()
    if target.state.has_attempt:
        return end_run(request, target, "restart", at_once=False)
    if target.state.is_over:
        # A resumed run keeps its reduced number of GPUs: its parameters were adapted to it.
        repository.set_gpu_count(request.connection, target.run_id, count=None)
        return _queue_again(request, target, dict(spec_of(target).params), _StartingPoint("the start"))
    why = target.waiting_for or f"about to start; gputui stop {target.run_id} ends that"
    raise RefusedError(f"{target.run_id} {target.state.phrase} already: {why}")


def _new_name(request: CommandRequest, spec: RunSpec) -> str:
    """The name that a person gives a new run, else one that its profile's name makes. Raises RefusedError."""
    name = request.args.get("name")
    if name is None:
        return repository.fitting_name(spec.name)
    try:
        return checked_name(str(name))
    except LabelError as error:
        raise RefusedError(str(error)) from error


def resume(request: CommandRequest) -> Result:
    """Resume a run from its newest valid checkpoint, or from ``from``, with parameters changed by ``set``.

    A job reads the checkpoints. Until it is over, UnansweredError leaves the command pending, and
    this function is called again from its first line: the run may have changed meanwhile.
    """
    target = request.run()
    if not target.state.is_over:
        raise RefusedError(f"{target.run_id} {target.state.phrase}; only an ended run can be resumed")
    folder = checkpoint_directory(spec_of(target), request.context.workspace.run_dir(target.run_id))
    if spec_of(target).checkpoints is None or folder is None:
        why = "has no way to resume that gputui knows (checkpoints: in its profile); gputui restart begins it again"
        raise RefusedError(f"{target.run_id} {why}")
    params = {**target.params, **_checked_changes(request, target)}
    search = search_now(request.context, target)
    if search is None:
        point = _point_on_target(request, target)
    else:
        point = _point_on_this_machine(request, search)
    return _queue_again(request, target, params, point)


def _point_on_target(request: CommandRequest, target: Run) -> _StartingPoint:
    """The starting point of a run whose checkpoints only its target sees. Raises RefusedError."""
    path = request.args.get("from")
    if path is not None:
        return _StartingPoint(Path(str(path)).name, str(path))
    anew = replace(target, resume_from=None)
    if not attempts_to_resume(request.connection, request.context.workspace, anew):
        text = f"no attempt of {target.run_id} has begun; gputui restart begins it"
        raise RefusedError(text, commands.NO_CHECKPOINT)
    return _StartingPoint("the newest valid checkpoint on its target")


def _point_on_this_machine(request: CommandRequest, search: CheckpointSearch) -> _StartingPoint:
    """Choose a checkpoint on this machine, and store the ledger that contains it.

    Raises:
        RefusedError: there is no usable checkpoint.
        UnansweredError: the job is not over.
    """
    path = request.args.get("from")
    run_id = search.run_id
    folder = search.folder
    named_path = None if path is None else Path(str(path))
    work = partial(_choose, search, named_path)
    # Each command has a search of its own.
    key = JobKey(Purpose.SEARCH, run_id, subject=f"command {request.command.command_id}")
    job = request.context.jobs.ask(key, work, deadline_seconds=SEARCH_SECONDS)
    if job is None:
        raise UnansweredError
    try:
        # The stored ledger is compared with the search of the first call, which was carried out.
        searched, choice = job.result()
    except NotUsableError as error:
        kind = None if error.may_pass else commands.NO_CHECKPOINT
        raise RefusedError(str(error), kind) from error
    except OSError as error:
        why = f"{error.strerror or error}; see whether its file system answers"
        raise RefusedError(f"{folder}: {why}") from error
    if not choice.usable:
        kind = commands.NO_CHECKPOINT if choice.unreadable is None else None
        raise RefusedError(_no_checkpoint_text(run_id, folder, choice), kind)
    write_ledger(request.connection, searched, choice.rows)
    best = choice.usable[0]
    return _StartingPoint(best.path.name, str(best.path), best.step, passed_over(choice.refused))


def _choose(search: CheckpointSearch, path: Path | None) -> tuple[CheckpointSearch, CheckpointChoice]:
    return search, for_person(search, path)


def _checked_changes(request: CommandRequest, target: Run) -> dict[str, Scalar]:
    """The parameters that a resume changes. Raises RefusedError."""
    changes = request.args.get("set") or {}
    unknown = [name for name in changes if name not in target.params]
    if unknown:
        names = ", ".join(target.params)
        raise RefusedError(f"{target.run_id} has no parameter {unknown[0]!r}; it has {names}")
    values = [str(value) for value in changes.values()]
    if redact_params(changes) != changes or any(REDACTED in value for value in values):
        why = "a secret is not stored, so that a resume cannot change it; launch the run again"
        raise RefusedError(why)
    return dict(changes)


def _no_checkpoint_text(run_id: str, folder: Path, choice: CheckpointChoice) -> str:
    """The reason why a run cannot be resumed, and what to do instead."""
    again = f"gputui restart {run_id} begins it again"
    if choice.unreadable is not None:
        return f"the checkpoints of {run_id} cannot be read now: {choice.unreadable}; {again}"
    reason = f"no valid checkpoint of this training in {folder}"
    if skips := passed_over(choice.refused):
        reason += f" ({skips})"
    return f"{reason}; gputui resume {run_id} --from PATH resumes from one that you choose, {again}"


def _queue_again(request: CommandRequest, target: Run, params: dict[str, Scalar], point: _StartingPoint) -> Result:
    """Queue a run that is over."""
    if "ticket" in request.args:
        _renew_target(request, target)
    connection = request.connection
    run_id = target.run_id
    verb = request.command.verb
    actor = request.actor
    repository.replace_next_attempt(connection, run_id, params=params, resume_from=point.path)
    repository.move(connection, target, RunState.QUEUED, cause=verb, actor=actor, now=request.context.now())
    skipped = ""
    if point.skips:
        skipped = f"; {point.skips}"
    participle = f"{verb.removesuffix('e')}ed"
    request.context.note("requeued", f"{participle} by {actor} from {point.description}{skipped}", run_id, key=verb)
    return {
        "id": run_id,
        "state": RunState.QUEUED,
        "resume_from": point.path,
        "resume_step": point.step,
        "passed_over": point.skips or None,
    }


def _renew_target(request: CommandRequest, target: Run) -> None:
    """Take the options of a run's target, and the environment of its commands, from the ticket of the
    command that starts it again. Raises RefusedError."""
    ticket, spec = request.ticket()
    _change_spec(request, target, target=spec.target, shell=spec.shell)
    request.afterwards.append(partial(ticket.unlink, missing_ok=True))


def _change_spec(request: CommandRequest, run: Run, **changes: Any) -> None:
    """Replace fields of a run's specification. Raises RefusedError."""
    path = request.context.workspace.run_dir(run.run_id) / SPEC_FILE
    try:
        before = read_spec(path)
        spec = replace(before, **changes)
        write_spec(path, spec)
    except (OSError, SpecError) as error:
        raise RefusedError(f"cannot change {path}: {error}") from error
    request.undo.callback(write_spec, path, before)
    repository.set_spec(request.connection, run.run_id, redact_spec(spec))


def remove(request: CommandRequest) -> Result:
    """Remove a run that is over. It disappears at once; its data are deleted in the background."""
    context = request.context
    target = request.run()
    run_id = target.run_id
    folder = context.workspace.run_dir(target.run_id)
    if target.state is RunState.STOPPING:
        raise RefusedError(f"{run_id} is stopping; wait for its end")
    if not target.state.is_over:
        raise RefusedError(f"{run_id} {target.state.phrase}; stop it first")
    if (number := living_attempt(context.workspace, run_id)) is not None:
        why = "is alive, which the database does not know; gputui agent stop, and the next agent adopts it"
        raise RefusedError(f"attempt {number} of {run_id} {why}")
    if any(entry.run_id == run_id for entry in request.supervisor.holds.entries):
        raise RefusedError(f"processes of {run_id} cannot be killed; remove it once they are gone")
    try:
        moved = removal.move_to_removed(context.workspace, run_id)
    except OSError as error:
        raise RefusedError(f"cannot remove {folder}: {error}") from error
    if moved is not None:
        request.undo.callback(moved.rename, folder)
        request.afterwards.append(partial(removal.delete_folder, context, moved))
    keep_cost(request.connection, run_id)
    repository.delete_run(request.connection, run_id)
    request.afterwards.append(partial(context.ingest.forget, run_id))
    request.afterwards.append(context.janitor.note_removal)
    return {"id": run_id, "state": "removed"}


def label(request: CommandRequest) -> Result:
    """Set ``name``, ``note`` or ``tags`` (all of them), or ``add`` and ``remove`` tags."""
    target = request.run()
    before = Labels(target.name, target.tags, target.note or "")
    labels = _new_labels(request, target)
    if labels.name not in (target.name, target.run_id):
        request.refuse_id_as_name(labels.name)
    store_labels(request.connection, target.run_id, labels)
    for key, message in _label_changes(before, labels).items():
        request.context.note("labelled", f"{request.actor} {message}", target.run_id, key=key)
    folder = request.context.workspace.run_dir(target.run_id)
    try:
        write_labels(folder, labels)
    except OSError as error:
        raise RefusedError(f"cannot write the labels of {target.run_id}: {error}") from error
    request.undo.callback(_write_back_labels, folder, before)
    return {"id": target.run_id, "state": target.state, **labels._asdict(), "note": labels.note or None}


def _new_labels(request: CommandRequest, target: Run) -> Labels:
    """A run's labels after the command. Raises RefusedError."""
    args = request.args
    try:
        removed = {checked_tag(str(tag)) for tag in args.get("remove") or ()}
        requested = [*args.get("tags", target.tags), *(args.get("add") or ())]
        tags = {str(tag) for tag in requested if str(tag).removeprefix("#") not in removed}
        name = target.name
        note = str(args.get("note", target.note) or "")
        if "name" in args:
            name = checked_name(str(args["name"]))
        return Labels(name, checked_tags(tags), checked_note(note))
    except LabelError as error:
        raise RefusedError(str(error)) from error


def _label_changes(before: Labels, labels: Labels) -> dict[str, str]:
    """What was done to each label that has changed, to complete "alice …"."""
    changes = {}
    if labels.name != before.name:
        changes["name"] = f"renamed it from {before.name} to {labels.name}"
    if labels.tags != before.tags:
        changes["tags"] = "untagged it"
        if labels.tags:
            changes["tags"] = f"tagged it {' '.join(f'#{tag}' for tag in labels.tags)}"
    if labels.note != before.note:
        changes["note"] = "removed its note"
        if labels.note:
            changes["note"] = f"noted: {labels.note}"
    return changes


def _write_back_labels(folder: Path, labels: Labels) -> None:
    with suppress(OSError):
        write_labels(folder, labels)


def set_loss(request: CommandRequest) -> Result:
    """Say which metric is the loss of a run, also of one that trains."""
    target = request.run()
    loss = str(request.args["loss"])
    if loss not in stored_names(request.connection, target.run_id):
        raise RefusedError(f"{target.run_id} has no metric {loss!r} that can be its loss")
    _change_spec(request, target, loss=loss)
    request.context.note("loss_named", f"{request.actor} named {loss} as its loss", target.run_id, key=loss)
    return {"id": target.run_id, "state": target.state, "loss_name": loss}


def note_ended_orphans(request: CommandRequest) -> Result:
    """Add an event for each process that ``agent orphans --kill`` killed or could not kill."""
    processes = request.args["processes"]
    for process in processes:
        run_id = str(process.get("run_id"))
        pid = str(process.get("pid"))
        is_known = get_run(request.connection, run_id) is not None
        command = clean(redact_text(str(process.get("command", "")))[:COMMAND_CHARACTERS])
        what = f"orphan {pid} of {run_id} ({command})"
        kind: EventKind = "orphan_killed"
        severity: Severity = "info"
        text = f"{request.actor} ended {what}"
        if not process.get("killed"):
            kind = "orphan_unkillable"
            severity = "error"
            text = f"{request.actor} could not end {what}; not even by SIGKILL"
        about = (run_id, process.get("attempt")) if is_known else (None, None)
        request.context.note(kind, text, *about, key=pid, severity=severity)
    return {"noted": len(processes)}
