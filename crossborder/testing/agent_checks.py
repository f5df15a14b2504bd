"""Checks an agent: on the learner, on an actor, and after it was restored from a checkpoint."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from common.agents.network_agent import NetworkAgent, find_objects
from common.agents.tensor_copies import copy_to_cpu
from common.data import EVAL_KEYS, RUN_KEYS, Items, Leaves, Model, ModelVersion, Record
from common.interfaces import Agent, EnvSpec, ReplayBuffer, Step, StepProcessor, TrainingState
from common.lanes.building import Env, spec_of
from common.leaves import by_path, stack_lanes
from common.parts import row_schema
from common.wire.tensor_file import read_tensors
from crossborder.testing.acting_checks import (
    alike,
    begin,
    check_acting,
    check_actions,
    check_masks,
    switch,
)
from crossborder.testing.play import ItemMemory, Policy, check_record, explaining, items_of, play
from crossborder.testing.row_memory import RowMemory, make_view, rows_of, transitions_of
from learner.loop.learner_parts import LOADED_ELSEWHERE, MOVED, check_tensors, places_of
from learner.models.publisher import as_sent
from learner.replay.view import View

try:
    import safetensors.torch
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[learner]'") from error

OPTS = 20
"""The opt steps that a check takes."""
MIXES = 10
"""The models with shuffled parameters that a check tries."""
MakeAgent = Callable[..., Agent]
MakeView = Callable[..., "View"]


@dataclass(frozen=True)
class Played:
    """The played episodes, in the forms from which agents learn."""

    make_memory: Callable[[], ReplayBuffer]
    """Makes a replay of the episodes, always with the same draws."""
    transitions: Items
    """For ``td_error``."""


def check_agent(
    make: MakeAgent,
    env: Env,
    *,
    processor: StepProcessor | None = None,
    view: MakeView | None = None,
    steps: int = 500,
    policy: Policy | None = None,
) -> None:
    """Check that an agent acts, records, learns, saves, and publishes and adopts models as the system expects.

    Args:
        make: called as ``make(spec=…, seed=…, epsilon=…, device="cpu")``: the class, or a ``functools.partial`` with
            further parameters.
        env: the environment in which the agent acts.
        processor: makes the items from which the agent learns, if it does not learn from rows.
        view: assembles the agent's batches, such as ``partial(Sequences, length=20)``; without a view and a processor,
            batches hold one-step transitions.
        steps: the number of steps to play, at least as many as the agent needs to begin.
        policy: chooses actions if random actions are not allowed.
    """
    spec = spec_of(env)
    episodes = play(env, steps, policy=policy)
    obs = stack_lanes([step.obs for episode in episodes for step in episode][:64])
    learner = make_agent(make, spec, seed=0)
    with explaining("the agent's tensors cannot be published and saved"):
        check_tensors(learner)
    _check_seed(learner, make_agent(make, spec, seed=0))
    check_acting([make_agent(make, spec, seed=0) for _ in range(3)], obs, spec.action_space)
    played = _play_for(make_agent(make, spec, seed=0), spec, episodes, processor, view)
    _check_opt(learner, played, obs)
    _check_td_error(learner, ItemMemory(played.transitions))
    actor = make_agent(make, spec, seed=1)
    _check_sync(actor, learner, obs)
    check_actions(actor, obs, spec.action_space, train=True)
    check_masks(actor, obs, spec)
    _check_policy(learner, obs)
    _check_saving(make_agent(make, spec, seed=2), learner, obs, played.make_memory())
    _check_resuming(make_agent(make, spec, seed=3), learner)
    _check_optimizers(learner)
    _check_captured(learner, make_agent(make, spec, seed=0), played, obs)


def _play_for(
    agent: Agent,
    spec: EnvSpec,
    episodes: Sequence[Sequence[Step]],
    processor: StepProcessor | None,
    view: MakeView | None,
) -> Played:
    """The episodes with the extra columns of this agent, as if it had acted in them."""
    schema = row_schema(spec, agent)
    rows = rows_of(schema, episodes, [list(_record(agent, episode)) for episode in episodes])
    transitions = transitions_of(schema, rows)
    if view is not None:
        made = make_view(view, schema, discount_factor=getattr(agent, "discount_factor", 0.99))
        return Played(lambda: RowMemory(schema, rows, made), transitions)
    items = items_of(processor, episodes) if processor else transitions
    return Played(lambda: ItemMemory(items), items)


def _record(agent: Agent, episode: Sequence[Step]) -> Iterator[Items]:
    """The extras of each step, after ``sample`` has seen its observation."""
    agent.train()
    agent.begin(np.ones(1, np.bool_))
    for step in episode:
        agent.sample(stack_lanes([step.obs]))
        yield {name: column.copy() for name, column in agent.extras().items()}
        agent.begin(np.zeros(1, np.bool_))


def make_agent(make: MakeAgent, spec: EnvSpec, seed: int, epsilon: float = 1.0) -> Agent:
    """Build an agent as the system does.

    Raises:
        AssertionError: it cannot be built so, or it is no ``Agent``.
    """
    with explaining("the agent must be built by keywords: spec=…, seed=…, epsilon=…, device=…"):
        agent = make(spec=spec, seed=seed, epsilon=epsilon, device="cpu")
    assert isinstance(agent, Agent), f"expected a crossborder.Agent, found {type(agent).__name__}: derive from it"
    return agent


def _check_seed(one: Agent, other: Agent) -> None:
    differs = _difference(one.model_info(), other.model_info())
    assert differs is None, (
        f"two agents of the same seed start with another '{differs}': draw it from the seed, as after "
        "torch.manual_seed(seed)"
    )


def _check_opt(agent: Agent, played: Played, obs: Leaves) -> None:
    """Check that a new agent learns from the played episodes."""
    empty = ItemMemory({name: column[:0] for name, column in played.make_memory().batch(1).items()})
    live = agent.model_info()
    before, places = _copies(live), places_of(live)
    with explaining("opt() on an empty buffer must return None, but it failed"):
        record = agent.opt(empty)
    assert record is None, f"opt() on an empty buffer must return None, found {record}"
    assert _difference(before, agent.model_info()) is None, "opt() returned None, but it changed the model"
    for record in _learn(agent, played, obs):
        assert record is not None, (
            f"opt() returned None with {len(played.make_memory())} items: if the agent needs more to begin, play more "
            "steps="
        )
        check_record(record, "opt()", RUN_KEYS | EVAL_KEYS)
    assert places_of(agent.model_info()) == places, MOVED
    assert _difference(before, live) is not None, (
        f"model_info() is the same after {OPTS} calls of opt(): it must return the live tensors, not copies, and opt() "
        "must change them"
    )


def _learn(agent: Agent, played: Played, obs: Leaves) -> Iterator[Record | None]:
    """Act, and then take the opt steps of a check, always with the same draws and random numbers."""
    torch.manual_seed(0)
    switch(agent, train=True)
    begin(agent, obs)
    memory = played.make_memory()
    for _ in range(OPTS):
        yield agent.opt(memory)


def _check_td_error(agent: Agent, memory: ReplayBuffer) -> None:
    """Check that the TD errors of items are finite, if the agent offers ``td_error``."""
    if type(agent).td_error is Agent.td_error:
        return
    with explaining("td_error() failed on items"):
        found = agent.td_error(memory.batch(3))
    assert isinstance(found, np.ndarray), f"td_error() returned {type(found).__name__}: return a numpy array"
    assert found.shape == (3,), f"td_error() of 3 items returned {list(found.shape)}, expected [3]: one error an item"
    assert np.isfinite(found).all(), f"td_error() returned {found}: errors must be finite"


def _check_sync(actor: Agent, learner: Agent, obs: Leaves) -> None:
    tensors = _copies(learner.model_info())
    _adopt(actor, tensors, opt_steps=0)
    differs = _difference(tensors, actor.model_info())
    assert differs is None, f"sync_model() did not adopt '{differs}': afterwards model_info() must hold the model"
    for agent in (actor, learner):
        switch(agent, train=False)
    advice = "sync_model() did not change what sample() does"
    actions = begin(actor, obs)
    assert alike(actions, begin(learner, obs)), (
        f"{advice}: an actor with the learner's model must act as the learner does; is all of it in model_info()?"
    )
    rng, changed = np.random.default_rng(0), False
    for opt_steps in range(1, MIXES + 1):
        _adopt(actor, {name: _shuffle(value, rng) for name, value in tensors.items()}, opt_steps)
        changed = changed or not alike(actions, begin(actor, obs))
    assert changed, f"{advice}: {MIXES} other models gave the same actions; does it act from an earlier copy?"
    _adopt(actor, tensors, MIXES + 1)


def _adopt(actor: Agent, tensors: Mapping[str, torch.Tensor], opt_steps: int) -> None:
    """Let the actor adopt a model that went through a safetensors file, as models do on the wire.

    Actors get bfloat16 as float32.
    """
    with explaining("model_info() must hold tensors that an actor can represent"):
        data = safetensors.torch.save(copy_to_cpu({name: as_sent(name, value) for name, value in tensors.items()}))
        params = read_tensors(np.frombuffer(bytearray(data), np.uint8))
    with explaining("sync_model() failed on the tensors of model_info()"):
        actor.sync_model(Model(ModelVersion(1, opt_steps), params))


def _shuffle(tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Shuffle the elements of a tensor; a tensor of bytes stays, because it holds the hash of weights, not weights."""
    if tensor.dtype == torch.uint8:
        return tensor
    return tensor.flatten()[torch.from_numpy(rng.permutation(tensor.numel()))].reshape(tensor.shape)


def _check_policy(agent: Agent, obs: Leaves) -> None:
    """Check that the exported policy acts as the agent does, if the agent offers ``policy``."""
    if type(agent).policy is Agent.policy:
        return
    switch(agent, train=False)
    policy = agent.policy()
    assert isinstance(policy, torch.nn.Module), f"policy() returned {type(policy).__name__}: return a torch.nn.Module"
    with explaining("policy() failed on a tensor of observations"), torch.inference_mode():
        found = policy(_to_tensors(obs))
        actions = {path: leaf.numpy() for path, leaf in found.items()} if isinstance(found, dict) else found.numpy()
    expected = begin(agent, obs)
    dtypes = [{path: leaf.dtype for path, leaf in by_path(each).items()} for each in (actions, expected)]
    assert (dtypes[0], alike(actions, expected)) == (dtypes[1], True), (
        "policy() gave other actions than sample() after eval(): let sample() use policy(), so that they cannot differ"
    )


def _check_saving(restored: Agent, saved: Agent, obs: Leaves, memory: ReplayBuffer) -> None:
    params = copy_to_cpu(saved.save_params())
    with explaining("save_params() gave tensors that safetensors cannot save"):
        data = safetensors.torch.save(params)
    live = restored.model_info()
    places = places_of(live)
    with explaining("load_params() failed on what save_params() gave"):
        restored.load_params(safetensors.torch.load(data))
    advice = "save_params() and load_params() do not round-trip"
    differs = _difference(params, restored.save_params())
    assert differs is None, f"{advice}: '{differs}' is not what was saved"
    for agent in (restored, saved):
        switch(agent, train=False)
    assert alike(begin(restored, obs), begin(saved, obs)), f"{advice}: the restored agent acts differently"
    assert places_of(restored.model_info()) == places, LOADED_ELSEWHERE
    switch(restored, train=True)
    assert restored.opt(memory) is not None, f"{advice}: the restored agent cannot go on learning, opt() returned None"


def _check_resuming(resumed: Agent, saved: Agent) -> None:
    """Check that the state of training survives a file; it may hold only ``save_params``."""
    state = saved.training_state()
    with explaining("training_state() cannot be saved: safetensors must hold its tensors, and JSON its values"):
        data = safetensors.torch.save(copy_to_cpu(state.tensors))
        values = json.dumps(state.values)
    live = resumed.model_info()
    places = places_of(live)
    with explaining("load_training_state() failed on what training_state() gave"):
        resumed.load_training_state(TrainingState(safetensors.torch.load(data), json.loads(values)))
    found, advice = resumed.training_state(), "training_state() and load_training_state() do not round-trip"
    differs = _difference(state.tensors, found.tensors)
    assert differs is None, f"{advice}: '{differs}' is not what was saved"
    assert json.dumps(found.values) == values, f"{advice}: expected {values}, found {found.values}"
    assert places_of(resumed.model_info()) == places, (
        "model_info() gave other tensors after load_training_state(): load into the live ones (copy_, load_state_dict)"
    )


def _check_optimizers(agent: Agent) -> None:
    """Check that the tensors of optimisers, such as Adam's moments, are part of the state of training."""
    kept = list(agent.training_state().tensors.values())
    for name, optimizer in find_objects(torch.optim.Optimizer, vars(agent).items()):
        gathered = [value for entries in optimizer.state_dict()["state"].values() for value in entries.values()]
        tensors = [value for value in gathered if isinstance(value, torch.Tensor) and value.dim() > 0]
        if all(any(_equal(value, other) for other in kept) for value in tensors):
            continue
        advice = (
            f"training_state() leaves out the tensors of the optimiser '{name}', so it begins again at --resume: add "
            "its tensors, or derive from crossborder.NetworkAgent, which adds them"
        )
        assert type(agent).training_state is Agent.training_state, advice
        warnings.warn(advice, stacklevel=3)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _check_captured(learner: Agent, eager: Agent, played: Played, obs: Leaves) -> None:
    """Check that captured updates and actions, if the agent has any, give the same results as eager ones.

    Args:
        learner: has taken the opt steps of a check.
        eager: an agent as the learner was when it was new.
        played: the episodes from which the learner has learnt.
        obs: observations of n lanes.
    """
    if not (isinstance(learner, NetworkAgent) and isinstance(eager, NetworkAgent) and learner.is_captured):
        return
    eager.compute_eagerly()
    for _ in _learn(eager, played, obs):
        pass
    advice = (
        "with update: captured {} than with update: eager: its network does not do the same in each call, or keeps "
        "a value that is no tensor; set update: eager, the default for your own network, or captured=False "
        "where your agent makes an Update or an Inference"
    )
    differs = _difference(eager.save_params(), learner.save_params())
    assert differs is None, advice.format(f"the agent learns another '{differs}'")
    for agent in (learner, eager):
        switch(agent, train=False)
        begin(agent, obs)
    assert alike(begin(eager, obs), begin(learner, obs)), advice.format("the agent acts differently")


def _to_tensors(obs: Leaves) -> torch.Tensor | dict[str, torch.Tensor]:
    if isinstance(obs, dict):
        return {path: torch.from_numpy(leaf) for path, leaf in obs.items()}
    return torch.from_numpy(obs)


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def _difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> str | None:
    """The first name whose tensor is missing or different."""
    for name in sorted({*one, *other}):
        if name not in one or name not in other or not torch.equal(one[name], other[name]):
            return name
    return None
