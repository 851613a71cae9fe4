"""`plan -o`: the page beside the request. Its numbers are those of `plan --json`; it is one file; it works."""
from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, missing
from gpuledger.cli.main import status_of
from gpuledger.units import gib

COMMON = ["--tokens", "1B", "--price", "2", "--request", "partition=gpu", "--top", "4"]
COMMANDS = {
    "fits": ["pythia-410m", "--gpu", "a100-80gb-sxm", "--gpus", "8", "--global-batch", "64", *COMMON,
             "--set", "name=a <b>\"bold\"</b> name & more"],
    "several counts": ["pythia-160m", "--gpu", "rtx-4090", "--gpus", "1..4*2", "--by", "gpu-hours",
                       "--global-batch", "32", *COMMON],
    "too large": ["llama-2-7b", "--gpu", "l4-24gb", "--gpus", "1", "--global-batch", "4", *COMMON],
}
browsed = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each plan's folder, with what `--json` printed."""
    out = tmp_path_factory.mktemp("plans")
    for name, arguments in COMMANDS.items():
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert status_of(["plan", *arguments, "-o", str(out / name), "--json"]) == 0
        (out / f"{name}.json").write_text(printed.getvalue())
    return out


def answer_of(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


class Page(HTMLParser):
    """Tables by the id of what holds them: rows of values and texts; ids; texts of files; JSON."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[list[Any]]] = {}
        self.ids: list[str] = []
        self.files: dict[str, str] = {}
        self.outside: list[str] = []
        self.data = self.inside = self.table = ""
        self.cell: list[Any] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        self.inside = given.get("id", "") if tag in ("pre", "script") else ""
        if tag == "div" and "sortable" in given.get("class", ""):
            self.table = given["id"]
            self.tables[self.table] = []
        if tag == "tr" and self.table:
            self.tables[self.table].append([])
        if tag in ("td", "th") and self.table:
            value = given.get("data-value")
            self.cell = [None if value is None else json.loads(value), ""]
            self.tables[self.table][-1].append(self.cell)
        self.outside += [given[key] for key in ("src", "href", "xlink:href", "action", "data")
                         if given.get(key) and not given[key].startswith(("#", "data:"))]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""
        if tag in ("td", "th"):
            self.cell = None
        if tag == "table":
            self.table = ""

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell[1] += data
        if self.inside == "estimates":
            self.data += data
        elif self.inside:
            self.files[self.inside] = self.files.get(self.inside, "") + data


def page_of(folder: Path, name: str) -> Page:
    return Page((folder / name / "plan.html").read_text())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_is_that_of_the_json(name: str, folder: Path) -> None:
    page, answer = page_of(folder, name), answer_of(folder, name)
    assert json.loads(page.data) == answer
    head, *rows = page.tables["plans-table"]
    assert [text for _, text in head][:6] == ["no.", "GPUs", "framework", "layout", "step s", "from"]
    plans = answer["plans"] or answer["closest"]
    assert len(rows) == len(plans) > 0
    for rank, (row, plan) in enumerate(zip(rows, plans, strict=True), 1):
        time, memory = plan["time"], plan["memory"]
        assert [value for value, _ in row] == [
            rank, plan["run"]["cluster"]["gpus"], None, None, time["step_seconds"], time["low_seconds"],
            time["high_seconds"], time["tokens_per_second_per_gpu"], time["mfu"],
            memory["peak_allocated_bytes"], memory["peak_reserved_bytes"], memory["headroom_bytes"],
            time["days"], time["gpu_hours"]]
        texts = [text for _, text in row]
        assert texts[2] == (plan["layout"]["framework"] or "none")
        assert texts[4] == f"{time['step_seconds']:.4g}"
        assert f"{texts[9]} GiB" == gib(memory["peak_allocated_bytes"])
        assert f"micro-batch {plan['layout']['micro_batch_size']}" in texts[3]


def test_the_front_is_that_of_the_json(folder: Path) -> None:
    for name in COMMANDS:
        page, answer = page_of(folder, name), answer_of(folder, name)
        rows = page.tables.get("front-table", [[]])[1:]
        if not answer["plans"]:
            assert rows == []
            continue
        assert [[row[2][0], row[3][0]] for row in rows] == [
            [layout["step_seconds"], layout["neutral_allocated_bytes"]] for layout in answer["pareto"]]


def test_the_files_of_the_request_are_there_to_copy(folder: Path) -> None:
    page = page_of(folder, "fits")
    written = {path.name: path.read_text() for path in (folder / "fits").iterdir()
               if path.name not in ("plan.html", "pareto.svg", "pareto.png")}
    assert {"run.yaml", "launch.sh", "request.md", "job.sbatch", "job.yaml"} <= set(written)
    assert sorted(page.files.values()) == sorted(written.values())
    text = (folder / "fits" / "plan.html").read_text()
    assert all(f"<h3>{name}</h3>" in text for name in written)
    copies = re.findall(r'data-copies="([^"]+)"', text)
    assert set(copies) == set(page.files)


def test_where_nothing_fits_the_page_says_by_how_much_and_what_helps(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "too large").iterdir()) == [
        "pareto.png", "pareto.svg", "plan.html"]
    text = (folder / "too large" / "plan.html").read_text()
    assert "nothing fits: the layout that needs least is" in text and "Closest layouts" in text
    assert "The request" not in text
    assert re.search(r"with \d+ GPUs \d+ layouts? fit", text)
    assert "numbered: closest layouts" in text and 'data-label="1: ' in text


@pytest.mark.parametrize("name", COMMANDS)
def test_page_is_one_file_with_ids_of_its_own(name: str, folder: Path) -> None:
    text, page = (folder / name / "plan.html").read_text(), page_of(folder, name)
    assert page.outside == [] and "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) <= set(page.ids)
    assert "<b>" not in text


def test_the_chart_beside_the_page_has_the_layouts_of_the_json(folder: Path) -> None:
    answer = answer_of(folder, "fits")
    svg = (folder / "fits" / "pareto.svg").read_text()
    drawn = set(zip(map(float, re.findall(r'data-seconds="([^"]+)"', svg)),
                    map(int, re.findall(r'data-bytes="(\d+)"', svg)), strict=True))
    for layout in (*answer["pareto"], *(plan["layout"] for plan in answer["plans"])):
        assert (layout["step_seconds"], layout["neutral_allocated_bytes"]) in drawn
    assert 'data-label="1: ' in svg
    assert f"best of {answer['space']['fitting']:,} that fit" in svg
    assert (folder / "fits" / "pareto.png").read_bytes().startswith(b"\x89PNG")


# ---- in a browser
@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, folder: Path) -> Iterator[Browser]:
    """The page as it was opened; afterwards, it has not complained."""
    window.open(folder / "fits" / "plan.html")
    yield window
    assert window.console() == []


@browsed
def test_plans_are_sorted_by_every_column(browser: Browser, folder: Path) -> None:
    answer = answer_of(folder, "fits")

    def column(number: int) -> list[str]:
        found: list[str] = browser.run(
            "return [...document.querySelectorAll('#plans-table tbody tr')]"
            ".map(row => row.cells[arguments[0]].textContent)", number)
        return found

    assert column(0) == [str(i) for i in range(1, len(answer["plans"]) + 1)]
    browser.click("#plans-table thead th:nth-child(12) button")               # left GiB
    left = [plan["memory"]["headroom_bytes"] for plan in answer["plans"]]
    order = sorted(range(len(left)), key=lambda i: -left[i])
    assert column(0) == [str(i + 1) for i in order]
    browser.click("#plans-table thead th:nth-child(12) button")
    assert column(0) == [str(i + 1) for i in reversed(order)]
    browser.click("#plans-table thead th:nth-child(3) button")
    assert column(2) == sorted(column(2))


@browsed
def test_hovering_says_a_layouts_time_and_bytes(browser: Browser, folder: Path) -> None:
    best = answer_of(folder, "fits")["plans"][0]["layout"]
    browser.hover("#plan-figure .mark[data-label^='1: ']")
    tip = browser.run("const t = document.getElementById('tip'); return [t.hidden, t.textContent]")
    assert tip[0] is False and tip[1].startswith("1: ")
    assert tip[1].endswith(f"s a step, {gib(best['neutral_allocated_bytes'])}, fits")


@browsed
def test_page_loads_alone_and_is_no_wider_than_the_window(browser: Browser) -> None:
    assert browser.run("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth") is True
    assert browser.run("return document.querySelectorAll('b').length") == 0
    browser.click("#request button.copy")
    browser.run("return new Promise(done => setTimeout(done, 100))")
    assert browser.run("return document.querySelector('#request button.copy').textContent") in (
        "Copied", "Selected: press Ctrl-C")
