"""Films a command in a terminal as an animated picture: ``python -m pages.film docs/images/demo.svg -- make demo``.

The command runs in a pseudo-terminal. An emulator of a terminal turns its output into screens. A CSS animation
shows each line for as long as the terminal showed it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import selectors
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

import pyte

COLUMNS, LINES = 100, 24
FRAME_SECONDS: Final = 1.0
"""The shortest time for which the film shows a screen."""
LAST_SECONDS: Final = 4.0
"""The time for which the film shows the last screen before it begins again."""
MOST_SECONDS: Final = 600.0
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18, 14
COLOURS: Final = {
    "default": "#d0d7de",
    "black": "#6e7681",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "yellow": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#f0f6fc",
}
BACKGROUND: Final = "#0d1117"
Style = tuple[str, bool]
"""The colour and whether the text is bold."""


@dataclass(frozen=True)
class Frame:
    """One screen: when it appeared, and the text of each line in runs of one style."""

    seconds: float
    lines: tuple[tuple[tuple[Style, str], ...], ...]


def record(command: Sequence[str]) -> list[Frame]:
    """Run a command in a terminal; return the screens that it showed.

    Raises:
        TimeoutError: it did not end within ``MOST_SECONDS``.
        subprocess.CalledProcessError: it failed.
    """
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[1m$ {' '.join(command)}\x1b[0m\r\n".encode())
    frames, began = [Frame(0.0, look_at(screen))], time.monotonic()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        for data in read_until_closed(ours, began + MOST_SECONDS):
            stream.feed(data)
            seconds = time.monotonic() - began
            if seconds - frames[-1].seconds >= FRAME_SECONDS and frames[-1].lines != (lines := look_at(screen)):
                frames.append(Frame(seconds, lines))
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return [*frames, Frame(time.monotonic() - began, look_at(screen))]


def read_until_closed(terminal: int, until: float) -> Iterator[bytes]:
    """Yield the output to a terminal until all its writers have ended, and no bytes after ``FRAME_SECONDS`` of silence.

    Raises:
        TimeoutError: ``until`` has passed, on the monotonic clock.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        while time.monotonic() < until:
            try:
                yield os.read(terminal, 1 << 16) if selector.select(FRAME_SECONDS) else b""
            except OSError:  # Linux reports the end of the last writer as an input/output error.
                return
    raise TimeoutError(f"the command has not ended within {MOST_SECONDS:g} s")


def look_at(screen: pyte.Screen) -> tuple[tuple[tuple[Style, str], ...], ...]:
    """The lines of a screen, each in runs of characters of one style."""
    lines = []
    for y in range(LINES):
        characters = [screen.buffer[y][x] for x in range(COLUMNS)]
        runs = groupby(characters, key=lambda character: (str(character.fg), bool(character.bold)))
        lines.append(tuple((style, "".join(each.data for each in run)) for style, run in runs))
    return tuple(lines)


def draw(frames: Sequence[Frame]) -> str:
    """The film as an SVG document, with one copy of a line of text for each period in which the terminal showed it."""
    width, height = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN, LINES * LINE_HEIGHT + 2 * MARGIN
    length = frames[-1].seconds + LAST_SECONDS
    ends = [*(frame.seconds for frame in frames[1:]), length]
    groups: dict[tuple[float, float], list[str]] = {}
    for y in range(LINES):
        moments = zip(frames, ends, strict=True)
        for line, shown in groupby(moments, key=lambda moment: moment[0].lines[y]):
            stretch = list(shown)
            if drawn := draw_line(y, line):
                groups.setdefault((stretch[0][0].seconds, stretch[-1][1]), []).append(drawn)
    rules, parts = [], []
    for i, ((begin, end), lines) in enumerate(sorted(groups.items())):
        start, stop = (f"{100 * seconds / length:.2f}%" for seconds in (begin, end))
        hidden = "0%{visibility:hidden}" if begin else ""
        rules.append(f"@keyframes f{i}{{{hidden}{start}{{visibility:visible}}{stop}{{visibility:hidden}}}}")
        rules.append(f".f{i}{{animation:f{i} {length:.1f}s step-end infinite}}")
        parts.append(f'<g class="f f{i}">{"".join(lines)}</g>')
    font = "text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">\n'
        f"<style>{font}.f{{visibility:hidden}}{''.join(rules)}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def draw_line(y: int, line: Sequence[tuple[Style, str]]) -> str:
    """One line of a screen as SVG; a line of blanks is nothing."""
    spans, x = [], 0
    for (colour, bold), text in line:
        if shown := text.strip():
            left = MARGIN + (x + len(text) - len(text.lstrip())) * CHARACTER_WIDTH
            shade = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
            weight = ' font-weight="bold"' if bold else ""
            size = f'textLength="{len(shown) * CHARACTER_WIDTH:.1f}"'
            spans.append(f'<tspan x="{left:.1f}" fill="{shade}"{weight} {size}>{escape(shown)}</tspan>')
        x += len(text)
    return f'<text y="{MARGIN + (y + 0.8) * LINE_HEIGHT:.0f}">{"".join(spans)}</text>' if spans else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    given.picture.write_text(draw(record(given.command)))


if __name__ == "__main__":
    main()
