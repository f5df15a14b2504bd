from __future__ import annotations

import resource
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from common.action_masks import find_masks
from common.agents.bc import BC
from common.agents.c51 import C51
from common.agents.discrete_sac import DiscreteSAC
from common.agents.dqn import DQN
from common.agents.iqn import IQN
from common.agents.ppo import PPO
from common.agents.sac import SAC
from common.data import Array
from common.errors import ConfigError, PluginError
from common.interfaces import Agent, EnvSpec
from crossborder.testing.agent_checks import MakeAgent

if TYPE_CHECKING:
    import onnxruntime

ONE_OF_TWO, ONE_OF_THREE = [(1, 0), (0, 1), (1, 1)], [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)]
FLOATS, BYTES, DOUBLES = Box(-3, 3, (4,), np.float32), Box(0, 255, (2, 3), np.uint8), Box(-3, 3, (2, 3), np.float64)
KEYS, TWO_KEYS = Discrete(5, start=3), MultiDiscrete([2, 3])
UNEVEN = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
DUELING = {"target": "examples.own_network:Dueling", "params": {"width": 16}}
NATURE = {"target": "common.agents.networks:NatureCnn", "params": {"hidden": 8}}
BTR = {
    "target": "common.agents.networks:ImpalaCnn",
    "params": {"sections": (4,), "max_pool": 6, "spectral_norm": True, "hidden": None},
}
AGENTS: dict[str, tuple[MakeAgent, EnvSpec]] = {
    "DQN that counts from 3, on bytes": (DQN, EnvSpec(BYTES, Discrete(5, start=3, dtype=np.int32))),
    "DQN on components that count from 1 and 2": (DQN, EnvSpec(MultiDiscrete([30, 40], start=[1, 2]), Discrete(5))),
    "DQN with an own network": (partial(DQN, network=DUELING), EnvSpec(FLOATS, Discrete(5))),
    "noisy C51": (
        partial(C51, units=(32,), noisy=0.5, dueling=True, normalize_observations=True),
        EnvSpec(FLOATS, Discrete(5)),
    ),
    "noisy IQN with Beyond The Rainbow's network": (
        partial(IQN, network=BTR, feature_dim=16, noisy=0.5, dueling=True, munchausen={}),
        EnvSpec(Box(0, 255, (4, 24, 24), np.uint8), Discrete(5)),
    ),
    "SAC with doubles": (SAC, EnvSpec(DOUBLES, Box(-1, 5, (2, 2), np.float64))),
    "SAC on images": (partial(SAC, units=(16,), network=NATURE), EnvSpec(Box(0, 255, (4, 36, 36), np.uint8), UNEVEN)),
    "SAC with state-dependent noise": (partial(SAC, state_dependent_noise={}), EnvSpec(FLOATS, UNEVEN)),
    "BC of normalised observations": (partial(BC, normalize_observations=True), EnvSpec(FLOATS, UNEVEN)),
}

NOT_WITH_TORCH_2_8 = ("noisy IQN with Beyond The Rainbow's network", "SAC with state-dependent noise")


def export(
    policy: torch.nn.Module, space: Space[Any], path: Path, metadata: Mapping[str, str] = MappingProxyType({})
) -> None:
    from crossborder.policies.export import export_policy  # It imports onnxscript, which only these tests need.

    export_policy(policy, space, metadata, path)


def exported(policy: torch.nn.Module, spec: EnvSpec, path: Path, **metadata: str) -> onnxruntime.InferenceSession:
    import onnxruntime

    export(policy, spec.observation_space, path, metadata)
    return onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("name", AGENTS)
def test_onnxruntime_acts_as_the_agent_does_for_one_and_for_many(tmp_path: Path, name: str) -> None:
    if torch.__version__.startswith("2.8.") and name in NOT_WITH_TORCH_2_8:
        pytest.skip("torch 2.8 cannot convert its operations to ONNX")
    make, spec = AGENTS[name]
    agent: Agent = make(spec=spec, seed=7, epsilon=0.5, device="cpu")
    agent.eval()
    policy = agent.policy()
    for bias in (parameter for parameter in policy.parameters() if parameter.ndim == 1):
        bias.detach().zero_()  # They would decide alone in a policy that has learnt nothing.
    session = exported(policy, spec, tmp_path / "policy.onnx")
    spec.observation_space.seed(0)
    obs: Array = np.stack([spec.observation_space.sample() for _ in range(64)])
    (many,) = session.run(["action"], {"obs": obs})
    single = np.concatenate([session.run(["action"], {"obs": row[None]})[0] for row in obs])
    expected = agent.sample(obs)
    assert len(np.unique(expected, axis=0)) > 1, "a policy that does the same everywhere would show nothing"
    for actions in (many, single):
        assert actions.dtype == spec.action_space.dtype
        np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)
        assert all(spec.action_space.contains(action) for action in actions)


def test_structured_observations_have_an_input_for_each_leaf(tmp_path: Path) -> None:
    space = Dict({"camera": BYTES, "arm": Dict({"joints": FLOATS})})
    spec = EnvSpec(space, Discrete(5))
    agent = DQN(spec, seed=7)
    agent.eval()
    session = exported(agent.policy(), spec, tmp_path / "policy.onnx")
    assert {given.name for given in session.get_inputs()} == {"obs/camera", "obs/arm/joints"}
    camera, joints = (np.stack([part.sample() for _ in range(3)]) for part in (BYTES, FLOATS))
    (actions,) = session.run(["action"], {"obs/camera": camera, "obs/arm/joints": joints})
    np.testing.assert_array_equal(actions, agent.sample({"camera": camera, "arm/joints": joints}))


def test_the_file_names_its_ends_and_where_it_comes_from(tmp_path: Path) -> None:
    import onnx

    spec = EnvSpec(BYTES, Discrete(5))
    session = exported(DQN(spec, seed=0).policy(), spec, tmp_path / "policy.onnx", run_id="abc", opt_steps="12")
    (obs,), (action,) = session.get_inputs(), session.get_outputs()
    assert (obs.name, obs.type, obs.shape) == ("obs", "tensor(uint8)", ["batch", 2, 3])
    assert (action.name, action.type, action.shape) == ("action", "tensor(int64)", ["batch"])
    assert session.get_modelmeta().custom_metadata_map == {"run_id": "abc", "opt_steps": "12"}
    assert onnx.load(tmp_path / "policy.onnx").opset_import[0].version >= 17


class ForTwo(torch.nn.Module):
    """Takes two observations, neither more nor fewer."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.reshape(2, 4)


class Choosy(torch.nn.Module):
    """Looks at values to decide what to compute."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs if obs.sum() > 0 else -obs


class Exotic(torch.nn.Module):
    """Computes what ONNX does not know."""

    def forward(self, obs: torch.Tensor) -> Any:
        return torch.linalg.eigvals(obs[:, :, None] * obs[:, None])


REFUSED: Mapping[type[torch.nn.Module], str] = {
    ForTwo: "Constraints violated",
    Choosy: "data-dependent",
    Exotic: "No ONNX function found",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_policy_that_onnx_cannot_express_is_refused_with_the_cause(
    tmp_path: Path, kind: type[torch.nn.Module]
) -> None:
    with pytest.raises(PluginError, match=f"^the policy cannot be exported: .*{REFUSED[kind]}.*$"):
        export(kind(), FLOATS, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def model() -> Any:
    from crossborder.policies.export import _muting_torch, _to_onnx

    with _muting_torch():
        return _to_onnx(torch.nn.Linear(4, 2), {"": torch.zeros(2, 4)})


@pytest.fixture
def ready_model(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every export finds the model of ``Linear(4, 2)`` ready: it is about where the file is written."""
    monkeypatch.setattr("crossborder.policies.export._to_onnx", lambda *_: model)


@pytest.mark.usefixtures("ready_model")
def test_a_place_that_cannot_be_written_is_an_error_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere/policy\.onnx: cannot be written: No such file or directory"):
        export(torch.nn.Linear(4, 2), FLOATS, tmp_path / "nowhere" / "policy.onnx")


@pytest.mark.usefixtures("ready_model")
def test_a_disk_that_is_full_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"former")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # The kernel refuses the bytes after the hundredth.
    try:
        with pytest.raises(ConfigError, match=r"policy\.onnx: cannot be written: File too large"):
            export(torch.nn.Linear(4, 2), FLOATS, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("ready_model")
@pytest.mark.parametrize("place", [".", "directory"])
def test_a_directory_is_no_place_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("directory").mkdir()
    with pytest.raises(ConfigError, match=f"^--output {place}: cannot be written: "):
        export(torch.nn.Linear(4, 2), FLOATS, Path(place))


def test_the_statistics_of_structured_observations_are_in_the_file(tmp_path: Path) -> None:
    """Random statistics in the place of those that an agent gathers."""
    space = Dict({"arm": Dict({"joints": FLOATS}), "gear": Discrete(3)})
    agent = DQN(EnvSpec(space, Discrete(4)), seed=1, normalize_observations=True)
    generator = torch.Generator().manual_seed(0)
    agent.normalizer.merge({"obs/arm/joints": 100 + 5 * torch.randn(64, 4, generator=generator)})
    session = exported(agent.policy(), EnvSpec(space, Discrete(4)), tmp_path / "policy.onnx")
    obs: dict[str, Array] = {
        "arm/joints": (100 + 5 * torch.randn(50, 4, generator=generator)).numpy(),
        "gear": np.arange(50, dtype=np.int64) % 3,
    }
    (actions,) = session.run(["action"], {f"obs/{path}": leaf for path, leaf in obs.items()})
    agent.eval()
    expected = agent.sample(obs)
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize(
    ("kind", "actions"),
    [(DQN, KEYS), (C51, TWO_KEYS), (IQN, KEYS), (PPO, KEYS), (DiscreteSAC, TWO_KEYS)],
)
def test_an_exported_policy_obeys_masks_as_the_agent_does(tmp_path: Path, kind: Any, actions: Any) -> None:
    spec = EnvSpec(Dict({"observation": FLOATS, "action_mask": Box(0, 1, (5,), np.int8)}), actions)
    agent, masks = kind(spec, seed=7), find_masks(spec)
    agent.eval()
    session = exported(agent.policy(), spec, tmp_path / "policy.onnx")
    mask = np.array([[*first, *second] for first in ONE_OF_TWO for second in ONE_OF_THREE], np.int8)
    obs = {"observation": np.random.default_rng(0).uniform(-3, 3, (len(mask), 4)).astype(np.float32)}
    (found,) = session.run(["action"], {"obs/action_mask": mask, "obs/observation": obs["observation"]})
    assert masks is not None
    assert masks.are_allowed({"action_mask": mask, **obs}, found).all()
    np.testing.assert_array_equal(found, agent.sample({"action_mask": mask, **obs}))


def test_structured_actions_have_an_output_for_each_leaf_which_obeys_masks(tmp_path: Path) -> None:
    actions = Dict({"arm": Dict({"turn": Box(-2, 2, (2, 1), np.float32)}), "keys": MultiDiscrete([2, 3], start=[4, 0])})
    spec = EnvSpec(Dict({"observation": FLOATS, "action_mask": Box(0, 1, (5,), np.int8)}), actions)
    agent, masks = PPO(spec, seed=7), find_masks(spec)
    agent.eval()
    session = exported(agent.policy(), spec, tmp_path / "policy.onnx")
    ends = {end.name: (end.type, end.shape) for end in session.get_outputs()}
    assert ends == {
        "action/arm/turn": ("tensor(float)", ["batch", 2, 1]),
        "action/keys": ("tensor(int64)", ["batch", 2]),
    }
    mask = np.array([[*first, *second] for first in ONE_OF_TWO for second in ONE_OF_THREE], np.int8)
    obs = {"observation": np.random.default_rng(0).uniform(-3, 3, (len(mask), 4)).astype(np.float32)}
    given = {"obs/action_mask": mask, "obs/observation": obs["observation"]}
    names = ["arm/turn", "keys"]
    found = dict(zip(names, session.run([f"action/{name}" for name in names], given), strict=True))
    assert masks is not None
    assert masks.are_allowed({"action_mask": mask, **obs}, found).all()
    expected = agent.sample({"action_mask": mask, **obs})
    np.testing.assert_array_equal(found["keys"], expected["keys"])
    np.testing.assert_allclose(found["arm/turn"], expected["arm/turn"], rtol=1e-5, atol=1e-5)
