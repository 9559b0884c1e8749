"""The ``metrics`` and ``checkpoints`` of a drafted profile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gputui.profiles.init.draft_arguments import OUT
from gputui.profiles.init.draft_subject import DraftNotes, DraftSubject
from gputui.profiles.init.presets import PRESETS, Preset
from gputui.profiles.init.printed_patterns import DraftPattern, patterns_of
from gputui.profiles.init.resumption import Resumption
from gputui.profiles.init.syntax import fill_options

# Keyword arguments that name an output folder, and how the names of the classes that have them end.
_OUTPUT_WORDS = {"output_dir": "(TrainingArguments|Config)$", "default_root_dir": "Trainer$", "save_dir": "CSVLogger$"}


class _Checkpoints(Struct, frozen=True):
    """A folder, "" if unknown, and a glob below it. ``is_guess``: the script shows only a part."""

    folder: str
    pattern: str
    is_guess: bool = False


class DraftOutputs:
    """Drafts the sections that say where a script writes. ``out_options`` are the options that name
    its output folder, with their values."""

    def __init__(
        self, subject: DraftSubject, notes: DraftNotes, out_options: Mapping[str, str], resumption: Resumption
    ) -> None:
        self.subject = subject
        self.survey = subject.survey
        self.preset = subject.preset
        self.notes = notes
        self.out_options = out_options
        self.resumption = resumption
        self.out_dir = self._out_dir()

    def _out_dir(self) -> str | None:
        """The output folder: from the script's option for it, else from its code."""
        if OUT in self.out_options.values():
            return OUT
        for word, ending in _OUTPUT_WORDS.items():
            for call, words in self.survey.keywords.items():
                found = self._filled(words.get(word, "*"))
                if "*" not in found and found and any(re.search(ending, name) for name in self._with_bases(call)):
                    return found.rstrip("/")
        return None

    def _with_bases(self, name: str) -> set[str]:
        """The name of a class and of its base classes, as far as the script shows them."""
        names, new = {name}, {name}
        while new := {base for each in new for base in self.survey.bases.get(each, ())} - names:
            names |= new
        return names

    def _filled(self, path: str) -> str:
        return fill_options(path, {**self.out_options, "run_dir": "{run_dir}"})

    # --- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> list[str]:
        """The lines of ``metrics``."""
        if "GPUTUI_METRICS" in self.survey.text:
            self.notes.found.append("metrics lines written to $GPUTUI_METRICS")
            return ["metrics: {source: jsonl}"]
        sources = self._file_sources()
        drafts = patterns_of(self.survey.printed)
        has_epochs_only = all(draft.steps == "epoch" for draft in drafts)
        ready = [draft for draft in drafts if has_epochs_only or draft.steps in ("global", "in_epoch")]
        # With each pattern that cannot be used, why: none of these lines has a step of the whole training.
        reasons = {"unclear": "names no epoch, and its steps begin again", "epoch": "has no step, only an epoch"}
        spares = [
            f"  # line {each.line}, {reasons[each.steps]}: {_single(each.pattern)}"
            for each in drafts
            if each not in ready
        ]
        if ready and (self.preset is None or self.preset.prints_metrics):
            sources.append([*_output_source(ready, has_epochs_only), *spares])
            self.notes.found.append(f"{len(ready)} printed line{'' if len(ready) == 1 else 's'} with metrics")
            self.notes.guesses += [
                f"line {each.line}: whether steps begin again with each epoch, and after how many, its output shows"
                for each in ready
                if each.is_guess
            ]
        if not sources:
            self.notes.open_points.append(
                "no metrics were found: --preset hf or another takes those of its framework; else give patterns of "
                "what it prints (docs/profiles.md)"
            )
            return [
                "# No metrics were found. What it prints can be searched (docs/profiles.md):",
                "# metrics: {source: output, patterns: ['step (?P<step>\\d+) loss (?P<loss>\\S+)']}",
                *spares,
                "metrics: off",
            ]
        if len(sources) == 1:
            return ["metrics:", *(f"  {line}" for line in sources[0])]
        items = [[f"  - {first}", *(f"    {line}" for line in others)] for first, *others in sources]
        return ["metrics:", *(line for item in items for line in item)]

    def _file_sources(self) -> list[list[str]]:
        """The lines of each source that is a file."""
        survey, preset = self.survey, self.preset
        out_dir = self.out_dir or ("." if preset is None else preset.folder)
        sources: list[list[str]] = []
        if preset is PRESETS["lightning"] and ("CSVLogger" in survey.calls or "metrics.csv" in survey.text):
            sources.append(["source: csv", f'path: "{out_dir}/lightning_logs/version_*/metrics.csv"'])
        elif preset is not None and preset.metrics is not None:
            kind, path = preset.metrics
            sources.append([f"source: {kind}", f'path: "{out_dir}/{path}"'])
            notes = self.notes.guesses if self.out_dir is None else self.notes.found
            notes.append(f"metrics in {out_dir}/{path}")
        if "SummaryWriter" in survey.calls:
            words = survey.keywords.get("SummaryWriter", {})
            folder = self._filled(words.get("log_dir", words.get("logdir", "runs/*")))
            sources.append(["source: tensorboard", f'path: "{folder}"'])
            self.notes.found.append(f"TensorBoard files in {folder}")
        return sources

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[str]:
        """The lines of ``checkpoints``."""
        notes = self.notes
        saved = self._saved()
        if saved is not None and not saved.folder:
            notes.open_points.append(
                f"in which folder it saves {saved.pattern} cannot be seen: write it as checkpoints: dir"
            )
            saved = None
        is_passed = re.search(r"--\S*resume", self.subject.command_text) is not None
        resume, comment = " ".join(self.resumption.words) or None, self.resumption.comment
        if is_passed:
            resume, comment = None, "what it starts is given its own option to resume"
        elif resume is None and not comment:
            comment = "the script would begin again; where it can, let it load os.environ.get('GPUTUI_CHECKPOINT')"
            if self._loads_own_checkpoint:
                comment = "the script seems to load its own checkpoint where that is there"
        if saved is None:
            notes.open_points.append("no checkpoints were found: a new attempt begins from the start")
            return [
                "# No checkpoints were found; with them a new attempt would go on from the newest one:",
                '# checkpoints: {dir: "{run_dir}/checkpoints", pattern: "step_*.pt", resume: "'
                + (resume or "--resume {checkpoint}") + '"}',
            ]  # fmt: skip
        where = f"checkpoints {saved.folder}/{saved.pattern}"
        if saved.is_guess:
            notes.guesses.append(f"{where}: a guess; gputui explain says after a run whether a file matched")
        else:
            notes.found.append(where)
        lines = [
            "checkpoints:",
            f"  dir: {yaml_text(saved.folder)}",
            f"  pattern: {yaml_text(saved.pattern)}" + ("     # a guess" if saved.is_guess else ""),
        ]
        if resume is not None:
            lines.append(f"  resume: {yaml_text(resume)}")
        elif not self.resumption.is_own and not is_passed and not self._loads_own_checkpoint:
            notes.open_points.append("the script has no option to resume: a new attempt would begin from the start")
        return [*lines, f"  # {comment}"] if comment else lines

    def _saved(self) -> _Checkpoints | None:
        """The place of checkpoints: the framework's, else that of the script's calls, else the one
        checkpoint file that it names."""
        return self._saved_by_framework() or self._saved_by_calls() or self._named_file()

    def _saved_by_framework(self) -> _Checkpoints | None:
        preset = self.preset
        if preset is None or preset.checkpoints is None or self._own_paths(preset):
            return None
        is_guess = preset.is_guess or self.out_dir is None
        return _Checkpoints(self.out_dir or preset.folder, preset.checkpoints, is_guess)

    def _own_paths(self, preset: Preset) -> list[str]:
        """The paths by which a script replaces those of its framework."""
        suffix, usual = preset.own_checkpoints, (preset.checkpoints or "").partition("/")[0]
        paths = [path for path in self._paths() if suffix is not None and path.endswith(suffix) and path[0] != "*"]
        return paths if paths and not paths[0].startswith(usual) else []

    def _paths(self) -> list[str]:
        return [self._filled(path) for path in self.survey.saves]

    def _saved_by_calls(self) -> _Checkpoints | None:
        paths = (
            self._paths() if self.preset is None or self.preset.checkpoints is None else self._own_paths(self.preset)
        )
        for path in sorted(paths, key=lambda path: ("best" in path, "*" not in path.rpartition("/")[2])):
            folder, _, pattern = path.rpartition("/")
            if not pattern.strip("*"):
                continue
            known, star, _ = folder.partition("*")
            if not star:
                return _Checkpoints(folder or ".", pattern)
            # The unknown part may be any number of folders.
            return _Checkpoints(known.rpartition("/")[0] or self.out_dir or "", f"**/{pattern}", is_guess=True)
        return None

    def _named_file(self) -> _Checkpoints | None:
        named = {path for path in self.survey.named_files if "best" not in path}
        if len(named) != 1:
            return None
        (path,) = named
        folder, _, file = path.rpartition("/")
        option = next((name for name, each in self.survey.options.items() if each.default == path), None)
        if option is not None and option in self.out_options:
            return _Checkpoints(self.out_options[option].removesuffix(f"/{file}"), file, is_guess=True)
        if self.out_dir is not None:
            return _Checkpoints(self.out_dir, f"**/{file}", is_guess=True)
        return _Checkpoints(folder or ".", file, is_guess=True)

    @property
    def _loads_own_checkpoint(self) -> bool:
        return "load" in self.survey.calls and bool(self.survey.calls & {"exists", "is_file", "isfile"})


def _output_source(patterns: Sequence[DraftPattern], has_epochs_only: bool) -> list[str]:
    """The lines of a source that searches the output of the first rank."""
    lines = ["source: output                 # stdout and stderr of the first rank"]
    if has_epochs_only:
        lines.append("step: epoch")
    units = {name: unit for pattern in patterns for name, unit in pattern.units.items()}
    if units:
        lines.append("units: {" + ", ".join(f"{name}: {unit}" for name, unit in units.items()) + "}")
    texts = [pattern.pattern for pattern in patterns]
    if not any("(?P<loss>" in text for text in texts):
        # Alerts and recovery know the loss by this name.
        texts = [text.replace("(?P<train_loss>", "(?P<loss>") for text in texts]
    return [*lines, "patterns:", *(f"  - {_single(text)}" for text in texts)]


def _single(text: str) -> str:
    """Text in YAML's single quotes."""
    return "'" + text.replace("'", "''") + "'"


def yaml_text(text: str) -> str:
    """Text as a YAML scalar, quoted only if it must be."""
    return text if re.fullmatch(r"[A-Za-z./][\w./ =-]*", text) and ": " not in text else json.dumps(text)
