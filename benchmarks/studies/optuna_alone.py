"""The planted search as one writes it with Optuna alone: a subprocess per trial, threads, SQLite as the storage.

``python optuna_alone.py FOLDER TRIALS SLOTS SECONDS SEED``; called again after it was killed, it goes on with what is
left of the budget.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import optuna

PLANTED = Path(__file__).with_name("planted.py")


def main() -> None:
    folder, trials, slots, seconds, seed = Path(sys.argv[1]), *map(float, sys.argv[2:6])

    def objective(trial: optuna.Trial) -> float:
        options = {
            "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.5),
            "width": trial.suggest_categorical("width", [32, 64, 128, 256, 512]),
            "seconds": seconds,
        }
        command = [sys.executable, str(PLANTED), *(f"--{name}={value}" for name, value in options.items())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            losses = [float(json.loads(line)["loss"]) for line in process.stdout]
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}")
        return min(losses)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="planted", storage=f"sqlite:///{folder / 'optuna.db'}", load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=int(seed)),
    )  # fmt: skip
    remaining = int(trials) - len(study.trials)
    if remaining > 0:
        study.optimize(objective, n_trials=remaining, n_jobs=int(slots), catch=(RuntimeError,))
    done = [
        trial.value
        for trial in study.trials
        if trial.state is optuna.trial.TrialState.COMPLETE and trial.value is not None
    ]
    (folder / "result.json").write_text(json.dumps({"complete": len(done), "best": min(done, default=None)}))


if __name__ == "__main__":
    main()
