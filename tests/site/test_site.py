"""The site of `make docs` in a real browser, at three widths; pictures of what it shows go to build/screenshots."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, wait_for
from tests.site.browser import PROGRAMS, Browser, open_browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(any(shutil.which(each) is None for each in PROGRAMS), reason=f"needs {' and '.join(PROGRAMS)}"),
]
SITE = ROOT / "build" / "site"
SCREENSHOTS = ROOT / "build" / "screenshots"
WIDTHS = (390, 768, 1280)
PAGES = sorted(str(path.parent.relative_to(SITE)) for path in SITE.rglob("index.html"))
DRAWINGS = sorted(path.name for path in (ROOT / "docs" / "images").glob("*.svg") if path.name != "demo.svg")
SEARCHES = {
    "tutorial": "tutorial",
    "faq": "faq",
    "troubleshoot": "troubleshooting",
    "hyperparameter": "sweeps-and-plots",
    "wandb": "sweeps-and-plots",
    "demonstration": "demonstrations",
    "intervention": "people",
    "multi-gpu": "faq",
    "install": "installing",
    "kubernetes": "operations",
    "samples_per_insert": "configuration",
}
"""Words that people type, and a page that must be among the first answers."""
BROKEN_CODE = """
// Names that take several lines. Outside tables, a name that is longer than a line may.
const lines = each => each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight);
const fillsLine = each => !each.closest('td') && each.offsetWidth > 0.9 * each.parentElement.clientWidth;
return [...document.querySelectorAll('.md-typeset :not(pre) > code')]
    .filter(each => !each.textContent.includes(' ') && lines(each) > 1.9 && !fillsLine(each))
    .map(each => each.textContent)
"""
PLAIN_BLOCKS = """
return [...document.querySelectorAll('.md-content pre > code')]
    .filter(each => !each.closest('.highlight')).map(each => each.textContent.slice(0, 60))
"""
SEARCH_ROOT = """
const roots = [...document.querySelectorAll('*')].map(each => each.shadowRoot);
const root = roots.find(each => each?.querySelector('input'));
"""
"""The search is a part of the page with a root of its own."""
FOCUS = SEARCH_ROOT + "root?.querySelector('input').focus(); return root !== undefined"
ANSWERS = SEARCH_ROOT + "return [...root.querySelectorAll('a[href]')].map(each => each.pathname)"
CROSSINGS = """
// Whether a filled box between a line and a text, in the order of painting, hides a point of the line.
const hides = (line, text, point) => [...document.querySelectorAll('rect')].some(rect => {
    const box = rect.getBoundingClientRect();
    return getComputedStyle(rect).fill !== 'none' && rect !== line
        && line.compareDocumentPosition(rect) & Node.DOCUMENT_POSITION_FOLLOWING
        && rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING
        && box.left <= point.x && point.x <= box.right && box.top <= point.y && point.y <= box.bottom;
});
const found = [], texts = [...document.querySelectorAll('text')];
const lines = [...document.querySelectorAll('path, line, rect, polyline')].filter(
    each => !each.closest('marker') && getComputedStyle(each).stroke !== 'none');
for (const text of texts) {
    const box = text.getBoundingClientRect(), edge = 1;
    for (const line of lines) {
        const toScreen = line.getScreenCTM(), length = line.getTotalLength();
        for (let at = 0; at <= length; at += 2) {
            const point = line.getPointAtLength(at).matrixTransform(toScreen);
            if (point.x > box.left + edge && point.x < box.right - edge
                && point.y > box.top + box.height / 4 && point.y < box.bottom - box.height / 4
                && !hides(line, text, point)) {
                found.push(text.textContent + ' crosses ' + (line.getAttribute('d') || line.tagName));
                break;
            }
        }
    }
    for (const other of texts) {
        const b = other.getBoundingClientRect();
        if (other !== text && box.left < b.right - edge && b.left < box.right - edge
            && box.top + box.height / 4 < b.bottom - b.height / 4 && b.top + b.height / 4 < box.bottom - box.height / 4)
            found.push(text.textContent + ' is over ' + other.textContent);
    }
    const page = document.documentElement.getBoundingClientRect();
    if (box.left < page.left || box.right > page.right || box.bottom > page.bottom)
        found.push(text.textContent + ' is cut');
}
return found;
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server that has the site, and the drawings by themselves."""
    assert PAGES, "no site in build/site: make docs"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with open_browser(tmp_path_factory.mktemp("browser") / "chromedriver.log") as made:
        yield made


def prefer(browser: Browser, scheme: str) -> None:
    """Have the system ask for ``light`` or ``dark`` colours."""
    browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_every_width_and_its_names_and_blocks_are_whole(browser: Browser, address: str, page: str) -> None:
    for width in WIDTHS:
        prefer(browser, "dark" if width == 768 else "light")
        browser.resize(width, 900)
        browser.open(f"{address}{page}/")
        name = page.replace("/", "-").replace(".", "index")
        browser.screenshot(SCREENSHOTS / f"{name}-{width}.png")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), f"too wide for {width}"
        assert browser.run(BROKEN_CODE) == []
        assert browser.run(PLAIN_BLOCKS) == []
    assert browser.complaints() == []
    foreign = {url for url in browser.requested() if not url.startswith((address, "data:", "blob:"))}
    assert foreign == set(), "the site fetches nothing from elsewhere"


def test_the_reader_chooses_light_or_dark_and_the_system_decides_until_then(browser: Browser, address: str) -> None:
    scheme = "return document.body.getAttribute('data-md-color-scheme')"
    click = "document.querySelector('[data-md-component=palette] label:not([hidden])').click()"
    for preferred, expected in (("dark", "slate"), ("light", "default")):
        prefer(browser, preferred)
        browser.open(address)
        assert browser.run(scheme) == expected
    seen = set()
    for _ in range(3):
        browser.run(click)
        seen.add(browser.run(scheme))
    assert seen == {"default", "slate"}


def test_each_page_says_which_version_it_is_of(browser: Browser, address: str) -> None:
    browser.open(address)
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"crossborder {version}" in browser.run("return document.querySelector('footer').textContent")


@pytest.mark.parametrize(("word", "page"), SEARCHES.items(), ids=SEARCHES)
def test_a_word_that_people_type_leads_to_its_page(browser: Browser, address: str, word: str, page: str) -> None:
    browser.resize(1280, 900)
    browser.open(address)
    browser.run("document.querySelector('.md-search__button').click()")
    wait_for(lambda: browser.run(FOCUS), "search")
    browser.command("Input.insertText", text=word)
    wait_for(lambda: f"/{page}/" in browser.run(ANSWERS)[:10], f"{page} among the first answers for {word}", 20)


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_label_of_a_drawing_crosses_a_line_or_another_label(browser: Browser, address: str, name: str) -> None:
    browser.resize(1400, 1200)
    browser.open(f"{address}images/{name}")
    browser.screenshot(SCREENSHOTS / f"{Path(name).stem}.png")
    assert browser.run(CROSSINGS) == []
