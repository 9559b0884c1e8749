"""The ``metrics`` and ``checkpoints`` of a drafted profile. What a run shows by itself is not guessed here."""

from __future__ import annotations

import json
import re

from gputui.core.text import clean
from gputui.metrics.log_trial import Trial
from gputui.metrics.source_report import learned_forms
from gputui.profiles.init.draft_arguments import OUT, DraftArguments, quoted
from gputui.profiles.init.draft_subject import DraftNotes, DraftSubject
from gputui.profiles.init.resuming import resume_form

LEARNED_METRICS = (
    "its metrics are learned in the first run: gputui run it, then gputui profile save RUN writes them down"
)


def metrics_lines(subject: DraftSubject, notes: DraftNotes, trial: Trial | None) -> list[str]:
    """The lines of ``metrics``, with what was learned of an old log."""
    if "GPUTUI_METRICS" in subject.survey.text:
        notes.found.append("metrics lines written to $GPUTUI_METRICS")
        return ["metrics: {source: jsonl}"]
    lines = ["metrics: auto                   # learned from what it prints and writes"]
    if trial is None or not trial.points:
        notes.open_points.append(LEARNED_METRICS if trial is None else "nothing in the log looks like metrics")
        return lines
    names = [name for name in trial.points if name not in ("epoch", "total_steps")]
    notes.found.append(f"{trial.taken} of {trial.lines} lines of the log are metrics: {', '.join(names)}")
    for form in learned_forms(trial.learned):
        lines.append(f"# printed: {clean(form.example.strip())}")
        if form.pattern is not None:
            lines.append(f"#   as a pattern: {clean(form.pattern)}")
    return lines


def checkpoint_lines(subject: DraftSubject, arguments: DraftArguments, notes: DraftNotes) -> list[str]:
    """The lines of ``checkpoints``."""
    form = resume_form(subject, arguments.resume)
    if not form.is_known:
        notes.open_points.append("the script has no option to resume: a new attempt would begin from the start")
        return [
            f"# Checkpoints are found by their content, but a new attempt would begin from the start: {form.remark}",
            '# checkpoints: {resume: "--resume {checkpoint}"}',
        ]
    lines = ["checkpoints:                    # found by their content"]
    folder = "."
    if arguments.out_options:
        folder = OUT if OUT in arguments.out_options.values() else "{run_dir}"
    lines.append(f"  dir: {yaml_text(folder)}")
    if form.arguments:
        lines.append(f"  resume: {yaml_text(quoted(form.arguments))}")
    return [*lines, f"  # {form.remark}"] if form.remark else lines


def yaml_text(text: str) -> str:
    """Text as a YAML scalar, quoted only if it must be."""
    return text if re.fullmatch(r"[A-Za-z./][\w./ =-]*", text) and ": " not in text else json.dumps(text)
