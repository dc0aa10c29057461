from __future__ import annotations

import torch

# Small nets are fastest on one thread, and one thread adds up in one order.
torch.set_num_threads(1)
