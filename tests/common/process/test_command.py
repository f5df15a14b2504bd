from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import shtab

from common.errors import AddressError, CrossborderError, FaultError
from common.process.command import (
    SHELLS,
    Parser,
    as_output,
    at_least,
    command_of,
    positive,
    run_until_signal,
    tell_error,
    tell_exit,
)
from common.process.signals import StopSignals
from common.wire.rpc import StoppingError
from tests.conftest import PATIENCE, ROOT, python_of


@pytest.fixture
def parser() -> Parser:
    made = Parser("brew", "``brew``: makes tea.", "  brew --leaves green\n")
    made.add_argument("--leaves", choices=["green", "black"], required=True, help="which")
    made.add_argument("--note", help="free text")
    made.add_argument("--cups", type=at_least(1), help="how many")
    made.add_argument("--spoons", type=at_least(0, 3), help="how much sugar")
    made.add_argument("--minutes", type=positive, help="how long")
    made.add_argument("--recipe", type=Path, metavar="FILE", help="how")
    return made


def refusal(parser: Parser, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The error message for a wrong command line."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(shlex.split(line))
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("--leafs green", "unknown option --leafs (did you mean '--leaves'?)"),
        ("--leave=green", "unknown option --leave (did you mean '--leaves'?)"),
        ("--leaves green --note x --cup 3", "unknown option --cup (did you mean '--cups'?)"),
        ("--leaves gren", "argument --leaves: unknown value 'gren' (did you mean 'green'?)"),
        ("--leaves mint", "argument --leaves: unknown value 'mint' (known: black, green)"),
        ("--leaves green --cups 0", "argument --cups: expected 1 or more, found '0'"),
        ("--leaves green --cups few", "argument --cups: expected 1 or more, found 'few'"),
        ("--leaves green --spoons 4", "argument --spoons: expected 0 to 3, found '4'"),
        ("--leaves green --minutes -1", "argument --minutes: expected a number above 0, found '-1'"),
        ("--leaves green --minutes inf", "argument --minutes: expected a number above 0, found 'inf'"),
        ("--leaves green --minutes long", "argument --minutes: expected a number above 0, found 'long'"),
    ],
)
def test_an_error_in_the_options_names_what_is_expected(
    parser: Parser, capsys: pytest.CaptureFixture[str], line: str, answer: str
) -> None:
    assert refusal(parser, line, capsys) == f"brew: error: {answer}"


def test_an_unknown_option_without_a_similar_one_is_answered_with_all_options(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "(known: --cups, --help, --leaves," in refusal(parser, "--xyzzy", capsys)


def test_words_after_two_dashes_are_no_options(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", help="more")
    assert parser.parse_args(["--leaves", "green", "--", "--leafs"]).words == ["--leafs"]


def test_values_of_options_are_converted(parser: Parser) -> None:
    found = parser.parse_args(shlex.split("--leaves=black --cups 2 --minutes 1.5"))
    assert (found.leaves, found.cups, found.minutes, found.log_format) == ("black", 2, 1.5, "text")


def test_help_shows_the_purpose_of_a_command_and_examples(parser: Parser) -> None:
    text = parser.format_help()
    assert "brew: makes tea." in text
    assert "examples:\n  brew --leaves green\n\nexit codes: docs/exit-codes.md" in text


def test_a_command_works_where_python_leaves_docstrings_out() -> None:
    code = "from crossborder.inspecting.replay_inspect import main; main(['--help'])"
    words = [sys.executable, "-OO", "-c", code]
    found = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "examples:" in found.stdout


def test_a_shell_completes_options_choices_and_files(
    parser: Parser, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--print-completion", "bash"])
    assert ended.value.code == 0
    (tmp_path / "brew.bash").write_text(capsys.readouterr().out)
    completes = '{ source brew.bash; COMP_WORDS=(brew %s); COMP_CWORD=%d; _shtab_brew; echo "${COMPREPLY[@]}"; }'
    (tmp_path / "recipe.txt").touch()
    for words, expected in (("--lea", "--leaves"), ("--leaves gr", "green"), ("--recipe reci", "recipe.txt")):
        script = completes % (words, len(words.split()))
        done = subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected], done.stderr


def test_the_shells_of_completion_are_those_that_shtab_writes_scripts_for(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {*SHELLS} <= {*shtab.SUPPORTED_SHELLS}
    assert "unknown value 'bsh' (did you mean 'bash'?)" in refusal(parser, "--print-completion bsh", capsys)


def test_completion_without_shtab_names_the_extra_that_has_it(
    parser: Parser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "shtab" in (told := refusal(parser, "--print-completion bash", capsys))
    assert told.endswith("pip install shtab")


def test_an_error_ends_with_the_place_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_error("brew", AddressError("port 1 is taken\nand port 2"), "text") == 5
    assert capsys.readouterr().err == (
        "brew: port 1 is taken\nbrew: and port 2\nbrew: exit code 5: docs/exit-codes.md#exit-code-5\n"
    )


def test_before_a_fault_of_a_users_part_is_told_its_traceback_is_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fault = FaultError("env my_parts:Env: OSError: no arm")
    fault.__cause__ = OSError("no arm")
    assert tell_error("brew", fault, "text") == 1
    assert capsys.readouterr().err.startswith("brew: env my_parts:Env: OSError: no arm\nbrew: exit code 1")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is fault.__cause__


def test_in_json_an_error_is_a_record_of_the_log() -> None:
    lines = (
        "from common.process.command import tell_error",
        "from common.errors import AddressError",
        "from common.process.log import setup_logging",
        "setup_logging(form='json')",
        "raise SystemExit(tell_error('brew', AddressError('port 1 is taken'), 'json'))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    entry = json.loads(done.stderr)
    assert (done.returncode, entry["level"]) == (5, "CRITICAL")
    assert entry["message"] == "port 1 is taken\nexit code 5: docs/exit-codes.md#exit-code-5"


def test_a_command_that_is_run_acts_on_its_words_and_an_error_is_told_with_its_code(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def fail(_: argparse.Namespace) -> None:
        raise AddressError("port 1 is taken")

    assert command_of(lambda: parser, lambda arguments: seen.append(arguments.leaves))(["--leaves", "green"]) == 0
    assert seen == ["green"]
    assert command_of(lambda: parser, fail)(["--leaves", "green"]) == AddressError.exit_code
    assert capsys.readouterr().err.startswith("brew: port 1 is taken\nbrew: exit code 5: ")


def test_a_signal_interrupts_a_command_and_gives_its_exit_code(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_of(lambda: parser, lambda _: signal.raise_signal(signal.SIGTERM))(["--leaves", "green"]) == 143
    assert capsys.readouterr().err == "brew: interrupted\n"


@pytest.mark.parametrize("raised", [SystemExit(0), KeyboardInterrupt()])
def test_a_part_that_would_end_a_command_in_silence_fails_it(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: StopSignals) -> None:
        raise raised

    assert run_until_signal("brew", "text", leave) == 1
    assert f"one of your parts raised {raised!r}" in caplog.text


def test_a_part_that_has_turned_the_log_off_does_not_end_a_command_in_silence_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("common.process.command"), "disabled", True)
    assert tell_exit(SystemExit(0)) == 1
    assert capsys.readouterr().err.splitlines() == [
        "SystemExit: 0",
        "one of your parts raised SystemExit(0), which would end this process in silence",
    ]


def test_an_exception_that_comes_while_a_command_ends_at_a_signal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The signal may have gone to all processes of a job, and ended those of an environment."""

    def lose(signals: StopSignals) -> None:
        signals.on_stop = lambda: None
        signal.raise_signal(signal.SIGTERM)
        raise ConnectionResetError("a process has ended")

    assert run_until_signal("brew", "text", lose) == 143
    assert "ConnectionResetError: a process has ended" in caplog.text


def test_another_exception_keeps_its_exit_code_after_a_signal() -> None:
    """The exit code of a signal says that ``final/`` was saved."""

    def fail(signals: StopSignals) -> None:
        signals.on_stop = lambda: None
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run_until_signal("brew", "text", fail)


def test_an_exception_without_a_signal_is_raised() -> None:
    def fail(_: StopSignals) -> None:
        raise ConnectionResetError("a process has ended")

    with pytest.raises(ConnectionResetError):
        run_until_signal("brew", "text", fail)


@pytest.mark.parametrize(("error", "code"), [(AddressError("port 1 is taken"), 5), (StoppingError("it ends"), 143)])
def test_after_a_signal_an_error_is_told_unless_it_only_says_that_the_command_was_told_to_stop(
    capsys: pytest.CaptureFixture[str], error: CrossborderError, code: int
) -> None:
    def stop(signals: StopSignals) -> None:
        signals.on_stop = lambda: None
        signal.raise_signal(signal.SIGTERM)
        raise error

    assert run_until_signal("brew", "text", stop) == code
    assert ("port 1 is taken" in capsys.readouterr().err) == (code == 5)


def test_a_file_that_cannot_be_written_is_told_before_the_work(
    parser: Parser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser.add_argument("--output", type=as_output)
    for place, why in (
        (tmp_path, "it is a directory"),
        (tmp_path / ("x" * 250), "its name is too long for the name of its draft"),
        (Path("/dev/null"), "it is a device or a pipe"),
        (tmp_path / "no" / "file", "No such file or directory"),
        (Path("/proc/file"), ""),
    ):
        error = refusal(parser, f"--leaves green --output {place}", capsys)
        assert f"argument --output: {place}: cannot be written: {why}" in error
    for name in ("tea", "x" * 249):
        assert parser.parse_args(["--leaves", "green", "--output", str(tmp_path / name)]).output == tmp_path / name
    assert list(tmp_path.iterdir()) == [], "nothing is left of the look"


def test_an_output_that_is_a_link_is_the_file_that_it_leads_to(
    parser: Parser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser.add_argument("--output", type=as_output)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/tea")
    parsed = parser.parse_args(["--leaves", "green", "--output", str(tmp_path / "link")])
    assert parsed.output == (tmp_path / "there" / "tea").resolve()
    (tmp_path / "lost").symlink_to("no/tea")
    assert "lost: cannot be written: No such file" in refusal(
        parser, f"--leaves green --output {tmp_path}/lost", capsys
    )


@pytest.mark.parametrize("name", ["actor-worker", "sync-train"])
def test_a_current_directory_that_was_removed_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    words = {"actor-worker": ["--learner", "localhost:1"], "sync-train": ["--config", f"{ROOT}/configs/cartpole.yaml"]}
    line = shlex.join([*python_of(name), *words[name]])
    (tmp_path / "gone").mkdir()
    removing = ["/bin/sh", "-c", f"rmdir '{tmp_path}/gone'; exec {line}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        removing, cwd=tmp_path / "gone", env=environment, capture_output=True, text=True, check=False
    )
    told = "expected a current directory, found none: No such file or directory; it was removed: cd to another one, "
    assert (found.returncode, found.stderr.splitlines()[0]) == (2, f"{name}: {told}or to its path again")


@pytest.mark.parametrize("name", ["actor-worker", "crossborder-files", "learner-server", "replay-inspect"])
def test_too_few_file_descriptors_are_told_in_one_line(name: str) -> None:
    words = {"actor-worker": ["--learner", "localhost:1"], "learner-server": ["--config", "configs/cartpole.yaml"]}
    line = shlex.join([*python_of(name), *words.get(name, ["nowhere"])])
    limited = ["/bin/sh", "-c", f"ulimit -n 40; exec {line}"]
    found = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"{name}: open files: expected a limit of at least 128, found 40: raise it (ulimit -n)\n"
    assert (found.returncode, found.stderr) == (3, f"{told}{name}: exit code 3: docs/exit-codes.md#exit-code-3\n")
