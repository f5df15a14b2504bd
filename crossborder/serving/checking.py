"""``policy-server --check``: would an acting service work on this host? One line for each thing that can be wrong."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from actor.commands.doctor import examine_all
from common.agents.torch_device import require_device
from common.errors import ConfigError, CrossborderError, PluginError, naming_failed_part
from common.leaves import empty_leaves
from common.process.command import Check, run_checks
from common.wire.acting_payloads import tell_leaves
from common.wire.endpoints import require_free_port
from common.wire.trust import Trust
from crossborder.inspecting.crossborder_doctor import describe_certificate
from crossborder.serving.saved_policies import opening
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig


class ServingHost:
    """This host, for a service of one configuration. Each public method is a check: it returns a finding, or raises.

    Args:
        config: of the service.
        places: of saved policies, by name; empty: a learner brings the policy.
        allow: see ``load_policy``.
    """

    def __init__(self, config: ServingConfig, places: Mapping[str, Path], allow: Sequence[str]) -> None:
        self._config, self._places, self._allow = config, places, allow

    def device(self) -> str:
        return f"device is {require_device(self._config.device, 'device')}"

    def policies(self) -> str:
        unrecorded = self._config.model_copy(update={"record": None})
        with opening(self._places, self._allow, unrecorded) as policies:
            return "; ".join(map(_describe, policies)) or "of the learner, which is looked at below"

    def doors(self) -> str:
        self._config.check()
        if self._config.websocket is not None and find_spec("websockets") is None:
            raise PluginError("websocket: expected the package websockets, found none")
        doors = [self._config.listen, *([self._config.websocket] if self._config.websocket is not None else [])]
        source = self._config.tokens()
        clients = "programs of this user" if source is None else ", ".join(sorted({one.name for one in source.read()}))
        return f"{' and '.join(doors)} for {'everybody' if self._config.insecure else clients}"

    def ports(self) -> str:
        found = []
        for key, host, port in self._config.places_to_listen():
            require_free_port(key, host, port)
            found.append(f"{key} {port} is free" if port else f"{key} takes any")
        return ", ".join(found)

    def certificate(self) -> str:
        if self._config.tls is None:
            return "none, which is allowed on loopback and with insecure"
        self._config.tls.check()
        return describe_certificate(self._config.tls.certificate, self._config.tls.key)

    def recording(self) -> str:
        if self._config.record is None:
            return "nothing is recorded"
        path = self._config.record.absolute()
        try:
            place = next(each for each in (path, *path.parents) if each.exists())
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise ConfigError(f"record: expected a directory in which this user can write, found: {error}") from error
        return f"whole episodes go to {path}"


def _describe(policy: ServedPolicy) -> str:
    """What a policy takes and gives, after it has acted once."""
    obs, begins, lanes = empty_leaves(policy.player.spec.observation_space, 1), np.ones(1, bool), np.zeros(1, np.int64)
    with naming_failed_part("the policy cannot act"):
        policy.player.sample(obs, begins, lanes)
        began = time.perf_counter()
        actions = policy.player.sample(obs, ~begins, lanes)
        seconds = time.perf_counter() - began
        policy.description.write_actions(actions, [1])
    taken, given = map(tell_leaves, policy.description.leaves())
    return (
        f"{policy.name or 'one'} from {policy.source}, opt step {policy.player.opt_steps}: "
        f"takes {taken}, gives {given}, in {1e3 * seconds:.2g} ms for one lane"
    )


CHECKS: Final = (
    Check("device", ServingHost.device, "set device: cpu, or install a build of torch for this GPU's driver"),
    Check(
        "policies",
        ServingHost.policies,
        "name a run or a checkpoint in it by --run, install what it names, and --allow it if you trust it",
    ),
    Check(
        "doors",
        ServingHost.doors,
        "crossborder-certs makes certificates, and a token for each client by --client NAME; for WebSocket: "
        "pip install 'crossborder[serving]'",
    ),
    Check("ports", ServingHost.ports, "end the program that listens there, or set another port; 0 takes a free one"),
    Check(
        "certificate", ServingHost.certificate, "crossborder-certs makes certificates and tokens; --renew renews them"
    ),
    Check("recording", ServingHost.recording, "name another directory by --record"),
)


def examine(host: ServingHost, learners: Sequence[str], trust: Trust, out: TextIO) -> None:
    """Run all checks of a service, and those of its learner; write a line for each.

    Args:
        host: is examined first.
        learners: the learner's addresses; empty: policies are saved ones.
        trust: that of an actor of the learner.
        out: takes the lines.

    Raises:
        CrossborderError: the error of the first check that failed.
    """
    failures = list[CrossborderError]()
    for check in (partial(run_checks, CHECKS, host, out), partial(examine_all, learners, trust, out, has_envs=False)):
        try:
            check()
        except CrossborderError as error:
            failures.append(error)
    if failures:
        raise failures[0]
