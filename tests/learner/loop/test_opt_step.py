"""Opt steps of an agent in a process that environments share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import pytest
import torch

from common.data import Leaves, Record
from common.interfaces import FixedAgent, ReplayBuffer
from learner.loop.opt_step import OptStep


class Learning(FixedAgent):
    """Computes a gradient in each opt step."""

    def sample(self, obs: Leaves) -> Leaves:
        return obs

    def opt(self, buffer: ReplayBuffer) -> Record:
        weights = torch.ones(2, requires_grad=True)
        (gradient,) = torch.autograd.grad((2 * weights).sum(), weights)
        return {"grad": float(gradient.sum())}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_opt_step_computes_gradients_in_whatever_mode_an_environment_has_left_torch(
    mode: Callable[[], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    step = OptStep(Learning(), cast(ReplayBuffer, None), computing=nullcontext(), explain=lambda: "no rows")
    with mode():
        assert [step.take(1), step.take(2)] == [{"grad": 4.0}] * 2
        assert not torch.is_grad_enabled()
    assert caplog.text.count("opt steps compute gradients all the same") == 1
