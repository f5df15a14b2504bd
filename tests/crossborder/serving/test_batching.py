from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from common.errors import PluginError
from common.wire.acting_payloads import Description
from crossborder.serving.batching import Batcher, Choice
from crossborder.serving.figures import PolicyFigures
from tests.crossborder.serving.services import Counting, steps_of

FOREVER = 3600.0


def submit(batches: Batcher, *lanes: int) -> asyncio.Future[Choice]:
    k, choice = len(lanes), asyncio.get_running_loop().create_future()
    batches.submit(steps_of(np.array(lanes, np.int64), begins=np.ones(k, bool)), choice.set_result)
    return choice


def run(player: Counting, act: Callable[[Batcher], Awaitable[None]], connected: int, **limits: Any) -> PolicyFigures:
    """Let a batcher answer while ``act`` submits."""
    figures = PolicyFigures()

    async def both() -> None:
        chosen = {"max_rows": 64, "max_wait": FOREVER, **limits}
        batches = Batcher(player, Description(player.spec), count_lanes=lambda: connected, figures=figures, **chosen)
        answering = asyncio.create_task(batches.run())
        acting = asyncio.ensure_future(act(batches))
        await asyncio.wait([answering, acting], return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            acting.cancel()
            await answering
        answering.cancel()
        await acting

    asyncio.run(both())
    return figures


def test_a_batch_goes_as_soon_as_all_connected_lanes_wait() -> None:
    player = Counting()

    async def act(batches: Batcher) -> None:
        first = submit(batches, 4, 2)
        await asyncio.sleep(0.01)
        assert not first.done()
        second = submit(batches, 0)
        actions = [np.frombuffer((await choice).action, np.int64).tolist() for choice in (first, second)]
        assert actions == [[1, 1], [1]]

    figures = run(player, act, connected=3)
    assert player.batches == [[4, 2, 0]]
    assert figures.batch_lanes.sum == 3


def test_a_batch_goes_when_it_is_full_and_a_larger_step_goes_alone() -> None:
    player = Counting()

    async def act(batches: Batcher) -> None:
        await asyncio.gather(submit(batches, 0, 1), submit(batches, 2, 3), submit(batches, 4, 5, 6, 7, 8))

    run(player, act, connected=100, max_rows=4)
    assert player.batches == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]


def test_a_batch_goes_without_the_lanes_that_do_not_come_in_time() -> None:
    player = Counting()

    async def act(batches: Batcher) -> None:
        assert (await submit(batches, 3)).opt_steps == 7

    run(player, act, connected=100, max_wait=0.01)
    assert player.batches == [[3]]


def test_a_policy_that_fails_ends_the_service_with_its_reason() -> None:
    class Failing(Counting):
        def sample(self, obs: Any, begins: Any, lanes: Any) -> Any:
            raise IndexError("no such row")

    async def act(batches: Batcher) -> None:
        await submit(batches, 0)

    with pytest.raises(PluginError, match="the policy failed: IndexError: no such row"):
        run(Failing(), act, connected=1)
