"""GPUs and the process that reads them.

In: the NVIDIA driver through NVML, or a scenario of simulated GPUs. Out: JSON lines on a pipe, once a second. `model`
has the values of a GPU at one moment, `source` is the protocol of `nvml` and `simulated`, `sampler` the process,
`client` the agent's end of its pipe. Read `model` first.
"""
