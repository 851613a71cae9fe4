"""Reports of real runs: every number in a chart, the page and the Markdown is `estimate --json`'s."""
from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.cli.main import status_of
from gpuledger.config import RunOptions, load_run, resolve_run
from gpuledger.errors import InputError
from gpuledger.estimate import estimate
from gpuledger.report.build import Subject, build_report
from gpuledger.report.contents import worst_stage
from gpuledger.report.records import moved_bytes, operators_of
from gpuledger.report.run_file import run_file
from gpuledger.report.step_trace import trace_step
from gpuledger.units import gib

RUNS = {"gpt2, a100": ("gpt2", ("--gpu", "a100-80gb-sxm", "--gpus", "1", "--micro-batch", "8")),
        "llama": ("llama-3.2-1b", ("--gpu", "h100-80gb-sxm", "--gpus", "8", "--zero", "3")),
        "too large": ("llama-3-8b", ("--gpu", "l4-24gb", "--gpus", "4", "--zero", "1", "--set",
                                     "loss=chunked", "--recompute", "full"))}
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
Marks = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each run's report in a folder of its own."""
    out = tmp_path_factory.mktemp("reports")
    for name, (source, options) in RUNS.items():
        assert status_of(["report", source, *options, "-o", str(out / name), "--md"]) == 0
    return out


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What `estimate --json` prints for each run."""
    found = {}
    for name, (source, options) in RUNS.items():
        with pytest.MonkeyPatch.context() as patch:
            printed: list[str] = []
            patch.setattr("typer.echo", lambda text="", err=False, into=printed: into.append(text))
            assert status_of(["estimate", source, *options, "--json"]) == 0
        found[name] = json.loads("\n".join(printed))
    return found


def marks_of(svg: Path) -> Marks:
    """label -> the data attributes of its mark."""
    root = ET.fromstring(svg.read_bytes())
    return {g.get("data-label", ""): dict(g.attrib)
            for g in root.iter() if g.get("class") == "mark"}


def texts_of(svg: Path) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ET.fromstring(svg.read_bytes()).iter()
            if element.tag.endswith("}text")]


@pytest.mark.parametrize("name", RUNS)
def test_breakdown_has_the_bytes_of_the_estimate(name: str, folder: Path, answers: dict[str, Any]) -> None:
    memory, stage = answers[name]["memory"], worst_stage(answers[name])
    marks = marks_of(folder / name / "breakdown.svg")
    label = answers[name]["run"]["name"]
    for category in CATEGORIES:
        assert int(marks[f"{label}, {category}"]["data-bytes"]) == stage[f"{category}_bytes"]
    total = marks[f"{label}, total"]
    assert int(total["data-bytes"]) == memory["device_used_bytes"]
    assert int(total["data-capacity-bytes"]) == memory["capacity_bytes"]
    texts = texts_of(folder / name / "breakdown.svg")
    assert any(text.startswith(gib(memory["device_used_bytes"])) for text in texts)
    assert any(text.endswith(gib(memory["capacity_bytes"])) for text in texts)
    assert any("over by " + gib(-memory["headroom_bytes"]) in text for text in texts) != memory["fits"]


@pytest.mark.parametrize("name", RUNS)
def test_timeline_reaches_the_peak_of_the_estimate(name: str, folder: Path, answers: dict[str, Any]) -> None:
    stage = worst_stage(answers[name])
    [svg] = (folder / name).glob("*-timeline.svg")
    marks = marks_of(svg)
    peak = marks[f"peak, {stage['peak_instant']}"]
    assert int(peak["data-bytes"]) == stage["peak_requested_bytes"]
    assert int(marks["reserved"]["data-bytes"]) == stage["peak_reserved_bytes"]
    for category in CATEGORIES:
        expected = stage[f"{category}_bytes"] - (stage["rounding_bytes"] if category == "buffers" else 0)
        assert int(marks[f"{category} at the peak"]["data-bytes"]) == expected
    slices = [m for label, m in marks.items() if ", event " in label]
    assert max(int(m["data-bytes"]) for m in slices) == stage["peak_requested_bytes"]
    for mark in slices:
        assert int(mark["data-bytes"]) == sum(int(mark[f"data-{c}-bytes"]) for c in CATEGORIES)


@pytest.mark.parametrize("name", RUNS)
def test_heat_map_cells_equal_the_estimates_of_their_runs(name: str, folder: Path,
                                                          answers: dict[str, Any]) -> None:
    [svg] = (folder / name).glob("*-feasibility.svg")
    marks = marks_of(svg)
    run = load_run(answers[name]["run"])
    own = f"micro-batch size {run.training.micro_batch_size}, sequence length, tokens {run.training.seq_len:,}"
    assert int(marks[own]["data-bytes"]) == worst_stage(answers[name])["peak_requested_bytes"]
    assert (marks[own]["data-status"] == "fits") == answers[name]["memory"]["fits"]
    for label in list(marks)[::11]:
        size, length = map(int, re.findall(r"(?:size|tokens) ([\d,]+)", label.replace(",", "")))
        step = size * run.parallel.dp                    # the global batch stays, as far as it can
        training = run.training.model_copy(update={
            "micro_batch_size": size, "seq_len": length,
            "global_batch_size": -(-run.training.global_batch_size // step) * step})
        alone = estimate(run.model_copy(update={"training": training})).memory
        assert int(marks[label]["data-bytes"]) == alone.peak_requested_bytes


@pytest.mark.parametrize("name", RUNS)
def test_other_charts_have_the_numbers_of_the_estimate(name: str, folder: Path,
                                                       answers: dict[str, Any]) -> None:
    answer = answers[name]
    [svg] = (folder / name).glob("*-conventions.svg")
    marks = marks_of(svg)
    assert {k: int(m["data-flops"]) for k, m in marks.items()} == answer["flops"]["by_convention"]
    chosen = answer["flops"]["convention"]
    assert marks[chosen]["data-text"].startswith(f"{100 * answer['time']['mfu']:.1f} %")
    marks = marks_of(folder / name / "time.svg")
    seconds = sum(float(m["data-seconds"]) for k, m in marks.items() if not k.endswith(", step"))
    assert seconds == pytest.approx(answer["time"]["step_seconds"], rel=1e-12)
    for part in ("compute", "optimizer"):
        mark = marks[f"{answer['run']['name']}, {part}"]
        assert float(mark["data-seconds"]) == answer["time"]["breakdown"][part]


class Page(HTMLParser):
    """Cells with a data-value, rows with bytes, scripts, and whatever could load something."""

    def __init__(self, text: str):
        super().__init__()
        self.values: list[int] = []
        self.rows: list[int] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.data = ""
        self.inside_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if "data-value" in given:
            self.values.append(int(given["data-value"]))
        if tag == "tr" and "data-bytes" in given:
            self.rows.append(int(given["data-bytes"]))
        if "id" in given:
            self.ids.append(given["id"])
        self.inside_data = given.get("id") == "estimates"
        for key in ("src", "href", "xlink:href", "action", "data"):
            if given.get(key) and not given[key].startswith(("#", "data:")):
                self.outside.append(f"{tag} {key}={given[key]}")

    def handle_data(self, data: str) -> None:
        if self.inside_data:
            self.data += data


@pytest.mark.parametrize("name", RUNS)
def test_page_has_the_numbers_of_the_estimate(name: str, folder: Path, answers: dict[str, Any]) -> None:
    text = (folder / name / "index.html").read_text()
    page, answer = Page(text), answers[name]
    stage, memory = worst_stage(answer), answer["memory"]
    summary = [answer["parameters"]["total"], *(stage[f"{c}_bytes"] for c in CATEGORIES),
               stage["peak_allocated_bytes"], stage["peak_reserved_bytes"], memory["capacity_bytes"],
               memory["headroom_bytes"], answer["flops"]["model_flops_per_step"]]
    assert page.values[:len(summary)] == summary
    assert sorted(page.rows) == sorted(entry["bytes"] for entry in answer["entries"])
    assert sum(page.rows) == stage["peak_allocated_bytes"]
    [embedded] = json.loads(page.data)
    answer = answer | {"advice": []}                   # the page leaves advice to the command
    assert embedded == answer
    assert json.loads((folder / name / "estimates.json").read_text()) == [answer]


@pytest.mark.parametrize("name", RUNS)
def test_page_is_one_file_with_ids_of_its_own(name: str, folder: Path) -> None:
    text = (folder / name / "index.html").read_text()
    page = Page(text)
    assert page.outside == [] and "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used <= set(page.ids)


@pytest.mark.parametrize("name", RUNS)
def test_markdown_names_files_that_exist_and_a_run_that_resolves(name: str, folder: Path,
                                                                 answers: dict[str, Any]) -> None:
    text = (folder / name / "report.md").read_text()
    images = re.findall(r"\]\(([^)]+\.svg)\)", text)
    assert len(images) >= 6 and all((folder / name / image).is_file() for image in images)
    assert gib(worst_stage(answers[name])["peak_allocated_bytes"]) in text
    [block] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert load_run(yaml.safe_load(block)) == load_run(answers[name]["run"])


def test_reports_are_equal_when_made_twice(folder: Path, tmp_path: Path) -> None:
    source, options = RUNS["gpt2, a100"]
    assert status_of(["report", source, *options, "-o", str(tmp_path), "--md"]) == 0
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) > 20
    for name in files:
        assert (tmp_path / name).read_bytes() == (folder / "gpt2, a100" / name).read_bytes(), name


def test_processes_draw_what_one_process_draws() -> None:
    subjects = [Subject(f"gpt2, micro-batch {micro}", resolve_run("gpt2", RunOptions(
        gpu="a100-80gb-sxm", gpus=1, micro_batch=micro))[0]) for micro in (1, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 2)
        by_two = build_report(subjects)
        patch.setattr("os.cpu_count", lambda: 1)
        assert by_two == build_report(subjects)


def test_an_error_in_a_process_is_told_as_it_is() -> None:
    run, _ = resolve_run("gpt2", RunOptions(gpu="a100-80gb-sxm", gpus=1))
    gpu = run.cluster.gpu.model_copy(update={"num_sms": None})
    broken = run.model_copy(update={"cluster": run.cluster.model_copy(update={"gpu": gpu})})
    with pytest.raises(InputError, match="num_sms is not known"):
        build_report([Subject("whole", run), Subject("broken", broken)])


def test_report_of_five_runs_stays_within_its_budget() -> None:
    """Eight seconds on two cores are sixteen of one; CPU seconds grow by half on a busy machine."""
    subjects = [Subject(f"zero {zero}", resolve_run("llama-3-8b", RunOptions(
        gpu="h100-80gb-sxm", gpus=8, zero=zero, recompute="full"))[0]) for zero in range(4)]
    subjects.append(Subject("gpt2", resolve_run("gpt2", RunOptions(gpu="a100-80gb-sxm", gpus=1))[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        start = time.process_time()
        report = build_report(subjects)
        seconds = time.process_time() - start
    assert len(report.runs) == 5
    assert seconds < 1.5 * 2 * 8


# ---- the records behind the charts
@pytest.mark.parametrize("settings", [
    {}, {"zero": 1, "recompute": "full"}, {"zero": 2, "precision": "bf16-master"},
    {"zero": 3, "set": ("global_batch_size=64", "attention=math")}, {"set": ("set_to_none=false",)}])
def test_traced_step_peaks_where_the_estimate_does(settings: dict[str, Any]) -> None:
    run, _ = resolve_run("pythia-160m", RunOptions(gpu="h100-80gb-sxm", gpus=4, **settings))
    trace, memory = trace_step(run), estimate(run).memory
    at_peak = {name: int(levels[trace.peak]) for name, levels in trace.category_bytes.items()}
    assert sum(at_peak.values()) == memory.peak_requested_bytes
    assert at_peak == memory.category_bytes | {
        "buffers": memory.category_bytes["buffers"] - memory.rounding_bytes}
    reserved = sum(segment.size for segment in trace.segments)
    assert reserved == trace.reserved_bytes[trace.peak]
    used = sum(b.size for s in trace.segments for b in s.blocks if b.state != "inactive")
    assert used >= memory.peak_requested_bytes


def test_bytes_of_a_linear_layer_by_hand() -> None:
    """gpt2's head in bf16: x (1, 1024, 768), W (50257, 768), y (1, 1024, 50257)."""
    from gpuledger.estimate import device_of
    from gpuledger.program.model import build

    run, _ = resolve_run("gpt2", RunOptions(gpu="h100-80gb-sxm", gpus=1, precision="bf16"))
    program = build(run.model, run.training, device_of(run), num_layers=1)
    head = next(op for op in program.root.ops() if op.name == "head" and op.flops)
    x, weight, y = 1024 * 768, 50257 * 768, 1024 * 50257
    # forward reads x and W, writes y; backward reads dy, x and W, writes dx and dW
    assert moved_bytes(head) == 2 * (x + weight + y + y + x + weight + x + weight)
    assert head.flops == 2 * 1024 * 768 * 50257


def test_operators_of_all_layers_have_the_flops_that_torch_counts() -> None:
    from gpuledger.compute.counted_flops import counted_flops
    from gpuledger.estimate import device_of

    run, _ = resolve_run("gpt2", RunOptions(gpu="h100-80gb-sxm", gpus=1))
    total = sum(operator.flops for operator in operators_of(run))
    assert total == counted_flops(run.model, run.training, 1, device_of(run))


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2", "gemma-2-2b", "bloom-560m"])
def test_run_file_resolves_to_the_run(name: str) -> None:
    options = RunOptions(gpu="h100-80gb-sxm", gpus=8, zero=3, set=("loss=chunked", "loss_chunks=4"))
    run, _ = resolve_run(name, options)
    text = run_file(run)
    assert load_run(yaml.safe_load(text)) == run
    assert yaml.safe_load(text)["model"] == name and len(text) < 600
    changed, _ = resolve_run(name, RunOptions(gpu="h100-80gb-sxm", gpus=8, set=("num_layers=3",)))
    assert load_run(yaml.safe_load(run_file(changed))) == changed
