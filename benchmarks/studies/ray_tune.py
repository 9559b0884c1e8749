"""The planted search with Ray Tune and its Optuna searcher, run by an interpreter that has ``ray[tune]`` and Optuna.

``python ray_tune.py FOLDER TRIALS SLOTS SECONDS SEED``; called again after it was killed, it restores the experiment. A
trial that dies is tried again up to three times.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import planted  # its own folder is on the path of a script
import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch


def train(config: dict[str, Any]) -> None:
    began = time.monotonic()
    best = float("inf")
    for step, loss in enumerate(planted.loss_curve(config["lr"], config["dropout"], config["width"])):
        time.sleep(max(0.0, began + (step + 1) * config["seconds"] - time.monotonic()))
        best = min(best, loss)
        tune.report({"loss": best})


def main() -> None:
    folder, trials, slots, seconds, seed = Path(sys.argv[1]), *map(float, sys.argv[2:6])
    variables = {"PYTHONPATH": str(Path(__file__).parent)}
    ray.init(num_cpus=int(slots), include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    space = {
        "lr": tune.loguniform(1e-4, 1e-1),
        "dropout": tune.uniform(0.0, 0.5),
        "width": tune.choice([32, 64, 128, 256, 512]),
        "seconds": seconds,
    }
    store = folder / "ray"
    if (store / "planted" / "tuner.pkl").exists():
        tuner = tune.Tuner.restore(str(store / "planted"), trainable=train, resume_errored=True)
    else:
        tuner = tune.Tuner(
            train,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", num_samples=int(trials), search_alg=OptunaSearch(seed=int(seed)),
                max_concurrent_trials=int(slots),
            ),
            run_config=tune.RunConfig(
                name="planted", storage_path=str(store), failure_config=tune.FailureConfig(max_failures=3), verbose=0
            ),
        )  # fmt: skip
    results = tuner.fit()
    done = [
        result.metrics["loss"]
        for result in results
        if result.error is None and result.metrics and result.metrics.get("training_iteration") == planted.STEPS
    ]
    (folder / "result.json").write_text(json.dumps({"complete": len(done), "best": min(done, default=None)}))


if __name__ == "__main__":
    main()
