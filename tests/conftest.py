"""Settings of the whole suite: one torch thread a process, property tests that do not depend on the machine's speed."""

import os
import signal

import torch
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start: the bits of a sum depend on it
torch.set_num_threads(1)
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # shells start jobs in their background with Ctrl-C ignored
settings.register_profile("sparseopt", deadline=None, derandomize=True)
settings.load_profile("sparseopt")
