"""``crossborder-files``: copies what comes with crossborder beside its code, for hosts without a clone."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path
from typing import Final

from common.errors import ConfigError
from common.process.command import Parser, as_path, command_of
from common.process.standard_streams import answers

EXAMPLES = """\
  crossborder-files --list               what there is
  crossborder-files crossborder-files    copies of all of it, in a new directory
"""
SOURCES: Final = {
    "clients": "clients",
    "configs": "configs",
    "dashboards": "docker/grafana/dashboards",
    "docs": "docs",
    "prometheus/alerts.yml": "docker/prometheus/alerts.yml",
    "prometheus/prometheus.yml": "docker/prometheus/prometheus.yml",
    "prometheus/scaling.yml": "docker/prometheus/scaling.yml",
    "protos/crossborder": "protos/crossborder",
    "systemd": "deploy/systemd",
}
"""Where each file or folder stands in a clone. A wheel has it under ``crossborder/files``; see pyproject.toml."""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-files", __doc__, EXAMPLES)
    made.add_argument(
        "directory", nargs="?", type=as_path, metavar="DIR", help="the new directory that gets the copies"
    )
    made.add_flag("--list", "print the names of all files and copy nothing")
    return made


def find_sources() -> dict[str, Path]:
    """Where each file or folder of ``SOURCES`` stands on this host: in the installed package, or in a clone."""
    found = importlib.util.find_spec("crossborder")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    installed = package / "files"
    if installed.is_dir():
        return {name: installed / name for name in SOURCES}
    return {name: package.parent / place for name, place in SOURCES.items()}


def copy_files(directory: Path) -> None:
    """Copy all files into a new directory.

    Raises:
        ConfigError: the directory exists already, or cannot be written.
    """
    if directory.exists():
        raise ConfigError(f"{directory}: expected the name of a new directory, found one that exists")
    try:
        for name, source in find_sources().items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)  # A part of the files would only be in the way of the next try.
        raise ConfigError(f"{directory}: files cannot be copied there: {error}") from error


def _act(arguments: argparse.Namespace) -> None:
    if arguments.list:
        for name, source in find_sources().items():
            files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
            names = [name if file == source else f"{name}/{file.relative_to(source)}" for file in files]
            answers().write("".join(f"{each}\n" for each in names))
    elif arguments.directory is None:
        raise ConfigError("expected a directory for the copies, or --list, found neither")
    else:
        copy_files(arguments.directory)


main = command_of(parser, _act)
