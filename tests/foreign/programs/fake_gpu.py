"""A GPU on which so many rows of a batch fit: what does not is an error of torch's own, as on a real one.

``FAKE_GPU_ROWS`` is how many rows fit, from step ``FAKE_GPU_FROM`` on.
"""

import os


def allocate(rows, step):
    if rows > int(os.environ.get("FAKE_GPU_ROWS", "1000000")) and step >= int(os.environ.get("FAKE_GPU_FROM", "0")):
        import torch

        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.21 GiB "
            "is free. Of the allocated memory 76.52 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch "
            "but unallocated."
        )
