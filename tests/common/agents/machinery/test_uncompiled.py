"""Processes that learn and act do not import torch.compile."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

LEARNS_AND_ACTS = """
import sys
import torch
from common.agents.machinery.inference import Inference
from common.agents.machinery.optimization import AdamConfig, RMSpropConfig, build_optimizer
from common.agents.machinery.update import Update

net = torch.nn.Linear(2, 1)
for config in (AdamConfig(), RMSpropConfig()):
    optimizer = build_optimizer(net.parameters(), 0.1, config)

    def learn(batch):
        optimizer.zero_grad()
        loss = net(batch["obs"]).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    update = Update(learn, {"net": net}, captured=True)
    first, _, last = [float(update({"obs": torch.ones(4, 2)})["loss"]) for _ in range(3)]
    assert last != first
    optimizer.load_state_dict(optimizer.state_dict())
    Inference(net, torch.device("cpu"), captured=True)(torch.ones(4, 2).numpy())
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_a_process_that_learns_and_acts_captured_does_not_import_torch_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEARNS_AND_ACTS], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
