"""The host beside the GPUs: processor, memory, disks, network, and what a logout would end.

In: psutil, procfs, systemd. Out: one sample a second (`sample`), a systemd unit of the user (`service_unit`).
"""
