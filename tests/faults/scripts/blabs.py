"""Tells every secret that it knows wherever a script can, and fails; in its second attempt when it is told to.

The first argument is a file with a secret to a line; what follows is ignored. No PyTorch."""

import json
import os
import pathlib
import sys
import time

secrets = pathlib.Path(sys.argv[1]).read_text().splitlines()
everything = " | ".join(secrets)
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(text):
    os.write(out, (text + "\n").encode())


for secret in secrets:
    print("here it is:", secret, flush=True)
    print("INFO login with", secret, "at", secret, file=sys.stderr, flush=True)
first = os.environ["GPUTUI_ATTEMPT"] == "1"
for step in range(3 if first else 6):
    write(json.dumps({"step": step, "time": time.time(), "loss": 1.0, "grad_norm": 50.0, "note": everything}))
write(json.dumps({"event": "login", "detail": {"as": secrets, "header": f"Authorization: Bearer {secrets[0]}"}}))
for secret in secrets:
    write(json.dumps({"event": secret}))
    write(f"step 7 of {secret} is no JSON")
    write("x " * 95 + secret)
while not first and not (run_dir / "go").exists():
    time.sleep(0.05)
message = f"cannot log in with {everything}"
extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
error = {"message": {"message": message, "extraInfo": extra}}
pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(error))
raise RuntimeError(message)
