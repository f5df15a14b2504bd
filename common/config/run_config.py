"""One YAML file describes a run. Every field says in a sentence what it does.

``ActorConfig`` is the part that travels to the actors in the answer to ``Join``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AliasChoices, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from common.config.discount import with_discount_of
from common.config.nested import assign, laid_over
from common.config.server_config import ServerConfig, TlsConfig
from common.errors import ConfigError
from common.hints import nearest_path
from common.plugins.part_config import EnvConfig, PluginConfig
from common.settings import Settings, validate

MIN_RATIO, MAX_RATIO = 1e-6, 1e6
"""Items drawn per item inserted; beyond them one side would wait for ever."""
Interval = Annotated[int | None, Field(ge=0)]
Unit = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["float32", "bfloat16"]


MAX_ENVS_PER_ACTOR: Final = 1024
MAX_BATCH_ITEMS: Final = 1 << 20
MAX_WINDOW: Final = 1 << 16
MAX_SPOOL_BYTES: Final = 16 << 30
"""Learners send these settings to actors, and an actor takes memory by them: so they have bounds."""


class PushConfig(Settings):
    """How an actor hands over its items."""

    n_buffer: Annotated[int, Field(ge=1, le=MAX_BATCH_ITEMS)] = Field(
        100, description="Items in one batch (border's n_buffer)."
    )
    flush_seconds: PositiveFloat | None = Field(
        0.5, description="A batch older than this goes with the next item even if not full; null sends full ones only."
    )
    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)] = Field(
        4, description="Unacknowledged batches after which a connected actor waits."
    )
    spool_bytes: Annotated[int, Field(ge=1, le=MAX_SPOOL_BYTES)] = Field(
        64 << 20,
        description="Bytes an actor keeps until they are acknowledged; frames compressed while the learner is away.",
    )
    when_full: Literal["block", "drop_oldest"] = Field(
        "block",
        description="What an actor does when its spool is full. block: it waits; drop_oldest: it goes on and drops the "
        "oldest batches that were never sent.",
    )
    spool_seconds: PositiveFloat | None = Field(
        None, description="A batch that could not be sent for so long is dropped; null keeps them all."
    )
    initial_priorities: bool = Field(
        False, description="Actors send each item's TD error along, its first priority; needs replay.prioritized."
    )


class ActorConfig(Settings):
    """What an actor builds and does."""

    env: EnvConfig = Field(description="The environment, a gymnasium.Env.")
    agent: PluginConfig = Field(description="The agent, a common.interfaces.Agent.")
    step_processor: PluginConfig = Field(
        PluginConfig(target="common.processors:OneStep"), description="Turns environment steps into items."
    )
    push: PushConfig = Field(PushConfig(), description="How actors hand over their items.")
    envs_per_actor: Annotated[int, Field(ge=1, le=MAX_ENVS_PER_ACTOR)] = Field(
        1, description="Environments that one actor steps in turn; its agent acts in all of them at once."
    )


class TrainerConfig(Settings):
    """The learner loop. Intervals count opt steps; 0 or null switches off."""

    max_opts: PositiveInt = Field(
        description="Training ends after this many opt steps.",
        validation_alias=AliasChoices("max_opts", "max_train_steps"),
    )
    max_seconds: PositiveFloat | None = Field(None, description="Training ends after this many seconds at latest.")
    target_score: float | None = Field(
        None, description="Training ends well when an evaluation scores at least this; not reaching it is a failure."
    )
    warmup_period: PositiveInt = Field(1, description="Items in the replay before the first opt step.")
    eval_interval: Interval = Field(1000, description="Evaluate every so many opt steps.")
    record_interval: Interval = Field(200, description="Record losses and rates every so many opt steps.")
    save_interval: Interval = Field(None, description="Save a checkpoint {opt_steps}/ every so many opt steps.")
    checkpoint_seconds: PositiveFloat | None = Field(
        60.0, description="Keep what --resume goes on from every so many seconds; null: only when training ends."
    )
    keep_checkpoints: PositiveInt = Field(3, description="Checkpoints that --resume can go on from are so many.")
    sync_interval: Interval = Field(100, description="Publish a model to the actors every so many opt steps.")
    opt_interval: PositiveInt = Field(
        1, description="Environment steps per opt step, in turns and without replay.samples_per_insert only."
    )
    starvation_seconds: PositiveFloat | None = Field(
        None, description="Fail when no item arrives for so long while the trainer waits for items; null waits forever."
    )
    device: str = Field("cpu", description="Where the learner trains: cpu, cuda, cuda:1; actors act on their CPU.")
    precision: Precision = Field(
        "float32",
        description="bfloat16 computes the products of opt in it (torch.autocast); parameters and acting stay float32.",
    )
    model_precision: Precision = Field(
        "float32", description="bfloat16 halves the models that actors fetch; they act on the rounded parameters."
    )
    model_deltas: NonNegativeInt = Field(
        0,
        description="The learner keeps so many models sent, and to an actor with one of them sends what changed since, "
        "compressed: for thin links; 0 sends whole models.",
    )
    torch_threads: PositiveInt = Field(1, description="Threads torch uses in the trainer.")


class EvaluatorConfig(Settings):
    """Greedy episodes on an environment of the learner's own."""

    target: str = Field(
        "learner.evaluation.evaluator:DefaultEvaluator",
        description="What scores the agent, as module:attr; built with env, config (this section) and params.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments it is built with.")
    process: Literal["inline", "child"] = Field(
        "inline",
        description="inline: training waits for an evaluation, as in border; child: a process of its own scores a "
        "candidate on the CPU while training goes on.",
    )
    finish_seconds: PositiveFloat = Field(
        60.0, description="An evaluation of the child that still runs when training ends gets so long to finish."
    )
    episodes: PositiveInt = Field(5, description="Episodes per evaluation; the score is their mean return.")
    max_steps: PositiveInt = Field(100_000, description="An episode that goes on for longer is cut off.")
    seed: NonNegativeInt = Field(0, description="Episode i starts from reset(seed=seed + i).")


class PrioritizedConfig(Settings):
    """Proportional prioritised replay (arXiv:1511.05952)."""

    alpha: Unit = Field(0.6, description="How much the TD error counts in an item's priority; 0 draws uniformly.")
    beta_0: Unit = Field(0.4, description="How far weights make up for the priorities at first.")
    beta_final: Unit = Field(1.0, description="How far they do at last; 1 is all the way.")
    n_opts_final: PositiveInt | None = Field(
        None, description="Updates of priorities over which beta moves, linearly; null takes trainer.max_opts."
    )
    normalize: Literal["all", "batch"] = Field(
        "all", description="Weights are divided by the largest in the whole replay, or by the largest in the batch."
    )


class ReplayConfig(Settings):
    """The replay memory and the ratio at which it is used."""

    capacity: PositiveInt = Field(100_000, description="Items kept; the oldest is overwritten.")
    samples_per_insert: Annotated[float | None, Field(ge=MIN_RATIO, le=MAX_RATIO)] = Field(
        None, description="Items drawn per item inserted, held on both sides; null lets both run free, as border does."
    )
    error_buffer: PositiveFloat | None = Field(
        None, description="Drawn items by which the ratio may run ahead or behind; null takes a tenth of the warm-up's."
    )
    prioritized: PrioritizedConfig | None = Field(
        None, description="Draw items by their TD errors; {} takes the defaults, null draws uniformly."
    )
    target: str | None = Field(
        None,
        description="A replay buffer of your own, as module:attr, built with memory, seed and params; null draws "
        "uniformly or as prioritized says.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments that target takes.")
    resident: bool = Field(
        False, description="Keep a copy of the items on trainer.device, and gather batches there; takes as much memory."
    )
    frames_per_item: PositiveFloat = Field(
        1.25, description="Frames kept per item, if observations are stacks of them."
    )

    @property
    def frame_capacity(self) -> int:
        """Frames kept."""
        return int(self.frames_per_item * self.capacity)

    @property
    def own(self) -> PluginConfig | None:
        """The user's own replay buffer, if the configuration names one."""
        return PluginConfig(target=self.target, params=self.params) if self.target is not None else None

    @model_validator(mode="after")
    def _names_one_buffer(self) -> ReplayConfig:
        if self.target is not None and self.prioritized is not None:
            raise ValueError("target and prioritized both name a replay buffer: leave out one of them")
        if self.target is None and self.params:
            raise ValueError("params are those of target, which is null")
        return self


class ExplorationConfig(Settings):
    """The Ape-X ladder: actor i explores with base ** (1 + alpha * i / (rungs - 1)) (arXiv:1803.00933)."""

    base: Unit = Field(0.05, description="Epsilon of actor 0, the most curious.")
    alpha: Annotated[float, Field(ge=0)] = Field(0.0, description="How fast it falls from rung to rung; 0 is level.")
    rungs: PositiveInt = Field(1, description="Rungs; actor ids beyond start again at rung 0.")

    def epsilon(self, actor_id: int) -> float:
        """Epsilon of one actor; with one rung it is ``base``."""
        share = (actor_id % self.rungs) / (self.rungs - 1) if self.rungs > 1 else 0.0
        return float(self.base ** (1 + self.alpha * share))


class MetricsConfig(Settings):
    """Prometheus endpoints of the learner host; port 0 takes a free one, null serves nothing."""

    host: str = Field("127.0.0.1", description="Address to serve /metrics on.")
    trainer_port: Annotated[int | None, Field(ge=0, le=65535)] = Field(9464, description="/metrics of the trainer.")
    ingest_port: Annotated[int | None, Field(ge=0, le=65535)] = Field(9465, description="/metrics of ingest.")
    tls: TlsConfig | None = Field(
        None, description="Encrypts /metrics; with client_ca only whoever has a certificate of these may scrape."
    )


class RunConfig(ActorConfig):
    """A whole run."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="Name of the run, used for its directory.")
    seed: NonNegativeInt = Field(
        0,
        description="Seed of the run; environment j of the k-th actor to join has seed + k * envs_per_actor + j.",
    )
    run_dir: Path | None = Field(None, description="Where everything is written; null: runs/{name}-{date}-{time}.")
    trainer: TrainerConfig = Field(description="The learner loop.")
    evaluator: EvaluatorConfig = Field(EvaluatorConfig(), description="How the agent is scored.")
    recorders: tuple[PluginConfig, ...] = Field(
        (),
        description="Where records go beside metrics.csv and Prometheus; each is built with run_dir, its params "
        "and, if it has such a parameter, the run's identity.",
    )
    replay: ReplayConfig = Field(ReplayConfig(), description="The replay memory.")
    exploration: ExplorationConfig = Field(ExplorationConfig(), description="Exploration over the actors.")
    agent_overrides: dict[NonNegativeInt, dict[str, Any]] = Field(
        default_factory=dict,
        description="By actor id, what is laid over agent.params for that actor; not for what shapes the model.",
    )
    server: ServerConfig = Field(ServerConfig(), description="The gRPC server.")
    metrics: MetricsConfig = Field(MetricsConfig(), description="Prometheus endpoints.")

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        if self.trainer.warmup_period > self.replay.capacity:
            raise ValueError(
                f"trainer.warmup_period ({self.trainer.warmup_period}) is above replay.capacity "
                f"({self.replay.capacity}): training would never start"
            )
        if self.trainer.target_score is not None and not self.trainer.eval_interval:
            raise ValueError("trainer.target_score needs trainer.eval_interval: nothing would ever be scored")
        if self.push.initial_priorities and self.replay.prioritized is None and self.replay.target is None:
            raise ValueError("push.initial_priorities needs replay.prioritized: a uniform replay has no priorities")
        half = self.replay.capacity // 2  # While a batch overwrites old items there must be others to draw.
        for name, limit in (("server.max_rows", self.server.max_rows), ("half of replay.capacity", half)):
            if self.push.n_buffer > limit:
                raise ValueError(f"push.n_buffer ({self.push.n_buffer}) is above {name} ({limit})")
        beyond = [actor_id for actor_id in self.agent_overrides if actor_id >= self.server.max_actors]
        if beyond:
            raise ValueError(
                f"agent_overrides: expected ids below server.max_actors ({self.server.max_actors}), found {beyond}"
            )
        return self

    def actor_part(self) -> ActorConfig:
        """The part that actors get."""
        return ActorConfig.model_validate(self.model_dump(include=set(ActorConfig.model_fields)))

    def part_of(self, actor_id: int) -> ActorConfig:
        """The part that this actor gets, with its own parameters laid over ``agent.params``."""
        part, changes = self.actor_part(), self.agent_overrides.get(actor_id, {})
        agent = part.agent.model_copy(update={"params": laid_over(part.agent.params, changes)})
        return part.model_copy(update={"agent": agent})

    def check(self) -> None:
        """Check what cannot be seen from the values alone: plugins, their parameters, the address.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        self.env.check("env", frozenset())
        self.env.for_evaluation().check("env for evaluation", frozenset())
        given_to_agents = frozenset({"spec", "seed", "epsilon", "device"})
        self.agent.check("agent", given_to_agents)
        for actor_id in self.agent_overrides:
            self.part_of(actor_id).agent.check("agent", given_to_agents, f"agent_overrides.{actor_id}")
        self.step_processor.check("step_processor", frozenset())
        self._check_discounts()
        evaluator = PluginConfig(target=self.evaluator.target, params=self.evaluator.params)
        evaluator.check("evaluator", frozenset({"env", "config"}))
        if self.replay.own is not None:
            self.replay.own.check("replay", frozenset({"memory", "seed"}))
        for index, recorder in enumerate(self.recorders):
            recorder.check(f"recorders.{index}", frozenset({"run_dir"}), optional=frozenset({"identity"}))
        self.server.check()

    def _check_discounts(self) -> None:
        """See that agent, step processor and the overrides of single actors agree on the discount factor."""
        processor = with_discount_of(self.agent, self.step_processor)
        for actor_id in self.agent_overrides:
            with_discount_of(self.part_of(actor_id).agent, processor, f"agent_overrides.{actor_id}")


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML file and apply ``a.b=c`` overrides.

    Raises:
        ConfigError: the file cannot be read, or one line for each wrong value.
    """
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}{nearest_path(path)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping, found {type(values).__name__}")
    values.setdefault("name", path.stem)
    for assignment in overrides:
        assign(values, assignment)
    return validate(RunConfig, values)


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that ``load_config`` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
