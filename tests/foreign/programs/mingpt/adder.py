"""In the form of minGPT: one process, its own parser of --section.key=value, a callback that prints every ten steps."""

import ast
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
from fake_gpu import allocate

config = {
    "system.work_dir": "./out/adder",
    "trainer.batch_size": 64,
    "trainer.learning_rate": 5e-4,
    "trainer.max_iters": 200,
}
for arg in sys.argv[1:]:
    keyval = arg.split("=")
    assert len(keyval) == 2, f"expecting each override arg to be of form --arg=value, got {arg}"
    key, val = keyval[0][2:], keyval[1]
    assert key in config, f"{key} is not an attribute that exists in the config"
    try:
        val = ast.literal_eval(val)
    except (ValueError, SyntaxError):
        pass
    print(f"command line overwriting config attribute {key} with {val}")
    config[key] = val

work_dir = config["system.work_dir"]
os.makedirs(work_dir, exist_ok=True)
model = torch.nn.Linear(2, 1)
ckpt_path = os.path.join(work_dir, "model.pt")
iter_num = 0
if os.environ.get("GPUTUI_CHECKPOINT"):
    iter_num = torch.load(os.environ["GPUTUI_CHECKPOINT"], weights_only=True)["iter_num"]
while iter_num < config["trainer.max_iters"]:
    allocate(config["trainer.batch_size"], iter_num)
    time.sleep(0.02)
    loss = 3.0 / (iter_num + 1)
    if iter_num % 5 == 0:
        print(f"iter_dt {0.02 * 1000:.2f}ms; iter {iter_num}: train loss {loss:.5f}")
    if iter_num % 20 == 0:
        torch.save({"model": model.state_dict(), "iter_num": iter_num}, ckpt_path)
    iter_num += 1
