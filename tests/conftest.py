"""Settings of the whole suite: one torch thread a worker, property tests that do not depend on the machine's speed."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("sparseopt", deadline=None, derandomize=True)
settings.load_profile("sparseopt")
