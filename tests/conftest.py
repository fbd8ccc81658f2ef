"""For all tests: one thread, as a worker has, so that small tensors are fast and bits repeat."""

import torch

torch.set_num_threads(1)
