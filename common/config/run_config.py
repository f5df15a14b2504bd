"""The configuration of a run, which one YAML file describes. Every field has a sentence that says what it does.

``ActorConfig`` is the part that the learner sends to the actors in its answer to ``Join``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

import yaml
from pydantic import AliasChoices, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from common.config.discount import with_discount_of
from common.config.nested import assign, overlay
from common.config.replay_config import ReplayConfig, Unit
from common.config.server_config import ServerConfig, TlsConfig
from common.errors import ConfigError
from common.hints import nearest_path
from common.plugins.part_config import AgentArguments, EnvConfig, PluginConfig
from common.settings import Settings, validate

if TYPE_CHECKING:  # Ingest reads configurations, and never imports gymnasium.
    from common.envs import Env

Interval = Annotated[int | None, Field(ge=0)]
Precision = Literal["float32", "bfloat16"]

MAX_ENVS_PER_ACTOR: Final = 1024
MAX_BATCH_ITEMS: Final = 1 << 20
MAX_WINDOW: Final = 1 << 16
MAX_SPOOL_BYTES: Final = 16 << 30
"""The largest values of settings that a learner sends to actors. An actor allocates memory according to them, so a
learner that is not trusted must not choose them freely."""


class PushConfig(Settings):
    """How an actor hands over its items."""

    n_buffer: Annotated[int, Field(ge=1, le=MAX_BATCH_ITEMS)] = Field(
        100, description="Items in one batch (border's n_buffer)."
    )
    flush_seconds: PositiveFloat | None = Field(
        0.5,
        description="A batch older than this is sent with its next item although it is not full; null sends only full "
        "batches.",
    )
    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)] = Field(
        4, description="The number of unacknowledged batches at which a connected actor waits."
    )
    spool_bytes: Annotated[int, Field(ge=1, le=MAX_SPOOL_BYTES)] = Field(
        64 << 20,
        description="The size of an actor's spool: bytes of batches that are kept until they are acknowledged. While "
        "the learner is away, batches with frames are kept compressed.",
    )
    when_full: Literal["block", "drop_oldest"] = Field(
        "block",
        description="What an actor does when its spool is full. block: it waits; drop_oldest: it goes on and drops the "
        "oldest batches that it has never sent.",
    )
    spool_seconds: PositiveFloat | None = Field(
        None, description="A batch that could not be sent for this time is dropped; null keeps all batches."
    )
    initial_priorities: bool = Field(
        False,
        description="Actors send with each item its TD error, which becomes its first priority; needs "
        "replay.prioritized.",
    )


class ActorConfig(Settings):
    """The settings of an actor: the parts that it builds, and how it works."""

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
    """The learner loop. Intervals count opt steps; 0 or null means never."""

    max_opts: PositiveInt = Field(
        description="Training ends after this many opt steps.",
        validation_alias=AliasChoices("max_opts", "max_train_steps"),
    )
    max_seconds: PositiveFloat | None = Field(None, description="Training ends after this many seconds at the latest.")
    target_score: float | None = Field(
        None,
        description="Training succeeds and ends when an evaluation scores at least this. If it ends without, the "
        "command fails.",
    )
    warmup_period: PositiveInt = Field(
        1, description="The number of items that the replay must hold before the first opt step."
    )
    eval_interval: Interval = Field(1000, description="Opt steps from one evaluation to the next.")
    record_interval: Interval = Field(200, description="Opt steps from one record of losses and rates to the next.")
    save_interval: Interval = Field(
        None, description="Opt steps from one saved agent to the next, each in a directory {opt_steps}/."
    )
    checkpoint_seconds: PositiveFloat | None = Field(
        60.0,
        description="Seconds from one checkpoint to the next, from which --resume can go on; null writes one only when "
        "training ends.",
    )
    keep_checkpoints: PositiveInt = Field(
        3, description="The number of checkpoints that are kept; the oldest is deleted."
    )
    sync_interval: Interval = Field(100, description="Opt steps from one model published to the actors to the next.")
    opt_interval: PositiveInt = Field(
        1,
        description="Environment steps per opt step. It counts only in sync-train without replay.samples_per_insert.",
    )
    starvation_seconds: PositiveFloat | None = Field(
        None,
        description="Training fails when no item has arrived for this time while the trainer waits for items; null "
        "waits forever.",
    )
    device: str = Field(
        "cpu", description="Where the learner trains: cpu, cuda or cuda:1, for example. Actors always act on the CPU."
    )
    precision: Precision = Field(
        "float32",
        description="bfloat16: opt steps multiply matrices in bfloat16 (torch.autocast); parameters and acting stay in "
        "float32.",
    )
    model_precision: Precision = Field(
        "float32",
        description="bfloat16: models are sent to actors in half the bytes, and actors act with rounded parameters.",
    )
    model_deltas: NonNegativeInt = Field(
        0,
        description="The number of earlier models that ingest keeps, for slow links. An actor that has one of them is "
        "sent only what has changed since, compressed. 0 always sends whole models.",
    )
    torch_threads: PositiveInt = Field(1, description="The number of threads that torch uses in the trainer.")


class EvaluatorConfig(PluginConfig):
    """Greedy episodes in an environment of the learner's own."""

    target: str = Field(
        "learner.evaluation.evaluator:DefaultEvaluator",
        description="The evaluator, which scores the agent, as module:attr. It is built with env, config (this "
        "section) and params.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments for the target.")
    process: Literal["inline", "child"] = Field(
        "inline",
        description="inline: training waits for an evaluation, as in border; child: a process of its own scores a "
        "candidate on the CPU while training goes on.",
    )
    finish_seconds: PositiveFloat = Field(
        60.0,
        description="When training ends, the learner waits up to this time for the evaluation that still runs in the "
        "child.",
    )
    episodes: PositiveInt = Field(5, description="Episodes per evaluation; the score is their mean return.")
    max_steps: PositiveInt = Field(100_000, description="An episode is cut off after this many steps.")
    seed: NonNegativeInt = Field(0, description="Episode i starts from reset(seed=seed + i).")


class EvaluatorArguments(TypedDict):
    """The arguments that the system provides to every evaluator, besides its ``params``."""

    env: Env
    config: EvaluatorConfig


class ExplorationConfig(Settings):
    """The Ape-X ladder: actor i explores with base ** (1 + alpha * i / (rungs - 1)) (arXiv:1803.00933)."""

    base: Unit = Field(0.05, description="Epsilon of actor 0, which explores most.")
    alpha: Annotated[float, Field(ge=0)] = Field(
        0.0, description="How fast epsilon falls from rung to rung; at 0 it is the same on all."
    )
    rungs: PositiveInt = Field(1, description="The number of rungs; an actor with a higher id starts again at rung 0.")

    def epsilon(self, actor_id: int) -> float:
        """The epsilon of an actor; on a ladder with one rung it is ``base``."""
        share = (actor_id % self.rungs) / (self.rungs - 1) if self.rungs > 1 else 0.0
        return float(self.base ** (1 + self.alpha * share))


class MetricsConfig(Settings):
    """Prometheus endpoints of the learner host; port 0 takes a free port, null serves nothing."""

    host: str = Field("127.0.0.1", description="Address to serve /metrics on.")
    trainer_port: Annotated[int | None, Field(ge=0, le=65535)] = Field(9464, description="/metrics of the trainer.")
    ingest_port: Annotated[int | None, Field(ge=0, le=65535)] = Field(9465, description="/metrics of ingest.")
    tls: TlsConfig | None = Field(
        None,
        description="Encrypts /metrics; with client_ca, only clients with a certificate of these authorities may "
        "scrape.",
    )


class RunConfig(ActorConfig):
    """A whole run."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="Name of the run, used for its directory.")
    seed: NonNegativeInt = Field(
        0,
        description="Seed of the run; environment j of the k-th actor to join has seed + k * envs_per_actor + j.",
    )
    run_dir: Path | None = Field(None, description="Directory of the run; null: runs/{name}-{date}-{time}.")
    trainer: TrainerConfig = Field(description="The learner loop.")
    evaluator: EvaluatorConfig = Field(EvaluatorConfig(), description="How the agent is scored.")
    recorders: tuple[PluginConfig, ...] = Field(
        (),
        description="Where records are written besides metrics.csv and Prometheus; each recorder is built with "
        "run_dir, its params and, if it has such a parameter, the run's identity.",
    )
    replay: ReplayConfig = Field(ReplayConfig(), description="The replay memory.")
    exploration: ExplorationConfig = Field(
        ExplorationConfig(), description="How exploration differs from actor to actor."
    )
    agent_overrides: dict[NonNegativeInt, dict[str, Any]] = Field(
        default_factory=dict,
        description="By actor id, parameters that replace those of agent.params for that actor. They must not change "
        "the model's tensors.",
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
        half = self.replay.capacity // 2  # While a batch overwrites old items, there must be others to draw.
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
        """The part that this actor gets, with its ``agent_overrides`` in ``agent.params``."""
        part, changes = self.actor_part(), self.agent_overrides.get(actor_id, {})
        agent = part.agent.model_copy(update={"params": overlay(part.agent.params, changes)})
        return part.model_copy(update={"agent": agent})

    def check(self) -> None:
        """Check the parts, their parameters, and the server's address and files, which the values alone do not show.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        self.env.check("env", frozenset())
        self.env.for_evaluation().check("env for evaluation", frozenset())
        given = AgentArguments.__required_keys__
        self.agent.check("agent", given)
        for actor_id in self.agent_overrides:
            self.part_of(actor_id).agent.check("agent", given, f"agent_overrides.{actor_id}")
        self.step_processor.check("step_processor", frozenset())
        # The step processor and the agents of all actors must have the same discount factor.
        processor = with_discount_of(self.agent, self.step_processor)
        for actor_id in self.agent_overrides:
            with_discount_of(self.part_of(actor_id).agent, processor, f"agent_overrides.{actor_id}")
        self.evaluator.check("evaluator", EvaluatorArguments.__required_keys__)
        for index, recorder in enumerate(self.recorders):
            recorder.check(f"recorders.{index}", frozenset({"run_dir"}), optional=frozenset({"identity"}))
        if self.replay.own is not None:
            self.replay.own.check("replay", frozenset({"memory", "seed"}))
        self.server.check()


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML file and apply ``a.b=c`` overrides.

    Raises:
        ConfigError: the file cannot be read, or values are wrong, with one line for each of them.
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
