"""The configuration of a run, which one YAML file describes. Every field has a sentence that says what it does.

``ActorConfig`` is the part that the learner sends to the actors in its answer to ``Join``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict, TypeVar

import yaml
from pydantic import (
    AliasChoices,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from common.config.discount import NAME as DISCOUNT
from common.config.discount import discount_of
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

_TEXT_OR_INFINITY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|Infinity')

MAX_ENVS_PER_ACTOR: Final = 1024
MAX_BATCH_ROWS: Final = 1 << 20
MAX_WINDOW: Final = 1 << 16
MAX_SPOOL_BYTES: Final = 16 << 30
"""The largest values of settings that a learner sends to actors. An actor allocates memory according to them, so a
learner that is not trusted must not choose them freely."""


FORMER_PROCESSORS: Final = {
    "common.processors:OneStep": "Remove step_processor",
    "common.processors:NStep": "Remove step_processor and set replay.view.params.n",
}
"""The step processors of release 0.1, and their users' next step."""


class PushConfig(Settings):
    """How an actor hands over its rows."""

    n_buffer: Annotated[int, Field(ge=1, le=MAX_BATCH_ROWS)] = Field(
        100, description="Rows in one batch (border's n_buffer)."
    )
    flush_seconds: PositiveFloat | None = Field(
        0.5,
        description="A batch older than this is sent with its next row although it is not full; null sends only full "
        "batches.",
    )
    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)] = Field(
        4,
        description="The number of unacknowledged batches at which a connected actor waits; without "
        "replay.samples_per_insert, only batches count that are older than 0.1 s.",
    )
    spool_bytes: Annotated[int, Field(ge=1, le=MAX_SPOOL_BYTES)] = Field(
        64 << 20,
        description="The size of an actor's spool: bytes of batches that are kept until they are acknowledged. While "
        "the learner is away, batches with pictures are kept compressed.",
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
        description="Actors send with each row its TD error, which becomes its first priority; needs "
        "replay.prioritized.",
    )


class EvaluatorConfig(PluginConfig):
    """Greedy episodes in environments that only evaluations step."""

    target: str = Field(
        "common.evaluation:DefaultEvaluator",
        description="The evaluator, which scores the agent, as module:attr. It is built with env, config (this "
        "section) and params.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments for the target.")
    process: Literal["inline", "child", "actor"] = Field(
        "inline",
        description="inline: training waits for an evaluation, as in border; child: a process of its own scores a "
        "candidate on the CPU while training goes on; actor: an actor-worker --evaluate scores it on another host.",
    )
    finish_seconds: PositiveFloat = Field(
        60.0,
        description="When training ends, the learner waits up to this time for the evaluation that still runs in the "
        "child or the actor.",
    )
    episodes: PositiveInt = Field(5, description="Episodes per evaluation; the score is their mean return.")
    max_steps: PositiveInt = Field(100_000, description="An episode is cut off after this many steps.")
    max_envs: PositiveInt = Field(
        32, description="The most environments in which an evaluation plays episodes at the same time."
    )
    seed: NonNegativeInt = Field(0, description="Episode i starts from reset(seed=seed + i).")


class EvaluatorArguments(TypedDict):
    """The arguments that the system provides to every evaluator, besides its ``params``."""

    env: Env
    config: EvaluatorConfig


EVALUATOR_OPTIONAL: Final = frozenset({"env_config", "make_env"})
"""Arguments for evaluators that have parameters of these names: the ``EnvConfig`` of evaluations, and a function that
makes one more environment."""


class ActorConfig(Settings):
    """The settings of an actor: the parts that it builds, and how it works."""

    env: EnvConfig = Field(description="The environment, a gymnasium.Env or a gymnasium.vector.VectorEnv.")
    agent: PluginConfig = Field(description="The agent, a common.interfaces.Agent.")
    step_processor: PluginConfig | None = Field(
        None,
        description="A common.interfaces.RowMap, which changes rows before they are sent, or a StepProcessor, which "
        "makes self-contained items of the steps; null sends the rows as they are.",
    )
    push: PushConfig = Field(PushConfig(), description="How actors hand over their rows.")
    envs_per_actor: Annotated[int, Field(ge=1, le=MAX_ENVS_PER_ACTOR)] = Field(
        1,
        description="Environments (lanes) that one actor steps; its agent acts in all of them at once. A vector "
        "environment has a number of its own.",
    )
    evaluator: EvaluatorConfig = Field(EvaluatorConfig(), description="How the agent is scored.")

    def to_json(self) -> str:
        """The settings for the wire. Infinity is written as 1e999, which parsers in other languages read too."""
        text = self.model_dump_json()
        return _TEXT_OR_INFINITY.sub(lambda found: "1e999" if found[0] == "Infinity" else found[0], text)

    @field_validator("step_processor")
    @classmethod
    def _is_no_former_processor(cls, processor: PluginConfig | None) -> PluginConfig | None:
        if processor is not None and (instead := FORMER_PROCESSORS.get(processor.target)):
            raise ValueError(f"{processor.target} is gone: the learner makes transitions of rows. {instead}")
        return processor


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
        1, description="The number of steps that the replay must hold before the first opt step."
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
        description="Training fails when no row has arrived for this time while the trainer waits for rows; null "
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
    env_overrides: dict[NonNegativeInt, dict[str, Any]] = Field(
        default_factory=dict,
        description="By actor id, parameters that replace those of env.params for that actor, such as the address of "
        "its robot. They must not change the spaces.",
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
        if self.env.spaces is not None and self.trainer.eval_interval and self.evaluator.process != "actor":
            raise ValueError(
                "env.spaces: the learner does not build the environment, so it cannot evaluate; set "
                "evaluator.process: actor, or trainer.eval_interval: 0"
            )
        if self.push.initial_priorities and self.replay.prioritized is None and self.replay.target is None:
            raise ValueError("push.initial_priorities needs replay.prioritized: a uniform replay has no priorities")
        half = self.replay.capacity // 2  # While a batch overwrites old rows, there must be others to draw.
        for name, limit in (("server.max_rows", self.server.max_rows), ("half of replay.capacity", half)):
            if self.push.n_buffer > limit:
                raise ValueError(f"push.n_buffer ({self.push.n_buffer}) is above {name} ({limit})")
        for name in ("agent_overrides", "env_overrides"):
            beyond = [actor_id for actor_id in getattr(self, name) if actor_id >= self.server.max_actors]
            if beyond:
                raise ValueError(
                    f"{name}: expected ids below server.max_actors ({self.server.max_actors}), found {beyond}"
                )
        return self

    def actor_part(self) -> ActorConfig:
        """The part that actors get."""
        return ActorConfig.model_validate(self.model_dump(include=set(ActorConfig.model_fields)))

    def part_of(self, actor_id: int) -> ActorConfig:
        """The part that this actor gets, with its ``agent_overrides`` and ``env_overrides`` among the parameters."""
        part = self.actor_part()
        changes = {
            "agent": _with_params(part.agent, self.agent_overrides.get(actor_id, {})),
            "env": _with_params(part.env, self.env_overrides.get(actor_id, {})),
        }
        return part.model_copy(update=changes)

    def check(self) -> None:
        """Check the parts, their parameters, and the server's address and files, which the values alone do not show.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        self._check_env()
        self._check_agents()
        if self.step_processor is not None:
            self.step_processor.check("step_processor", frozenset())
        self.evaluator.check("evaluator", EvaluatorArguments.__required_keys__, optional=EVALUATOR_OPTIONAL)
        for index, recorder in enumerate(self.recorders):
            recorder.check(f"recorders.{index}", frozenset({"run_dir"}), optional=frozenset({"identity"}))
        self.replay.check(self.agent)
        self.server.check()

    def _check_env(self) -> None:
        """Check the environment, unless the learner need not have it."""
        if self.env.spaces is not None:
            return
        self.env.check("env", frozenset())
        self.env.for_evaluation().check("env for evaluation", frozenset())
        for actor_id in self.env_overrides:
            self.part_of(actor_id).env.check("env", frozenset(), f"env_overrides.{actor_id}")

    def _check_agents(self) -> None:
        """Check the agents of the learner and of all actors, which must have the same discount factor."""
        given = AgentArguments.__required_keys__
        self.agent.check("agent", given)
        wanted = discount_of(self.agent)
        for actor_id in self.agent_overrides:
            agent, place = self.part_of(actor_id).agent, f"agent_overrides.{actor_id}"
            agent.check("agent", given, place)
            found = discount_of(agent)
            if found != wanted:
                raise ConfigError(f"{place}.{DISCOUNT}: expected {wanted}, that of agent.params, found {found}")


PluginT = TypeVar("PluginT", bound=PluginConfig)


def _with_params(part: PluginT, changes: dict[str, Any]) -> PluginT:
    """A part with other parameters; sections of its parameters are overlaid one by one."""
    return part.model_copy(update={"params": overlay(part.params, changes)})


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
