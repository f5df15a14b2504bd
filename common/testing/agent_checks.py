"""The conformance of an agent: as the learner uses it, as an actor does, and as it comes out of a checkpoint."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from common.agents.network_agent import NetworkAgent, find_objects
from common.data import Array, Items, Model, ModelVersion
from common.envs import Env, box_observations, spec_of
from common.interfaces import Agent, EnvSpec, StepProcessor, TrainingState
from common.processors import OneStep
from common.testing.play import ItemMemory, Policy, check_record, explaining, items_of, play

try:
    import safetensors.numpy
    import safetensors.torch
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[learner]'") from error

OPTS = 20
"""The opt steps that a check takes."""
MIXES = 10
"""The models with shuffled parameters that a check tries."""
MakeAgent = Callable[..., Agent]


def check_agent(
    make: MakeAgent,
    env: Env,
    *,
    processor: StepProcessor | None = None,
    steps: int = 500,
    policy: Policy | None = None,
) -> None:
    """See that an agent acts, learns, publishes, adopts and saves as the system expects.

    Args:
        make: called as ``make(spec=…, seed=…, epsilon=…, device="cpu")``: the class, or a ``functools.partial`` with
            parameters of its own.
        env: the environment it acts in.
        processor: makes the items it learns from; ``OneStep`` if not given.
        steps: how far the environment is played for items, at least as many as the agent needs to begin.
        policy: how to act where random actions are not allowed.

    Raises:
        AssertionError: naming what does not fit and what to do.
    """
    env = box_observations(env)
    spec = spec_of(env)
    episodes = play(env, steps, policy=policy)
    obs: Array = np.stack([step.obs for episode in episodes for step in episode][:64])
    items = items_of(processor or OneStep(), episodes)
    memory = ItemMemory(items)
    learner = _make(make, spec, seed=0)
    _check_seed(learner, _make(make, spec, seed=0))
    _check_acting(learner, obs, spec.action_space, train=False)
    _check_not_recurrent([_make(make, spec, seed=0) for _ in range(3)], obs)
    _check_modes(learner, obs)
    _check_opt(learner, memory)
    _check_td_error(learner, memory)
    actor = _make(make, spec, seed=1)
    _check_sync(actor, learner, obs)
    _check_acting(actor, obs, spec.action_space, train=True)
    _check_policy(learner, obs)
    _check_saving(_make(make, spec, seed=2), learner, obs, memory)
    _check_resuming(_make(make, spec, seed=3), learner)
    _check_optimizers(learner)
    _check_captured(make, spec, items, obs)


def _make(make: MakeAgent, spec: EnvSpec, seed: int) -> Agent:
    with explaining("the agent must be built by keywords: spec=…, seed=…, epsilon=…, device=…"):
        agent = make(spec=spec, seed=seed, epsilon=1.0, device="cpu")
    assert isinstance(agent, Agent), f"expected a common.interfaces.Agent, found {type(agent).__name__}: derive from it"
    return agent


def _check_seed(one: Agent, other: Agent) -> None:
    differs = _difference(one.model_info(), other.model_info())
    assert differs is None, (
        f"two agents of the same seed start with another '{differs}': draw it from the seed, as after "
        "torch.manual_seed(seed)"
    )


def _switch(agent: Agent, *, train: bool) -> None:
    """Switch as torch's modules do: ``train`` explores, ``eval`` does not."""
    agent.train() if train else agent.eval()
    name = "train" if train else "eval"
    assert agent.is_train is train, f"{name}() did not make is_train {train}: call super().{name}() in your own"


def _check_acting(agent: Agent, obs: Array, space: gymnasium.Space[Any], *, train: bool) -> None:
    """Actions fit their space."""
    _switch(agent, train=train)
    for n in (1, len(obs)):
        given = obs[:n].copy()
        actions = agent.sample(given)
        assert np.array_equal(given, obs[:n]), "sample() changed the observations it was given: copy them first"
        _check_actions(actions, n, space)


def _check_not_recurrent(agents: Sequence[Agent], obs: Array) -> None:
    """Three agents of one seed act alike, although the third has seen other observations before.

    Where the first two differ, actions are random; another check is about that.
    """
    actions = []
    for agent, earlier in zip(agents, (obs, obs, obs[::-1].copy()), strict=True):
        _switch(agent, train=False)
        for _ in range(3):
            agent.sample(earlier)
        actions.append(agent.sample(obs))
    assert not _alike(actions[0], actions[1]) or _alike(actions[0], actions[2]), (
        "sample() gave other actions after other earlier observations, so the agent is recurrent: it is not told where "
        "an episode begins, nor which row belongs to which environment; give it stacked observations instead "
        "(gymnasium.wrappers.FrameStackObservation)"
    )


def _check_modes(agent: Agent, obs: Array) -> None:
    """Without exploration, actions depend on nothing but the observation; ends in train mode."""
    actions = agent.sample(obs)
    assert _alike(actions, agent.sample(obs)), "sample() is not deterministic after eval(): act greedily there"
    _switch(agent, train=True)
    agent.sample(obs)
    _switch(agent, train=False)
    assert _alike(actions, agent.sample(obs)), "train() and eval() do not switch back: other actions after both"
    singly = np.concatenate([agent.sample(obs[i : i + 1]) for i in range(len(obs))])
    assert _alike(actions, singly), (
        f"sample() of {len(obs)} observations gave other actions than one by one: no row may depend on the others"
    )
    _switch(agent, train=True)


def _check_actions(actions: Array, n: int, space: gymnasium.Space[Any]) -> None:
    shape = (n, *(space.shape or ()))
    assert isinstance(actions, np.ndarray), (
        f"sample() of {n} observations returned {type(actions).__name__} of shape {list(np.shape(actions))}: return a "
        f"numpy array of shape {list(shape)}, one action a row"
    )
    assert actions.dtype == space.dtype, (
        f"sample() returned {actions.dtype} actions, the action space wants {space.dtype}: use .astype(space.dtype)"
    )
    assert actions.shape == shape, (
        f"sample() of {n} observations returned {list(actions.shape)}, expected {list(shape)}: one action a row"
    )
    for action in actions:
        assert space.contains(action), f"sample() returned {action}, which is not in the action space {space}"


def _check_opt(agent: Agent, memory: ItemMemory) -> None:
    empty = ItemMemory({name: column[:0] for name, column in memory.batch(1).items()})
    live = agent.model_info()
    before, places = _copies(live), _places(live)
    with explaining("opt() on an empty buffer must return None, but it failed"):
        record = agent.opt(empty)
    assert record is None, f"opt() on an empty buffer must return None, found {record}"
    assert _difference(before, agent.model_info()) is None, "opt() returned None and changed the model all the same"
    for _ in range(OPTS):
        record = agent.opt(memory)
        assert record is not None, (
            f"opt() returned None with {len(memory)} items: if the agent needs more to begin, play more steps="
        )
        check_record(record, "opt()")
    assert _places(agent.model_info()) == places, (
        "model_info() gave other tensors after opt(): it must return live tensors, always of the same names, shapes "
        "and storage; change them in place (copy_, add_)"
    )
    assert _difference(before, live) is not None, (
        f"model_info() is the same after {OPTS} calls of opt(): it must return the live tensors, not copies, and opt() "
        "must change them"
    )


def _check_td_error(agent: Agent, memory: ItemMemory) -> None:
    """The TD errors of items are numbers, if the agent offers ``td_error``."""
    if type(agent).td_error is Agent.td_error:
        return
    with explaining("td_error() failed on items"):
        found = agent.td_error(memory.batch(3))
    assert isinstance(found, np.ndarray), f"td_error() returned {type(found).__name__}: return a numpy array"
    assert found.shape == (3,), f"td_error() of 3 items returned {list(found.shape)}, expected [3]: one error an item"
    assert np.isfinite(found).all(), f"td_error() returned {found}: errors must be finite"


def _check_sync(actor: Agent, learner: Agent, obs: Array) -> None:
    tensors = _copies(learner.model_info())
    _adopt(actor, tensors, opt_steps=0)
    differs = _difference(tensors, actor.model_info())
    assert differs is None, f"sync_model() did not adopt '{differs}': afterwards model_info() must hold the model"
    for agent in (actor, learner):
        _switch(agent, train=False)
    advice = "sync_model() did not change what sample() does"
    actions = actor.sample(obs)
    assert _alike(actions, learner.sample(obs)), (
        f"{advice}: an actor with the learner's model must act as the learner does; is all of it in model_info()?"
    )
    rng, changed = np.random.default_rng(0), False
    for opt_steps in range(1, MIXES + 1):
        _adopt(actor, {name: _shuffle(value, rng) for name, value in tensors.items()}, opt_steps)
        changed = changed or not _alike(actions, actor.sample(obs))
    assert changed, f"{advice}: {MIXES} other models, the same actions; does it act from a copy made earlier?"
    _adopt(actor, tensors, MIXES + 1)


def _adopt(actor: Agent, tensors: Mapping[str, torch.Tensor], opt_steps: int) -> None:
    """Let the actor adopt a model that went through a safetensors file, as models do on the wire."""
    with explaining("model_info() must hold tensors that safetensors and numpy can represent"):
        data = safetensors.numpy.save({name: value.cpu().numpy() for name, value in tensors.items()})
        params = safetensors.numpy.load(data)
    with explaining("sync_model() failed on the tensors of model_info()"):
        actor.sync_model(Model(ModelVersion(1, opt_steps), params))


def _shuffle(tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Put the same elements into another order."""
    return tensor.flatten()[torch.from_numpy(rng.permutation(tensor.numel()))].reshape(tensor.shape)


def _check_policy(agent: Agent, obs: Array) -> None:
    """The exported policy acts as the agent does, if the agent offers ``policy``."""
    if type(agent).policy is Agent.policy:
        return
    _switch(agent, train=False)
    policy = agent.policy()
    assert isinstance(policy, torch.nn.Module), f"policy() returned {type(policy).__name__}: return a torch.nn.Module"
    with explaining("policy() failed on a tensor of observations"), torch.inference_mode():
        actions = policy(torch.from_numpy(obs)).numpy()
    expected = agent.sample(obs)
    assert (actions.dtype, _alike(actions, expected)) == (expected.dtype, True), (
        "policy() gave other actions than sample() after eval(): let sample() call it there, so that they cannot differ"
    )


def _check_saving(restored: Agent, saved: Agent, obs: Array, memory: ItemMemory) -> None:
    params = {name: value.detach().cpu().contiguous() for name, value in saved.save_params().items()}
    with explaining("save_params() gave what safetensors cannot save; of tensors that share storage save one or clone"):
        data = safetensors.torch.save(params)
    live = restored.model_info()
    places = _places(live)
    with explaining("load_params() failed on what save_params() gave"):
        restored.load_params(safetensors.torch.load(data))
    advice = "save_params() and load_params() do not round-trip"
    differs = _difference(params, restored.save_params())
    assert differs is None, f"{advice}: '{differs}' is not what was saved"
    for agent in (restored, saved):
        _switch(agent, train=False)
    assert _alike(restored.sample(obs), saved.sample(obs)), f"{advice}: the restored agent acts differently"
    assert _places(restored.model_info()) == places, (
        "model_info() gave other tensors after load_params(): load into the live ones (copy_, load_state_dict)"
    )
    _switch(restored, train=True)
    assert restored.opt(memory) is not None, f"{advice}: the restored agent cannot go on learning, opt() returned None"


def _check_resuming(resumed: Agent, saved: Agent) -> None:
    """The state of training survives a file; it may be no more than ``save_params``."""
    state = saved.training_state()
    with explaining("training_state() gave what cannot be saved: its tensors must suit safetensors, its values JSON"):
        data = safetensors.torch.save({name: value.detach().cpu().clone() for name, value in state.tensors.items()})
        values = json.dumps(state.values)
    live = resumed.model_info()
    places = _places(live)
    with explaining("load_training_state() failed on what training_state() gave"):
        resumed.load_training_state(TrainingState(safetensors.torch.load(data), json.loads(values)))
    found, advice = resumed.training_state(), "training_state() and load_training_state() do not round-trip"
    differs = _difference(state.tensors, found.tensors)
    assert differs is None, f"{advice}: '{differs}' is not what was saved"
    assert json.dumps(found.values) == values, f"{advice}: expected {values}, found {found.values}"
    assert _places(resumed.model_info()) == places, (
        "model_info() gave other tensors after load_training_state(): load into the live ones (copy_, load_state_dict)"
    )


def _check_optimizers(agent: Agent) -> None:
    """The tensors that optimisers have gathered, such as Adam's moments, are part of the state of training."""
    kept = list(agent.training_state().tensors.values())
    for name, optimizer in find_objects(torch.optim.Optimizer, vars(agent).items()):
        gathered = [value for entries in optimizer.state_dict()["state"].values() for value in entries.values()]
        tensors = [value for value in gathered if isinstance(value, torch.Tensor) and value.dim() > 0]
        if all(any(_equal(value, other) for other in kept) for value in tensors):
            continue
        advice = (
            f"training_state() leaves out what the optimiser '{name}' has gathered, so --resume begins it anew: add "
            "its tensors, or derive from common.agents.network_agent.NetworkAgent, which does"
        )
        assert type(agent).training_state is Agent.training_state, advice
        warnings.warn(advice, stacklevel=3)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _check_captured(make: MakeAgent, spec: EnvSpec, items: Items, obs: Array) -> None:
    """Captured updates and actions, if the agent has any, come to the same as those of an eager twin."""
    captured, eager = (_make(make, spec, seed=4) for _ in range(2))
    if not (isinstance(captured, NetworkAgent) and isinstance(eager, NetworkAgent) and captured.is_captured):
        return
    eager.compute_eagerly()
    advice = (
        "with update: captured {} than with update: eager: its network does not do the same in each call, or keeps "
        "something that is no tensor; say update: eager, the default for a network of one's own, or captured=False "
        "where your agent makes an Update or an Inference"
    )
    for agent in (captured, eager):
        torch.manual_seed(0)
        memory = ItemMemory(items)
        for _ in range(OPTS):
            agent.opt(memory)
    differs = _difference(eager.save_params(), captured.save_params())
    assert differs is None, advice.format(f"the agent learns another '{differs}'")
    for agent in (captured, eager):
        _switch(agent, train=False)
        agent.sample(obs)
    assert _alike(eager.sample(obs), captured.sample(obs)), advice.format("the agent acts differently")


def _alike(one: Array, other: Array) -> bool:
    """Equal, up to rounding where actions are floats: a batch may be summed in another order."""
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5)


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def _places(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, torch.Size, torch.dtype]]:
    """Where the tensors lie in memory. Keep the tensors alive until you compare, or others may come to lie there."""
    return {name: (value.data_ptr(), value.shape, value.dtype) for name, value in tensors.items()}


def _difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> str | None:
    """The first name whose tensor is missing or different."""
    for name in sorted({*one, *other}):
        if name not in one or name not in other or not torch.equal(one[name], other[name]):
            return name
    return None
