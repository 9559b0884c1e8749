"""GPUs, the host and the process that reads them.

In: the NVIDIA driver through NVML or a scenario of simulated GPUs, psutil, procfs, systemd. Out:
JSON lines on a pipe, once a second. `gpu_model` has the values of a GPU at one moment and the
protocol of `nvml` and `simulated`, `host_sample` reads the host, `sampler` is the process,
`sampler_client` the agent's end of its pipe. Read `gpu_model` first.
"""
