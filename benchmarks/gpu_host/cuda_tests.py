"""The tests that are skipped without a GPU, in parallel."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from benchmarks.gpu_host.part import give, read_arguments, tell

WORKERS: Final = 6
"""Each has a CUDA context of its own."""
SHOWN: Final = 300
"""Characters of a failure's message."""


def find_files() -> list[Path]:
    """The files that have such tests: others may need packages that the host lacks."""
    return [path for path in Path("tests").rglob("test_*.py") if "from tests.devices import" in path.read_text()]


def main() -> None:
    budget, _ = read_arguments(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "tests.xml"
        options = ["-m", "gpu", "-p", "no:benchmark", "-n", str(budget.shrink(WORKERS, 2)), "--junitxml", str(report)]
        command = [sys.executable, "-m", "pytest", *options, *map(str, find_files())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tell(line.rstrip("\n"))
        if not report.exists():
            sys.exit(f"pytest ended with exit code {process.returncode} and no report")
        # The file is pytest's own, so it needs no parser that is safe from strangers.
        suite = ElementTree.parse(report).getroot().find("testsuite")  # noqa: S314
        assert suite is not None
        counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        failed = [
            f"{case.attrib['classname']}.{case.attrib['name']}: {problem.attrib.get('message', '')[:SHOWN]}"
            for case in suite.iter("testcase")
            for problem in (case.find("failure"), case.find("error"))
            if problem is not None
        ]
    give(**counts, failed=failed)
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
