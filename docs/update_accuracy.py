"""Writes docs/accuracy.md from the results under benchmarks/: `python docs/update_accuracy.py`."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INTRODUCTION = """# How accurate it is, and how that was found out

Made by `python docs/update_accuracy.py` from the results under `benchmarks/`. Nothing here was fitted: sizes follow
from PyTorch's source or from measurements that are named in docstrings, and what does not agree is listed.

"Equal" means equal to the byte. The truth is real PyTorch with its compiled caching allocator on the
[emulated GPU](emulated_gpu.md), where no kernel runs but every allocation is PyTorch's own; eleven allocation traces
from real GPUs tie the allocator model to hardware. **No figure on this page was measured on a GPU by us.** The one
command for that is `bash benchmarks/gpu/campaign.sh`.
"""
OPEN = """## What is known not to agree, or not to be known

* cuDNN attention: what autograd keeps is compared, the kernel's workspace is not known and not included.
* `adamw-8bit`: states as bitsandbytes lays them out; its temporaries are those of our own plain implementation.
* Reserved bytes can differ on a real GPU by a segment (2 or 20 MiB): real addresses break ties in the best fit.
* Blocks that wait for other streams (`record_stream`) are given back at once on the emulated GPU; a busy GPU keeps
  them longer, so reserved is a lower bound where streams overlap.
* CUDA context and NCCL are outside the allocator: shown as `?` where no published figure exists.
* Sizes that depend on values (data-dependent shapes) do not occur in these models.
"""


def load(path: str) -> Any:
    return json.loads((ROOT / "benchmarks" / path).read_text(encoding="utf-8"))


def streams() -> str:
    """The engine's stream of a steady step against PyTorch's."""
    result = load("engine/streams.json")
    rows = [f"| {d['device']} | {d['capability']} | {d['streams_equal']} of {d['streams']} "
            f"| {d['whole_runs_equal']} of {d['whole_runs']} |" for d in result["devices"]]
    return "\n".join([
        "## The engine against PyTorch, random configurations\n", result["what"] + "\n",
        f"PyTorch {result['torch']}, {result['date']}; `{result['how']}`.\n",
        "| emulated GPU | capability | streams equal | whole runs equal |", "| --- | --- | --- | --- |",
        *rows, f"| all | | {result['streams_equal']} of {result['streams']} "
               f"| {result['whole_runs_equal']} of {result['whole_runs']} |"])


def allocator() -> str:
    """The allocator model against the compiled one."""
    result = load("allocator/fuzz.json")
    rows = [f"| `{r['settings']}` | {r['operations']:,} | {r['ooms']:,} | {r['statistics_compared']:,} "
            f"| {len(r['mismatches'])} |" for r in result["rows"]]
    return "\n".join([
        "## The allocator model against the compiled allocator\n",
        f"Random operations on one and three streams, out-of-memory errors included; PyTorch {result['torch']}; "
        f"`{result['command']}`. Beside it, every block address and segment event of eleven traces from real GPUs "
        "(50,079 allocations) is reproduced by a test.\n",
        "| settings | operations | OOMs | statistics compared | mismatches |",
        "| --- | --- | --- | --- | --- |", *rows])


def full_size() -> str:
    """Published models at their usual sizes."""
    path = ROOT / "benchmarks" / "engine" / "full_size.json"
    if not path.exists():
        return ""
    result = load("engine/full_size.json")
    rows = []
    for run in result["runs"]:
        options = ", ".join(f"{key} {value}" for key, value in run["options"].items())
        statistics = "equal" if not run["differing_statistics"] else ", ".join(run["differing_statistics"])
        reserved = "equal" if not run["differing_reserved"] else ", ".join(
            f"{key.split('.')[0]} {ours:,} for {theirs:,}"
            for key, (ours, theirs) in run["differing_reserved"].items())
        rows.append(f"| {run['model']} | {options} | {'equal' if run['stream_equal'] else 'differs'} "
                    f"| {statistics} | {reserved} |")
    return "\n".join([
        "## Published models at full size\n", f"{result['what']}; `{result['how']}`, {result['torch']}.\n",
        "| model | settings | stream | allocated, requested, active | reserved, segments |",
        "| --- | --- | --- | --- | --- |", *rows])


def step_time() -> str:
    return ("## Step time\n\n[accuracy_step_time.md](accuracy_step_time.md): 1,110 published steps, by source, "
            "with bias and the constant-MFU baseline. Times are the least certain numbers of an estimate, "
            "and say so.")


def page() -> str:
    """The whole page."""
    sections = [INTRODUCTION, streams(), full_size(), allocator(), step_time(), OPEN]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "accuracy.md").write_text(page(), encoding="utf-8")
