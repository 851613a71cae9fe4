"""The page in a real browser: no console error, sorting, filtering, hovering, keyboard, themes, paper."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, missing
from gpuledger.cli.main import status_of
from gpuledger.config import RunOptions, resolve_run
from gpuledger.estimate import estimate
from gpuledger.report.estimate_json import content
from gpuledger.units import gib

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

ARROW_RIGHT, ESCAPE, TAB = "\ue014", "\ue00c", "\ue004"
NAME = 'a <b>"bold"</b> name & more'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    assert status_of(["report", "pythia-70m", "--gpu", "h100-80gb-sxm", "--gpus", "2", "--over", "zero=0,3",
                      "--compare", "--set", f"name={NAME!r}", "-o", str(out)]) == 0
    return out / "index.html"


@pytest.fixture(scope="module")
def window(page: Path) -> Iterator[Browser]:
    with Browser() as browser:
        browser.open(page)
        yield browser


@pytest.fixture
def browser(window: Browser, page: Path) -> Iterator[Browser]:
    """The page as it was opened; afterwards, it has not complained."""
    window.open(page)
    yield window
    assert window.console() == []


def entries() -> list[dict[str, Any]]:
    run, _ = resolve_run("pythia-70m", RunOptions(gpu="h100-80gb-sxm", gpus=2, zero=0))
    found: list[dict[str, Any]] = content(estimate(run, replay=True))["entries"]
    return found


def column(browser: Browser, number: int) -> list[str]:
    """Cells of the visible rows of the first ledger."""
    found: list[str] = browser.run(
        "return [...document.querySelectorAll('#run-0-ledger tbody tr')].filter(row => !row.hidden)"
        ".map(row => row.cells[arguments[0]].textContent.trim())", number)
    return found


def test_loads_without_a_word_and_without_the_network(browser: Browser) -> None:
    assert browser.run("return document.readyState") == "complete"
    assert browser.run("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert browser.run("return document.querySelectorAll('figure.chart svg').length") >= 12
    assert NAME in browser.run("return document.getElementById('run-0').querySelector('h2').textContent")
    assert browser.run("return document.querySelectorAll('b').length") == 0       # names are text


def test_ledger_is_sorted_by_every_column(browser: Browser) -> None:
    expected = sorted(entries(), key=lambda entry: -entry["bytes"])
    assert [int(text.replace(",", "")) for text in column(browser, 2)] == [e["bytes"] for e in expected]
    header = "#run-0-ledger thead th:nth-child({}) button"
    browser.click(header.format(1))
    assert column(browser, 0) == sorted(column(browser, 0), key=str.lower)
    browser.click(header.format(1))
    assert column(browser, 0) == sorted(column(browser, 0), key=str.lower, reverse=True)
    browser.click(header.format(5))
    counts = [int(text) for text in column(browser, 4)]
    assert counts == sorted(counts, reverse=True)
    sorts = browser.run("return [...document.querySelectorAll('#run-0-ledger th')]"
                        ".map(th => th.getAttribute('aria-sort'))")
    assert sorts == ["none"] * 4 + ["descending"] + ["none"] * 2
    assert len(column(browser, 0)) == len(expected)


def test_filter_keeps_what_matches_and_adds_it_up(browser: Browser) -> None:
    browser.type("#run-0-ledger input", "norm float32")
    wanted = [e for e in entries() if "norm" in (text := f"{e['name']} {e['category']} {e['detail']}").lower()
              and "float32" in text]
    shown = column(browser, 2)
    assert 0 < len(shown) < len(entries())
    assert set(column(browser, 0)) >= {entry["name"] for entry in wanted}
    total = sum(int(text.replace(",", "")) for text in shown)
    said = browser.run("return document.querySelector('#run-0-ledger output').textContent")
    assert said == f"{len(shown)} of {len(entries())} entries, {total:,} bytes ({total / 2**30:.2f} GiB)"
    browser.run("const s = document.querySelector('#run-0-ledger select'); s.value = 'optimizer';"
                "s.dispatchEvent(new Event('change'))")
    assert set(column(browser, 1)) <= {"optimizer"}


def test_hovering_says_the_exact_value(browser: Browser) -> None:
    selector = "#all-0-figure .mark[data-label$='optimizer']"
    assert browser.run("return document.getElementById('tip').hidden") is True
    browser.hover(selector)
    nbytes = int(browser.run("return document.querySelector(arguments[0]).dataset.bytes", selector))
    tip = browser.run("const t = document.getElementById('tip'); return [t.hidden, t.textContent]")
    assert tip[0] is False and tip[1].endswith(f"optimizer: {gib(nbytes)}")
    assert nbytes == sum(e["bytes"] for e in entries() if e["category"] == "optimizer")
    browser.hover("h1")
    assert browser.run("return document.getElementById('tip').hidden") is True


def test_arrow_keys_read_a_chart(browser: Browser) -> None:
    browser.run("document.getElementById('all-0-figure').focus()")
    texts = []
    for _ in range(3):
        browser.press(ARROW_RIGHT)
        texts.append(browser.run("return document.getElementById('tip').textContent"))
    assert [text.rpartition(", ")[2].partition(":")[0] for text in texts] == [
        "parameters", "optimizer", "gradients"]
    browser.press(ESCAPE)
    assert browser.run("return document.getElementById('tip').hidden") is True


def test_everything_is_reached_and_named_for_screen_readers(browser: Browser) -> None:
    browser.press(TAB)
    assert browser.run("return document.activeElement.textContent") == "Skip to the summary"
    unnamed = browser.run(
        "return [...document.querySelectorAll('button, input, select, svg, figure')].filter(e => !("
        "e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length")
    assert unnamed == 0
    assert browser.run("return document.documentElement.lang") == "en"
    assert browser.run("return [...document.querySelectorAll('th')].every(th => th.scope)") is True


def test_dark_and_light(browser: Browser) -> None:
    def colours() -> list[str]:
        found: list[str] = browser.run(
            "const text = document.querySelector('#all-0-figure svg text');"
            "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill]")
        return found

    assert colours() == ["rgb(255, 255, 255)", "rgb(31, 35, 40)"]
    browser.click("#theme")
    assert colours() == ["rgb(13, 17, 23)", "rgb(230, 237, 243)"]
    assert browser.run("return document.getElementById('theme').textContent") == "Light"
    browser.click("#theme")
    assert colours()[0] == "rgb(255, 255, 255)"


def test_run_file_can_be_copied(browser: Browser) -> None:
    browser.click("#run-1 button.copy")
    browser.run("return new Promise(done => setTimeout(done, 100))")
    text = browser.run("return document.querySelector('#run-1 button.copy').textContent")
    assert text in ("Copied", "Selected: press Ctrl-C")
    selected = browser.run("return getSelection().toString()")
    assert "model: pythia-70m" in selected and "zero_stage: 3" in selected


def test_nothing_is_wider_than_the_window(browser: Browser) -> None:
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth") is True


def test_prints_in_light_colours_without_controls(browser: Browser, tmp_path: Path) -> None:
    browser.click("#theme")                      # dark on the screen
    browser.call("POST", f"{browser.session}/goog/cdp/execute",
                 {"cmd": "Emulation.setEmulatedMedia", "params": {"media": "print"}})
    shown = browser.run("return ['nav', '.controls', 'details'].map(s =>"
                        "getComputedStyle(document.querySelector(s)).display)")
    assert shown == ["none"] * 3
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.call("POST", f"{browser.session}/goog/cdp/execute",
                 {"cmd": "Emulation.setEmulatedMedia", "params": {"media": ""}})
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
