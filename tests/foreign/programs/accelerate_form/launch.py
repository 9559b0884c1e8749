"""In the form of `accelerate launch`: a process that starts torchrun in a process of its own and, when that fails, adds an
exception of its own that names the whole command."""

import subprocess
import sys

command = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *sys.argv[1:],
]  # fmt: skip
process = subprocess.Popen(command)
process.wait()
if process.returncode != 0:
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=command)
