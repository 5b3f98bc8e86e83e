"""No network in tests; one thread, since tiny models gain nothing from two and suffer badly when a machine is shared."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
