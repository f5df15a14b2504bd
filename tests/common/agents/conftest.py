"""Networks this small are slower on several threads, above all on a busy machine."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
