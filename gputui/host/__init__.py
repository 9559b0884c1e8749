"""The host beside the GPUs: processor, memory, disks, network, and the effects of a logout.

In: psutil, procfs, systemd. Out: one sample per second (`sample`), a systemd unit of the user (`service_unit`).
"""
