"""The configuration of a run, which one YAML file describes. Every field has a sentence that says what it does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from common.config.actor_config import EVALUATOR_OPTIONAL, ActorConfig, EvaluatorArguments
from common.config.nested import assign, overlay, read_yaml, to_yaml
from common.config.pool_config import PoolConfig, has_pool
from common.config.replay_config import DISCOUNT, ReplayConfig, Unit, discount_of
from common.config.server_config import HostPort, ServerConfig, TlsConfig
from common.config.trainer_config import TrainerConfig
from common.errors import ConfigError
from common.plugins.part_config import AgentArguments, PluginConfig
from common.settings import HomePath, Seconds, Settings, validate
from common.wire.address import MOST_PORT, split_address

RECORDER_OPTIONAL: Final = frozenset({"identity", "config"})
"""Arguments for recorders that have parameters of these names."""


MAX_ACTORS_SHOWN: Final = 256
"""With a larger ``server.max_actors``, ingest serves no series of single actors: a thousand would have 19,000."""


MAX_SEED: Final = 1 << 61
"""Half of the largest seed that an actor takes: the seeds of later actors and ranks are higher than the run's."""


FREE_PORTS: Final = {"server.listen": "127.0.0.1:0", "metrics.listen": "127.0.0.1:0"}
"""The settings of a learner's ports by their dotted keys, with the values that take free ports."""


class ExplorationConfig(Settings):
    """How much each actor explores."""

    GONE: ClassVar = {"base": 0.05, "alpha": 0.0, "rungs": 1}
    INSTEAD: ClassVar = dict.fromkeys(GONE, "write the epsilon of each actor as exploration.epsilons, a list")

    epsilons: tuple[Unit, ...] = Field(
        (0.05,),
        min_length=1,
        description="The share of random actions of each actor whose agent explores by epsilon: the first value is "
        "that of actor 0. An actor whose id is the number of values or more begins again at the first value.",
    )

    def epsilon(self, actor_id: int) -> float:
        """The epsilon of an actor."""
        return self.epsilons[actor_id % len(self.epsilons)]


class MetricsConfig(Settings):
    """The Prometheus endpoints of the learner host: the trainer's, and ingest's at the next port.

    On loopback, ports that nobody has named give way to free ones if another program has one of them.
    """

    GONE: ClassVar = {
        "per_actor": None,
        "host": "127.0.0.1",
        "trainer_port": (9464, 0),
        "ingest_port": (9465, 0),
        "tls": None,
    }
    INSTEAD: ClassVar = {
        **dict.fromkeys(("host", "trainer_port", "ingest_port"), "write metrics.listen: HOST:PORT"),
        "tls": "write metrics.encrypted: true, which takes the files of server.tls",
    }

    listen: HostPort | None = Field(
        "127.0.0.1:9464",
        description="The address on which the trainer serves /metrics, HOST:PORT; ingest serves its own at the next "
        "port. With port 0 each takes a free port; null: nothing is served.",
    )
    encrypted: bool = Field(
        False,
        description="Whether /metrics is encrypted, by the certificate in server.tls. With its client_ca, only clients "
        "with a certificate of these authorities may scrape.",
    )

    @field_validator("listen")
    @classmethod
    def _has_a_next_port(cls, listen: str | None) -> str | None:
        if listen is not None and split_address(listen)[1] == MOST_PORT:
            raise ValueError(f"expected a port below {MOST_PORT}, since ingest takes the next one, found '{listen}'")
        return listen

    @property
    def host(self) -> str:
        """The host of ``listen``; loopback if nothing is served."""
        return "127.0.0.1" if self.listen is None else split_address(self.listen)[0]


class StorageConfig(Settings):
    """Copies of the run beyond the learner's host, which may vanish with its disk (docs/preemptible.md)."""

    mirror: str | None = Field(
        None,
        description="The place to which `learner-server` copies the run while it trains, such as s3://bucket/run, "
        "gs://bucket/run or file:///mnt/share/run; one place for each run. null: nothing leaves the host.",
    )
    mirror_seconds: Annotated[Seconds, Field(ge=0.1)] = Field(
        5.0,
        description="Seconds between two states of the mirror. If the host vanishes, about as many seconds of rows are "
        "lost.",
    )
    acknowledge: Literal["disk", "mirrored"] = Field(
        "disk",
        description="When actors may forget their rows. disk: when the rows are in the replay on the learner's host; "
        "mirrored: when they are in the mirror too, so that a host that vanishes loses no acknowledged row.",
    )

    @field_validator("mirror")
    @classmethod
    def _is_url(cls, mirror: str | None) -> str | None:
        if mirror is not None and not re.match(r"[a-z][a-z0-9+.-]*://.", mirror):
            raise ValueError(f"expected a URL, such as s3://bucket/run or file:///mnt/share/run, found '{mirror}'")
        return mirror

    @model_validator(mode="after")
    def _has_mirror(self) -> StorageConfig:
        if self.acknowledge == "mirrored" and self.mirror is None:
            raise ValueError("acknowledge: mirrored needs storage.mirror: otherwise no row would ever be acknowledged")
        return self


class RunConfig(ActorConfig):
    """The settings of a whole run."""

    GONE: ClassVar = {"agent_overrides": {}, "env_overrides": {}}
    INSTEAD: ClassVar = {
        "agent_overrides": "write overrides: {ID: {agent: {…}}}",
        "env_overrides": "write overrides: {ID: {env: {…}}}",
    }

    name: str = Field(
        "run", pattern=r"^[\w.-]+$", description="The name of the run, which is part of its directory's name."
    )
    seed: NonNegativeInt = Field(
        0,
        le=MAX_SEED,
        description="The seed of all random numbers of the run. Environment j of the k-th actor to join is seeded "
        "with seed + k * envs_per_actor + j.",
    )
    run_dir: HomePath | None = Field(
        None, description="The directory to which the run is written; null: runs/{name}-{date}-{time}."
    )
    trainer: TrainerConfig = Field(description="The learner loop.")
    recorders: tuple[PluginConfig, ...] = Field(
        (),
        description="Recorders, which write the run's records to further places, such as TensorBoard, besides "
        "metrics.csv and Prometheus. Each is called with run_dir, its params and, if it has such parameters, the "
        "run's identity and config.",
    )
    callbacks: tuple[PluginConfig, ...] = Field(
        (),
        description="Callbacks, which watch the run and may end it, such as EarlyStopping. Each is called with its "
        "params and, if it has such parameters, run_dir and the run's identity and config.",
    )
    replay: ReplayConfig = Field(ReplayConfig(), description="The replay memory.")
    exploration: ExplorationConfig = Field(
        ExplorationConfig(), description="How exploration differs from actor to actor."
    )
    overrides: dict[NonNegativeInt, dict[Literal["agent", "env"], dict[str, Any]]] = Field(
        default_factory=dict,
        description="Other parameters for single actors, such as the address of each robot: by the actor's id, values "
        "of agent.params under agent, and of env.params under env. They must change neither the model's tensors nor "
        "the spaces.",
    )
    pool: PoolConfig = Field(PoolConfig(), description="The earlier models of the run that play as opponents.")
    server: ServerConfig = Field(ServerConfig(), description="The gRPC server.")
    storage: StorageConfig = Field(StorageConfig(), description="Copies of the run beyond the learner's host.")
    metrics: MetricsConfig = Field(MetricsConfig(), description="Prometheus endpoints.")

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        if self.trainer.warmup_period > self.replay.capacity:
            raise ValueError(
                f"trainer.warmup_period ({self.trainer.warmup_period}) is above replay.capacity "
                f"({self.replay.capacity}): training would never start"
            )
        named = [place for key, *place in self.places_to_listen() if place[1] and self.is_named(key)]
        if any(named.count(place) > 1 for place in named):
            raise ValueError(
                "metrics.listen: expected two ports in a row without that of server.listen, found "
                f"{self.metrics.listen} beside {self.server.listen}"
            )
        if self.metrics.encrypted and self.server.tls is None:
            raise ValueError("metrics.encrypted needs server.tls, the certificate and key that encrypt /metrics too")
        # Scores need an environment, here or at an actor.
        if self.trainer.target_score is not None and not self.trainer.eval_interval:
            raise ValueError("trainer.target_score needs trainer.eval_interval: nothing would ever be scored")
        if self.env.spaces is not None and self.trainer.eval_interval and self.evaluator.process != "actor":
            raise ValueError(
                "env.spaces: the learner does not build the environment, so it cannot evaluate; set "
                "evaluator.process: actor, or trainer.eval_interval: 0"
            )
        # Rows must have what a replay or a source draws by.
        if self.push.initial_priorities and self.replay.prioritized is None and self.replay.target is None:
            raise ValueError("push.initial_priorities needs replay.prioritized: a uniform replay has no priorities")
        for name, source in self.replay.sources.items():
            if source.interventions and self.env.intervention is None:
                raise ValueError(
                    f"replay.sources.{name}.interventions needs env.intervention, the key of info that holds the "
                    "executed action: otherwise no row says that somebody intervened"
                )
        half = self.replay.capacity // 2  # While a batch overwrites old rows, there must be other rows to draw.
        if self.push.n_buffer > half:
            raise ValueError(
                f"push.n_buffer: expected at most {half}, half of replay.capacity ({self.replay.capacity}), found "
                f"{self.push.n_buffer}"
            )
        beyond = [actor_id for actor_id in self.overrides if actor_id >= self.server.max_actors]
        if beyond:
            raise ValueError(
                f"overrides: expected ids below server.max_actors ({self.server.max_actors}), found {beyond}"
            )
        return self

    @model_validator(mode="after")
    def _lets_the_pool_play(self) -> RunConfig:
        # The pool plays inside the environment, and in training only.
        if self.trainer.eval_interval and has_pool(self.env.for_evaluation().params):
            raise ValueError(
                "env.params.players: pool plays in training only: name the opponents of evaluations in "
                "env.eval_params.players, such as random, or set trainer.eval_interval: 0"
            )
        if has_pool(self.env.params) and self.env.wrappers:
            raise ValueError(
                "env.wrappers: expected none with players of the pool, which do not see through them: wrap the "
                "environment in the function that env.params.id names"
            )
        return self

    @property
    def is_scored_by_actors(self) -> bool:
        """Whether actors that evaluate score the policy."""
        return self.evaluator.process == "actor" and bool(self.trainer.eval_interval)

    @property
    def shows_each_actor(self) -> bool:
        """Whether ``/metrics`` of ingest has series of each actor."""
        return self.server.max_actors <= MAX_ACTORS_SHOWN

    @property
    def metrics_tls(self) -> TlsConfig | None:
        """The certificates of both endpoints of the metrics; None if they are not encrypted."""
        return self.server.tls if self.metrics.encrypted else None

    def ports_to_try(self, key: str) -> tuple[str, ...]:
        """The addresses of a setting in ``FREE_PORTS`` in the order in which the learner tries them; none for null.

        A free port comes second if nobody has named the port.
        """
        section, _, name = key.partition(".")
        value = getattr(getattr(self, section), name)
        if value is None:
            return ()
        return (value,) if self.is_named(key) else (value, FREE_PORTS[key])

    def is_named(self, key: str) -> bool:
        """Whether somebody has given this setting of ``FREE_PORTS`` a value."""
        section, _, name = key.partition(".")
        return name in getattr(self, section).model_fields_set

    def places_to_listen(self) -> list[tuple[str, str, int]]:
        """Setting, host and port of each place at which the learner listens; both metrics have one setting."""
        found = [("server.listen", *split_address(self.server.listen))]
        if self.metrics.listen is not None:
            host, port = split_address(self.metrics.listen)
            found += [("metrics.listen", host, each) for each in ((port, port + 1) if port else (0,))]
        return found

    def actor_part(self) -> ActorConfig:
        """The part that actors get."""
        return ActorConfig.model_validate(self.model_dump(include=set(ActorConfig.model_fields)))

    def part_of(self, actor_id: int) -> ActorConfig:
        """The part that this actor gets, with its ``overrides`` among the parameters."""
        part, own = self.actor_part(), self.overrides.get(actor_id, {})
        changes = {
            "agent": _with_params(part.agent, own.get("agent", {})),
            "env": _with_params(part.env, own.get("env", {})),
        }
        return part.model_copy(update=changes)

    def check(self) -> None:
        """Check that parts can be loaded and take their parameters, and that the server's address and files are right.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        self._check_env()
        self._check_agents()
        if self.step_processor is not None:
            self.step_processor.check("step_processor", frozenset())
        self.evaluator.check(
            "evaluator", EvaluatorArguments.__required_keys__, optional=EVALUATOR_OPTIONAL, role="evaluator"
        )
        for index, recorder in enumerate(self.recorders):
            recorder.check(f"recorders.{index}", frozenset({"run_dir"}), optional=RECORDER_OPTIONAL, role="recorder")
        for index, callback in enumerate(self.callbacks):
            optional = RECORDER_OPTIONAL | {"run_dir"}
            callback.check(f"callbacks.{index}", frozenset(), optional=optional, role="callback")
        self.replay.check(self.agent)
        self.server.check()

    def _check_env(self) -> None:
        """Check the environment, unless the learner need not have it."""
        if self.env.spaces is not None:
            return
        self.env.check("env", frozenset())
        self.env.for_evaluation().check("env", frozenset(), "env.eval_params")
        for actor_id in self.overrides:
            self.part_of(actor_id).env.check("env", frozenset(), f"overrides.{actor_id}.env")

    def _check_agents(self) -> None:
        """Check the agents of the learner and of all actors, which must have the same discount factor."""
        given = AgentArguments.__required_keys__
        self.agent.check("agent", given)
        wanted = discount_of(self.agent)
        for actor_id in self.overrides:
            agent, place = self.part_of(actor_id).agent, f"overrides.{actor_id}.agent"
            agent.check("agent", given, place)
            found = discount_of(agent)
            if found != wanted:
                raise ConfigError(f"{place}.{DISCOUNT}: expected {wanted} as in agent.params, found {found}")


PluginT = TypeVar("PluginT", bound=PluginConfig)


def _with_params(part: PluginT, changes: dict[str, Any]) -> PluginT:
    """A part with other parameters; sections of its parameters are overlaid one by one."""
    return part.model_copy(update={"params": overlay(part.params, changes)})


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML file and apply ``a.b=c`` overrides.

    Raises:
        ConfigError: the file cannot be read, or values are wrong, with one line for each of them.
    """
    return validate(RunConfig, read_values(path, overrides))


def read_values(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a run's YAML file, with ``a.b=c`` overrides; without a name, the run is named after the file.

    Raises:
        ConfigError: the file cannot be read, or is no mapping.
    """
    values = read_yaml(path)
    values.setdefault("name", re.sub(r"[^\w.-]+", "-", path.stem))
    for assignment in overrides:
        assign(values, assignment)
    return values


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that ``load_config`` reads back.

    It leaves out ports that nobody has named: the file would name them.
    """
    unnamed = dict[str, set[str]]()
    for key in FREE_PORTS:
        section, _, name = key.partition(".")
        if name not in getattr(config, section).model_fields_set:
            unnamed.setdefault(section, set()).add(name)
    return to_yaml(config.model_dump(mode="json", exclude=unnamed))
