"""The ports at which a learner listens, and ``endpoints.json`` in the run's directory, which names them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.config.run_config import RunConfig
from common.depth import parse_json
from common.errors import ConfigError
from common.wire.address import MOST_PORT, join_address, split_address
from common.wire.endpoints import require_free_port
from learner.storage.rundir import ENDPOINTS, FORMER_ENDPOINTS, RunDir

log = logging.getLogger(__name__)
ADDRESS: Final = "learner"
TRAINER: Final = "trainer_metrics_port"
INGEST: Final = "ingest_metrics_port"
"""The keys of ``endpoints.json``: the address for actors, and the ports of both /metrics."""


class Ports:
    """The ports that one life of a learner tries.

    A run that goes on first tries the ports of its former life, where actors and Prometheus look for it, unless its
    configuration names others.

    Args:
        config: of the run.
        directory: of the run.

    Raises:
        AddressError: another program has a port that the configuration names.
    """

    def __init__(self, config: RunConfig, directory: RunDir) -> None:
        self._config, self._directory = config, directory
        self._former = _read_ports(directory.path / FORMER_ENDPOINTS) if directory.is_resumed else {}
        for key, host, port in config.places_to_listen():  # A run that begins would be in the way of the next start.
            if config.is_named(key):
                require_free_port(key, host, port)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses for actors, in the order in which they are tried."""
        places = [split_address(place) for place in self._config.ports_to_try("server.listen")]
        host = places[0][0]
        return tuple(join_address(host, port) for port in self._after_former(ADDRESS, [port for _, port in places]))

    @property
    def trainer_metrics(self) -> tuple[int | None, ...]:
        """The ports that the trainer's /metrics tries, in this order; None: nothing is served."""
        return self._find_metrics(TRAINER, 0)

    @property
    def ingest_metrics(self) -> tuple[int | None, ...]:
        """The same of ingest's /metrics, whose port is the next one."""
        return self._find_metrics(INGEST, 1)

    def _find_metrics(self, key: str, offset: int) -> tuple[int | None, ...]:
        ports = [split_address(place)[1] for place in self._config.ports_to_try("metrics.listen")]
        if not ports:
            return (None,)
        return self._after_former(key, [port and port + offset for port in ports])

    def _after_former(self, key: str, ports: list[int]) -> tuple[int, ...]:
        """The ports that the configuration allows, after the one of the former life if the last of them may be any."""
        former = self._former.get(key, 0)
        return tuple(dict.fromkeys([former, *ports] if former and not ports[-1] else ports))

    def write(self, address: str, trainer: int | None, ingest: int | None) -> None:
        """Write ``endpoints.json``: the address for actors, and the ports of both /metrics."""
        found = (split_address(address)[1], trainer, ingest)
        usual = (split_address(self.addresses[0])[1], self.trainer_metrics[0], self.ingest_metrics[0])
        taken = [str(port) for port, now in zip(usual, found, strict=True) if port and port != now]
        if taken:
            log.warning("other programs have the usual ports (%s): free ones take their place", ", ".join(taken))
        run_dir = self._directory.path
        log.info("listening on %s, metrics on ports %s and %s; run directory %s", address, trainer, ingest, run_dir)
        self._directory.write_json(ENDPOINTS, {ADDRESS: address, TRAINER: trainer, INGEST: ingest})


def _read_ports(path: Path) -> Mapping[str, int]:
    """The ports that such a file names, by key."""
    try:
        found = parse_json(path.read_text())
        ports = {ADDRESS: split_address(found[ADDRESS])[1], TRAINER: found[TRAINER], INGEST: found[INGEST]}
        if any(port not in range(MOST_PORT + 1) for port in ports.values() if port is not None):
            raise ValueError(f"expected ports, found {found!r:.80}")
        return {key: port for key, port in ports.items() if port is not None}
    except FileNotFoundError:
        pass  # The former life was killed before it listened.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError) as error:
        log.warning("%s: %s; the learner listens where its configuration says", path, error)
    return {}
