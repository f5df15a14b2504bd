"""``crossborder-doctor``: would a learner work on this host? One line for each thing that can be wrong.

Its counterpart on the hosts of actors is the check of ``actor-worker``, once the learner runs.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import platform
import shutil
import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from common.config.run_config import RunConfig, load_config
from common.cores import require_usable
from common.errors import AddressError, ConfigError, RunDirectoryError
from common.process.command import Check, Parser, add_settings, as_path, command_of, run_checks
from common.process.standard_streams import answers
from common.system import allocate, usable_cores
from common.wire.endpoints import require_free_port
from learner.commands.training_command import add_override

if TYPE_CHECKING:
    from common.data import Schema

EXAMPLES = """\
  crossborder-doctor --config configs/cartpole.yaml
  crossborder-doctor --config run.yaml --run-dir /data/runs/mine --set trainer.device=cuda
  crossborder-doctor --config run.yaml --set server.listen=0.0.0.0:50051 \\
      --set server.tls.certificate=certs/server.pem --set server.tls.key=certs/server.key

Nothing is started and no file stays behind.
"""
CLOCK_UNKNOWN: Final = 5
"""Linux's ``adjtimex`` returns this value, TIME_ERROR, while nothing keeps the clock."""
TIMEX_BYTES: Final = 256
"""More than the ``struct timex`` that ``adjtimex`` fills."""
SIZE_UNKNOWN: Final = "the size of the replay is unknown"


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-doctor", __doc__, EXAMPLES)
    made.add_value("--config", "FILE", "the run's YAML file", as_path, is_required=True)
    add_settings(made, "overrides", "replace one value of the YAML file")
    add_override(made, "--run-dir", "run_dir", "DIR", "the directory into which the run would write all its files")
    return made


class Host:
    """This host, for a learner of one configuration. Each public method is a check: it returns a finding, or raises."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._schema: Schema | None = None

    def release(self) -> str:
        import torch

        return f"crossborder {version('crossborder')}, Python {platform.python_version()}, torch {torch.__version__}"

    def cores(self) -> str:
        usable, own = usable_cores(), self._config.trainer.cores
        if own is None:
            return f"{len(usable)} for trainer, ingest and local actors"
        require_usable(own, "trainer.cores")
        return f"{len(own)} for trainer and ingest, {len(usable) - len(own)} for local actors"

    def device(self) -> str:
        import torch

        from common.agents.torch_device import require_device

        wanted = require_device(self._config.trainer.device)
        count = torch.cuda.device_count()
        if wanted.type != "cuda":
            return f"trainer.device is {wanted}; " + (
                f"{count} GPUs stay unused" if count else "torch finds no GPU here"
            )
        free, total = torch.cuda.mem_get_info(wanted)
        return f"{torch.cuda.get_device_name(wanted)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"

    def products(self) -> str:
        import torch

        from common.agents.products import describe_products

        trainer = self._config.trainer
        torch.set_num_threads(trainer.torch_threads)
        return f"trainer.products is {trainer.products}; {describe_products()}"

    def parts(self) -> str:
        from learner.loop.learner_parts import build_learner_parts

        self._config.check()
        self._schema = build_learner_parts(self._config).schema
        return f"{self._config.env.target} and {self._config.agent.target} make rows of {self._schema.row_bytes} bytes"

    def _replay_bytes(self) -> int | None:
        """The size of the replay; None if ``parts`` failed, since then the size of a row is unknown."""
        return None if self._schema is None else self._schema.row_bytes * self._config.replay.capacity

    def _disk(self) -> Path:
        """The nearest directory that exists, at or above the one of the run."""
        path = (self._config.run_dir or Path("runs")).absolute()
        try:
            return next(each for each in (path, *path.parents) if each.is_dir())
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be reached: {error.strerror}") from error

    def disk(self) -> str:
        place, needed = self._disk(), self._replay_bytes()
        free = shutil.disk_usage(place).free
        found = f"{free / 1e9:.1f} GB free at {place}"
        if needed is None:
            return f"{found}; {SIZE_UNKNOWN}"
        found = f"{found}, the replay takes {needed / 1e6:,.0f} MB"
        if free < needed:
            raise RunDirectoryError(f"expected room for the replay, but {found}")
        return found

    def mapped_files(self) -> str:
        place = self._disk()
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                allocate(file.fileno(), mmap.PAGESIZE)
                with mmap.mmap(file.fileno(), mmap.PAGESIZE) as one, mmap.mmap(file.fileno(), mmap.PAGESIZE) as other:
                    one[:4] = b"here"
                    is_shared = other[:4] == b"here"
        except OSError as error:
            raise RunDirectoryError(f"{place}: no file can be mapped there: {error}") from error
        if not is_shared:
            raise RunDirectoryError(f"{place}: two maps of one file show different values")
        return f"processes share memory through files at {place}"

    def memory(self) -> str:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        needed, found = self._replay_bytes(), f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are unused"
        if needed is None:
            return f"{found}; {SIZE_UNKNOWN}"
        return f"{found}; the replay {'fits' if needed < total else 'does not fit: draws will read the disk'}"

    def ports(self) -> str:
        found = []
        for key, host, port in self._config.places_to_listen():
            try:
                require_free_port(key, host, port)
                found.append(f"{key} {port} is free" if port else f"{key} takes any")
            except AddressError:
                if self._config.is_named(key):
                    raise
                found.append(f"{key} {port} is taken: the learner takes free ports")
        return ", ".join(found)

    def certificate(self) -> str:
        server = self._config.server
        server.check()
        if server.tls is None:
            return "none, which is allowed on loopback and with server.insecure"
        return describe_certificate(server.tls.certificate, server.tls.key)

    def clock(self) -> str:
        now = datetime.now(UTC)
        kept = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)) != CLOCK_UNKNOWN
        written = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
        if now < written:
            raise ConfigError(f"expected a time after {written:%Y-%m-%d}, when crossborder was installed, found {now}")
        return f"{now:%Y-%m-%d %H:%M:%S} UTC, " + ("kept by NTP" if kept else "which no NTP service keeps")


def describe_certificate(certificate: Path, key: Path) -> str:
    """For which names a certificate is valid, and until when, as a client sees it: by a handshake within this process.

    Raises:
        ConfigError: the certificate has expired, or is not valid yet.
    """
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    theirs.check_hostname = False
    theirs.load_verify_locations(certificate)  # The authority may be elsewhere: the certificate vouches for itself.
    theirs.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = ours.wrap_bio(up, down, server_side=True), theirs.wrap_bio(down, up)
    try:
        for _ in range(2):  # The client's hello, then the server's answer with its certificate.
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError as error:
        raise ConfigError(f"certificate {certificate}: {error.reason or error}: {error}") from error
    seen = client.getpeercert() or {}
    pairs = cast("Sequence[tuple[str, str]]", seen.get("subjectAltName", ()))
    names = ", ".join(name for _, name in pairs)
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(seen["notAfter"])), UTC)
    return f"for {names}; until {until:%Y-%m-%d}, {(until - datetime.now(UTC)).days} days from now"


CHECKS: Final = (
    Check("release", Host.release, "install crossborder and torch again"),
    Check("cores", Host.cores, "name cores of this host by trainer.cores, or leave it out"),
    Check("device", Host.device, "set trainer.device: cpu, or install a build of torch for this GPU's driver"),
    Check("products", Host.products, "install crossborder and torch again"),
    Check("parts", Host.parts, "read what learner-server --check says; install what the configuration names"),
    Check("disk", Host.disk, "name a larger disk by --run-dir, or lower replay.capacity"),
    Check("mapped files", Host.mapped_files, "name a directory on a local disk by --run-dir"),
    Check("memory", Host.memory, "lower replay.capacity"),
    Check("ports", Host.ports, "end the program that listens there, or set another port; 0 takes a free one"),
    Check("certificate", Host.certificate, "crossborder-certs makes certificates and tokens; --renew renews them"),
    Check("clock", Host.clock, "keep the clock by NTP (timedatectl set-ntp true)"),
)


def _examine(arguments: argparse.Namespace) -> None:
    run_checks(CHECKS, Host(load_config(arguments.config, arguments.overrides)), answers())


main = command_of(parser, _examine)
