"""GPUs: what they are, and the process that reads them.

In: the NVIDIA driver through NVML, or a scenario of simulated GPUs. Out: JSON lines on a pipe, once a second.
`model` is what a GPU is at one moment, `source` the protocol of `nvml` and `simulated`, `sampler` the
process, `client` the agent's end of its pipe. Read `model` first.
"""
