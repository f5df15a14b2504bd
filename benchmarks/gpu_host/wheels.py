"""Collects the wheels that a GPU host without a network lacks, in the versions with which the tests ran here.

    python -m benchmarks.gpu_host.wheels DIRECTORY --python 3.12        here, in the environment of `make test`
    python3 -m pip install --no-index --no-deps --upgrade DIRECTORY/*.whl     there, and then in the clone:
    PYTHONPATH=$PWD python3 -m benchmarks.gpu_host

The host is expected to have torch with CUDA, JAX, and the usual packages of the field. ``wheels.txt`` has one name a
line; of a package that is not installed here, the newest is taken. crossborder's own wheel is among them, since
crossborder looks for its version among the installed packages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

NAMES: Final = Path(__file__).with_name("wheels.txt")
PLATFORMS: Final = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
MOST_BYTES: Final = 64 << 20


def read_names() -> list[str]:
    """The packages of ``wheels.txt``, each with the version that is installed here, if it is."""
    lines = (line.partition("#")[0].strip() for line in NAMES.read_text().splitlines())
    return [pin(name) for name in lines if name]


def pin(name: str) -> str:
    """A requirement of the version that is installed here, or of any."""
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


def collect(directory: Path, python: str) -> int:
    """Download the wheels into a directory; return their bytes."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    command = [sys.executable, "-m", "pip", "download", *options, *platforms, "--dest", str(directory), *read_names()]
    subprocess.run(command, check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory], check=True
    )
    return sum(path.stat().st_size for path in directory.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", default="3.12", help="of the host")
    given = parser.parse_args()
    size = collect(given.directory, given.python)
    if size > MOST_BYTES:
        sys.exit(f"{given.directory}: expected at most {MOST_BYTES:,} bytes of wheels, found {size:,}")
    sys.stdout.write(f"{given.directory}: {size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
