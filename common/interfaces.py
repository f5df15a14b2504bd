"""The interfaces of the parts that a configuration can name, on one page.

    env ─rows→ RowMap ══wire══▶ replay memory ─View→ ReplayBuffer ─batch→ Agent.opt
             Agent.sample ← Agent.sync_model ◀══wire══ Agent.model_info

An actor records rows: one for each lane (one copy of the environment) at each time step. The learner links the rows of
each lane, and a view assembles from them what the agent draws: transitions, sequences, stacks of frames.

To use your own part, implement its interface and name the part in the configuration:

    env.target              a ``gymnasium.Env`` or a ``gymnasium.vector.VectorEnv``
    step_processor.target   RowMap, or StepProcessor for self-contained items without links
    agent.target            Agent
    replay.view.target      a view; derive it from ``learner.replay.view:View``
    replay.target           ReplayBuffer; derive it from ``crossborder.SharedReplay``
    evaluator.target        Evaluator
    recorders[].target      Recorder
    callbacks[].target      Callback

``crossborder`` has a check for each, such as ``check_agent``. Names and meanings follow border (taku-y/border).
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from common.data import Array, Column, Items, Leaves, Model, Record, Schema
from common.errors import PluginError

if TYPE_CHECKING:
    import gymnasium
    import torch


@dataclass(frozen=True)
class EnvSpec:
    """The spaces of one lane as the agent sees them: with ``env.frame_stack``, observations are stacks of frames."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


class RowMap(abc.ABC):
    """Changes the rewards or observations of rows, or adds columns, before the rows are sent. It keeps no state."""

    @abc.abstractmethod
    def schema(self, rows: Schema) -> Schema:
        """The columns of the rows that ``map`` returns; see ``Schema.plus``."""

    @abc.abstractmethod
    def map(self, rows: Items) -> Items:
        """Return the same number of rows in the same order, every column ``[n, *shape]``; some may be final rows."""


@dataclass(slots=True)  # Not frozen: that would take three times as long to construct.
class Step:
    """One step of one lane. ``next_obs`` is the true next observation, also at the end of an episode.

    Observations and actions of Dict and Tuple spaces are given as leaves by path, see ``common.spaces``.
    """

    obs: Leaves
    action: Any
    reward: float
    next_obs: Leaves
    terminated: bool
    """The episode ended by its own rules: no future reward, do not bootstrap."""
    truncated: bool
    """The episode was cut off from outside: bootstrap from ``next_obs``."""


class StepProcessor(Protocol):
    """Turns steps into self-contained items of any columns: 0 to n items a step, never across an episode's boundary.

    Items have no links: the learner draws them one by one, unchanged.
    """

    def schema(self, spec: EnvSpec) -> Schema:
        """The columns of the items that ``process`` yields."""

    def reset(self) -> None:
        """An episode begins: forget everything."""

    def process(self, step: Step) -> Items | None:
        """Return the items that are complete after this step, each column ``[n, *shape]``, or None."""


class ReplayBuffer(Protocol):
    """The items from which an agent learns.

    A buffer that a configuration names draws from the replay that ingest fills. It must also draw safely while ingest
    overwrites rows, and go on in a resumed run. ``crossborder.SharedReplay`` does both.
    """

    @property
    def inserted(self) -> int:
        """Steps accepted so far; final rows do not count."""

    @property
    def sampled(self) -> int:
        """Steps drawn so far; a sequence counts as one for each of its steps."""

    @property
    def is_uniform(self) -> bool:
        """Whether a draw depends on no earlier draw or update, so that an agent may draw several batches as one.

        Only a buffer of which this is true overrides this property.
        """
        return False

    def __len__(self) -> int:
        """Steps that can be drawn now."""

    def batch(self, size: int) -> Items:
        """Draw with replacement: every column ``[size, *shape]``, valid until the next call.

        The view decides which columns there are, and which of them have an axis of time after the first. A prioritised
        buffer adds ``index`` (int64), which names each draw in ``update_priority``, and ``weight`` (float32, above 0
        and at most 1), by which the agent multiplies the loss of each draw.

        Raises:
            PluginError: ``size`` is no whole number of at least 1.
        """

    def tensors(self, size: int) -> dict[str, torch.Tensor] | None:  # noqa: ARG002 - for buffers that have tensors
        """Draw items as ``batch`` does, as tensors on ``trainer.device``; None: this buffer has arrays only.

        Only a buffer that keeps its items on the device overrides this method.
        """
        return None

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Take the TD errors of drawn items, both arrays ``[n]``; called only if batches have an ``index``.

        The sign does not matter. The buffer skips items that were overwritten after they were drawn.
        """


@dataclass(frozen=True)
class TrainingState:
    """The state from which an agent goes on learning as if it had never been interrupted."""

    tensors: Mapping[str, torch.Tensor]
    """By name. They may be the agent's live tensors: a checkpoint copies them."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values that JSON can hold, such as counters and the states of random generators."""


class Agent(abc.ABC):
    """A policy that learns. All processes build it as ``YourAgent(spec=…, seed=…, epsilon=…, device=…, **params)``.

    The device is ``trainer.device`` on the learner, ``cpu`` on actors, and that of its options in an acting service.

    The learner calls ``opt`` and ``model_info``, an actor ``begin``, ``sample`` and ``sync_model``; ``train`` and
    ``eval`` switch exploration on and off, as in torch.
    """

    is_train = False
    draws_once: ClassVar[bool] = False
    """Whether the agent learns from each step only once, as on-policy agents do. Such an agent needs a queue: training
    does not begin with a replay that draws steps again and again."""
    keeps_to_episodes: ClassVar[bool] = False
    """Whether the agent learns only from draws that lie within one episode: training does not begin with a view whose
    draws go on in the next episode."""

    def train(self) -> None:
        """Explore from now on."""
        self.is_train = True

    def eval(self) -> None:
        """Act greedily from now on."""
        self.is_train = False

    def begin(self, begins: Array, lanes: Array | None = None) -> None:  # noqa: B027 - no memory, nothing to do
        """Take note in which of n lanes the observation of the next ``sample`` begins an episode, ``[n]`` bool.

        An agent with a memory clears the memory of these lanes. All lanes are True in the first call, and in the first
        call with another n. Train mode and eval mode need separate memories: in training in turns, an evaluation comes
        between two steps of an episode. ``crossborder.LaneMemory`` is such a memory.

        Only an agent whose ``sample`` takes ``lanes`` is given them, see ``LaneAgent``.
        """

    @abc.abstractmethod
    def sample(self, obs: Any) -> Any:
        """Actions for observations ``[n, *shape]``, as ``[n, *action_shape]``.

        Both are ``Leaves``: for a Dict or Tuple space, one array for each leaf, by path. An agent that supports only
        other spaces may declare that it takes and returns arrays. It leaves the observations as they are: the rows take
        them after this call.

        The rows are those of all n lanes. An agent that takes ``lanes`` too can act for some of them, see
        ``LaneAgent``; all agents of crossborder do.
        """

    def extra_columns(self) -> Sequence[Column]:
        """The columns that this agent records beside each action, such as a log-probability; none by default.

        Columns named ``state`` or ``state/…`` hold the recurrent state before the action: a sequence takes them from
        its first row only.
        """
        return ()

    def extras(self) -> Items:
        """The extra columns ``[n, *shape]`` of the actions that the last ``sample`` returned."""
        return {}

    @abc.abstractmethod
    def opt(self, buffer: ReplayBuffer) -> Record | None:
        """Make one opt step. Return None if that is not yet possible (warm-up): no step is counted then."""

    def td_error(self, items: Items) -> Array:  # noqa: ARG002 - for overrides
        """The TD errors of one-step transitions under the present model, ``[n]``; actors use them as first priorities.

        Only ``push.initial_priorities`` needs them. An actor has only the tensors that ``model_info`` names.

        Raises:
            PluginError: the agent cannot compute them.
        """
        raise PluginError(f"push.initial_priorities: {type(self).__name__} has no td_error(items)")

    @abc.abstractmethod
    def model_info(self) -> Mapping[str, torch.Tensor]:
        """The live tensors that the policy needs, always with the same names, shapes and storage."""

    @abc.abstractmethod
    def sync_model(self, model: Model) -> None:
        """Adopt a published model; ``model.version.opt_steps`` drives schedules such as exploration."""

    @abc.abstractmethod
    def save_params(self) -> Mapping[str, torch.Tensor]:
        """The tensors that a checkpoint or a saved policy keeps, by name."""

    @abc.abstractmethod
    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        """Load parameters that ``save_params`` returned."""

    def training_state(self) -> TrainingState:
        """The state that checkpoints keep. Without an override, a resumed agent has new optimisers and generators."""
        return TrainingState(self.save_params())

    def load_training_state(self, state: TrainingState) -> None:
        """Load a state that ``training_state`` returned, into the tensors that ``model_info`` names.

        Raises:
            CheckpointError: it is the state of another network.
        """
        self.load_params(state.tensors)

    def random_state(self) -> TrainingState:
        """The part of ``training_state`` that each rank keeps for itself: the states of random generators.

        A resumed run with several ranks goes on from the training state of rank 0, except for this part. Without an
        override, the ranks draw the same random numbers.
        """
        return TrainingState({})

    def load_random_state(self, state: TrainingState) -> None:  # noqa: B027 - an agent may have no generators
        """Load a state that ``random_state`` returned."""

    def policy(self) -> torch.nn.Module:
        """The greedy policy: observations ``[n, *shape]`` to the actions ``sample`` gives in eval mode, as tensors.

        The module shares the agent's weights. Only export needs this method; an agent may leave it out.

        Raises:
            PluginError: the agent has no such module.
        """
        raise PluginError(f"{type(self).__name__} offers no policy(): return its greedy policy as a torch.nn.Module")


class FixedAgent(Agent):
    """An agent without parameters, which learns nothing."""

    def opt(self, buffer: ReplayBuffer) -> Record | None:  # noqa: ARG002 - the signature of Agent
        return None

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {}

    def sync_model(self, model: Model) -> None:
        """Do nothing: there are no parameters."""

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {}

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        """Do nothing: there are no parameters."""


class LaneAgent(Protocol):
    """An agent that can act for some of its lanes, those that wait for an action; ``acting_for_lanes`` gives it.

    ``lanes`` names the lane of each row of a call, ``[k]`` int64 in any order, all different and at least one. Without
    ``lanes``, rows are those of all n lanes, in their order.

    Lanes are counted from 0, and nobody need know beforehand how many there will be: ``begin`` with a new number adds a
    lane. An agent holds memory for all numbers up to the greatest one, so give the number of a lane that has left to
    the next lane, and say with ``begin`` that an episode begins there.

    A lane acts the same whichever lanes act beside it. So random numbers of a call with ``lanes`` come from a sequence
    for each lane (``crossborder.LaneRandom``), and not from the generator that serves all lanes.
    """

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        """As ``Agent.begin``, for these lanes; the other ones go on."""

    def sample(self, obs: Any, lanes: Array | None = None) -> Any:
        """As ``Agent.sample``, for these lanes; the other ones stay as they are."""

    def extras(self) -> Items:
        """As ``Agent.extras``: the rows of the last ``sample``."""


def acting_for_lanes(agent: Agent) -> LaneAgent:
    """The agent, which can act for some of its lanes.

    Raises:
        PluginError: it acts for all lanes at once only.
    """
    for method in ("sample", "begin"):
        if "lanes" not in list(inspect.signature(getattr(agent, method)).parameters)[1:]:  # First, it would be a mask.
            raise PluginError(
                f"{type(agent).__name__}.{method} acts for all lanes at once: expected a parameter 'lanes', [k] int64, "
                'by which the agent acts for some lanes; the page "Your own agents" says how'
            )
    return cast("LaneAgent", agent)


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation: ``score`` decides which policy ``best/`` holds; the recorders write ``record``."""

    score: float
    record: Record


class Evaluator(Protocol):
    """Scores an agent; the caller has switched it to eval mode.

    If the score is no longer needed, the evaluator's environment raises a ``BaseException``, which ends the evaluation.
    """

    def evaluate(self, agent: Agent) -> Evaluation:
        """Run the agent and return its score."""


@dataclass(frozen=True)
class RunIdentity:
    """Names a run, and one start of this run."""

    run_id: str
    incarnation: int
    """1 at the first start; at each later start a higher number, see ``learner.storage.rundir``."""
    origin: Mapping[str, Any] | None = None
    """The saved agent from which the run began: path, run_id and opt_steps; None if the run began with a new agent."""

    @property
    def is_resumed(self) -> bool:
        """Whether the run has been started before."""
        return self.incarnation > 1


class Recorder(Protocol):
    """Writes the records of a run. Built as ``YourRecorder(run_dir=…, **params)``.

    If the constructor has a parameter ``identity``, it also gets the ``RunIdentity``: the recorder of a resumed run can
    then go on where the recorder of the previous start ended. If it has a parameter ``config``, it gets the run's
    configuration as plain values (``dict[str, Any]``), with ``***`` instead of passwords, tokens and keys.

    One thread beside training builds it and makes all its calls. Training waits for its constructor, and at the end of
    the run up to 70 s for ``close``. An error of another call is logged, and training goes on.
    """

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        """Write one record, whose keys docs/metrics.md describes. A late score has the lower step of its policy."""

    def flush(self) -> None:
        """Make the records that were written so far visible to other processes."""

    def close(self) -> None:
        """Write all records to the disk, and release files and connections; ``write`` is not called afterwards."""


class Callback:
    """Watches a run at the learner, and may end it. Built as ``YourCallback(**params)``.

    If the constructor has parameters ``run_dir``, ``identity`` or ``config``, it gets them as a ``Recorder`` does. The
    trainer calls the methods between two opt steps. An error that a method raises ends the run.
    """

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:  # noqa: ARG002 - for overrides
        """Look at a record that the recorders have written. Return the reason to end the run, or None to go on."""
        return None

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> str | None:  # noqa: ARG002 - for overrides
        """Look at an evaluation before its record is written. Return the reason to end the run, or None to go on.

        ``opt_steps`` are those of the policy that was scored. A late score has lower ones than the newest record.
        """
        return None

    def state(self) -> Mapping[str, Any]:
        """The state from which a resumed run goes on, as values that JSON can hold."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that ``state`` returned."""
