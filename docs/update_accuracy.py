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
* CUDA context and NCCL are outside the allocator: ranges from published figures, see [outside.md](outside.md).
* Sizes that depend on values (data-dependent shapes) do not occur in these models.
"""


OPEN_IN_MEGATRON = """
What is known of the gaps:

* Plain DDP without `expandable_segments`: tails of unsplit blocks (each up to 1 MiB) hang on the order of every
  temporary. They are steps of 0.5, 1, 2 and 4 MiB, without bias.
* Values recorded with fused cross-entropy up to 2025-10: one or two more fp32 copies of the logits in the
  compiling step; later values agree within 0.8 %.
* Resumed runs (`_2nd`): two hold 63 and 173 MiB of the checkpoint that they read.
* Context parallelism of Transformer Engine: peaks of the first step 0.9 MiB low and of later ones 5 MiB high in the
  mean (0.6 %): where blocks of the ring come to lie hangs on when NCCL lets go of them.
* 7B, interleaved: one received activation (64 MiB of 60 GB, 0.11 %) more at the peak than our account. Not traced.
"""


OPEN_IN_PUBLISHED = """
What is known of the gaps:

* M0073 and M0070 ran without `expandable_segments` on early releases of FSDP2 (2024-03, 2024-06). M0073's peak of
  active bytes was published too: 22.73 GiB, and 22.65 are estimated (-0.3 %); the rest is fragmentation.
* FSDP2 with tensor parallelism (2024-03): the two rows are far too low, and why is not known. With today's PyTorch the
  account agrees allocation by allocation (`fsdp2-tp` above). That commit gathered flattened tokens along dim 0, which
  needs no second buffer, and its loss was parallel as here: neither explains it. What DTensor of that time kept
  beside is not known here.
* SimuMax's rows are 0.5 to 4.8 % low, by 1.9 bytes per parameter of one layer in six of the eight rows. Transformer
  Engine keeps a placeholder gradient per shape of weight where gradient accumulation is fused (#1651), which would be
  2 bytes; Megatron-LM's own recorded rows with fused accumulation do not show it, so it is not in the account.
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


def frameworks() -> str:
    """Each framework's own stream, as one rank of N."""
    result = load("frameworks/campaign.json")
    rows = [f"| `{r['framework']}` | {r['device']} | {r['equal_streams']} of {r['cases']} "
            f"| {r['equal_peaks']} of {r['peaks']} | {r['worst_peak_error_bytes']} |" for r in result["rows"]]
    return "\n".join([
        "## Data-parallel frameworks\n",
        f"{result['what'][0].upper()}{result['what'][1:]}; N is 1, 2, 8, 64 or 512. "
        "`fsdp2-tp`: up to 32 data-parallel x 2, 3, 4 or 8 tensor-parallel ranks (DTensor). "
        f"PyTorch {result['torch']}, "
        f"DeepSpeed {result['deepspeed']}, {result['date']}; `{result['how']}`. DeepSpeed and DataParallel: "
        "allocations from 4 KiB on, peaks within 4 KiB; where DataParallel's peak differs by a cuBLAS workspace "
        "(32 MiB), its threads took one more. [What is modelled](frameworks.md).\n",
        "| framework | emulated GPU | streams equal | peaks equal | worst peak error, bytes |",
        "| --- | --- | --- | --- | --- |", *rows,
        f"| all | | {result['equal_streams']} of {result['cases']} | {result['equal_peaks']} of "
        f"{result['peaks']} | {result['worst_peak_error_bytes']} |"])


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


def megatron() -> str:
    """Megatron-LM's recorded bytes, by class of row."""
    result = load("megatron/accuracy.json")
    rows = [f"| {name} | {counter.replace('_', ' ')} | {f['n']} | {f['exact']} | {f['median']:.3f} "
            f"| {f['mean_absolute']:.3f} | {f['bias']:+.3f} | {f['p95']:.2f} | {f['max']:.2f} |"
            for name, figures in result["by_class"].items()
            for counter, f in figures.items() if f["n"] and counter in ("steady", "peak")]
    left: dict[str, list[str]] = {}
    for row in result["not_scored"]:
        left.setdefault(row["reason"], []).append(f"{row['test_case']} ({row['environment']})")
    reasons = [f"* {reason}: {len(names)} rows, for example {names[0]}" for reason, names in left.items()]
    return "\n".join([
        "## Megatron-LM's own recorded bytes\n",
        "Functional tests of NVIDIA/Megatron-LM record `allocated_bytes` of the last rank after a step "
        "(steady) and its peak, on A100, H100 and GB200 "
        "([data](../benchmarks/published/megatron_golden.csv)). Each row's launch arguments go through "
        "the reader, the engine and the allocator model: `python benchmarks/megatron/evaluate.py`. Errors "
        "in percent of the recorded bytes; bias is their mean, negative where we say too little. "
        "[What is modelled](megatron.md).\n",
        "| rows | bytes | n | exact | median | mean absolute | bias | p95 | max |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |", *rows, "",
        OPEN_IN_MEGATRON.strip(), "", "Not scored, because the engine refuses them or the row lacks a size:\n",
        *reasons])


def korthikanti() -> str:
    """Figure 1 of Korthikanti et al."""
    cells = load("megatron/korthikanti.json")
    rows = [f"| {c['model']} | {c['what'].replace('_', ', ', 1).replace('_', ' + ')} | {c['published_gib']} "
            f"| {c['layers_gib']} | {c['layers_error_percent']:+.3f} | {c['peak_gib']} "
            f"| {c['peak_error_percent']:+.2f} |" for c in cells]
    means = {}
    for key in ("layers_error_percent", "peak_error_percent"):
        for name, states in (("states", True), ("activations", False)):
            errors = [abs(c[key]) for c in cells if (c["what"] == "states") == states]
            means[key, name] = sum(errors) / len(errors)
    return "\n".join([
        "## Korthikanti et al. 2022, figure 1\n",
        "GiB of the first pipeline stage ([arXiv 2205.05198](https://arxiv.org/abs/2205.05198); "
        "`python benchmarks/megatron/korthikanti.py`). The figure counts the layers alone: 18 bytes for "
        "12 h^2 L parameters, and what layers keep for backward. *Layers* is our engine's figure for the same "
        "things; *peak* is all there is of them at the stage's peak, with what the figure leaves out: "
        "embedding and positions (states), masks, gradients on their way and what runs again (activations).\n",
        "| model | what | published | layers | % | peak | % |", "| --- | --- | --- | --- | --- | --- | --- |",
        *rows, "",
        f"Mean absolute error, like for like: states {means['layers_error_percent', 'states']:.3f} %, "
        f"activations {means['layers_error_percent', 'activations']:.3f} %; Calculon, on the same figures: "
        "8.49 % and 2.08 %. What remains is biases, norms and their statistics, which are there and the "
        f"figure's formulas leave out. All there is at the peak is {means['peak_error_percent', 'states']:.1f} % "
        f"and {means['peak_error_percent', 'activations']:.1f} % above the figure on average."])


def published_memory() -> str:
    """torchtitan's and SimuMax's rows."""
    result = load("memory/published.json")
    groups = [f"| {name} | {f['n']} | {f['mean_absolute']:.2f} | {f['bias']:+.2f} | {f['p95']:.2f} | {f['max']:.2f} |"
              for name, f in result["groups"].items() if f["n"]]
    rows = [f"| {r['id']} | {r['model']}, {r['configuration']} | {r['counter']} | {r['measured_bytes'] / 2**30:.2f} "
            f"| {r['predicted_bytes'] / 2**30:.2f} | {r['error_percent']:+.2f} |" for r in result["rows"]]
    left: dict[str, int] = {}
    for row in result["left_out"]:
        left[row["reason"]] = left.get(row["reason"], 0) + 1
    return "\n".join([
        "## Published peaks of torchtitan and of SimuMax's B200 runs\n",
        "Each row through `estimate --replay` ([data with sources](../benchmarks/published/memory.csv); "
        "`python benchmarks/memory/published.py`). Percent of the published bytes; bias is their mean.\n",
        "| rows | n | mean absolute | bias | p95 | max |", "| --- | --- | --- | --- | --- | --- |", *groups, "",
        "| row | configuration | counter | published GiB | estimated GiB | % |",
        "| --- | --- | --- | --- | --- | --- |", *rows, "", OPEN_IN_PUBLISHED.strip(), "",
        "Not scored:\n", *(f"* {reason}: {n} rows" for reason, n in left.items())])


def outcomes() -> str:
    """The verdict against what happened."""
    result = load("memory/outcomes.json")
    words = list(result["table"]["ran"])
    rows = [f"| {outcome} | {' | '.join(str(result['table'][outcome][word]) for word in words)} |"
            for outcome in ("ran", "oom")]
    wrong = [f"* {r['outcome']}, said to {r['verdict'] if r['verdict'][0] != 'd' else 'not fit'}: {r['id']} "
             f"({r['configuration']}), {r['used_bytes'] / 2**30:.1f} of {r['capacity_bytes'] / 2**30:.1f} GiB"
             for r in result["wrong"]]
    left = [f"* {e['outcome']}: {e['reason']}: {e['rows']} row{'s' * (e['rows'] > 1)}" for e in result["left_out"]]
    return "\n".join([
        "## Who ran and who ran out of memory\n",
        "Every published row with an outcome that can be expressed: runs out of memory from issues and papers "
        "([data](../benchmarks/published/outcomes.csv)), and the runs of the memory and step-time tables, which "
        "ran (`python benchmarks/memory/outcomes.py`). *With margin*: it fits with the highest figure of context "
        "and NCCL ([outside.md](outside.md)) and its framework is named; *fits*: with the expected one. "
        "**No run that ran out of memory is called \"fits with margin\".**\n",
        f"| happened | {' | '.join(words)} |", f"| --- |{' --- |' * len(words)}", *rows, "",
        "Verdicts that are wrong:\n", *wrong, "",
        "Of those that ran, two lie within 1.5 % of the capacity, four are rows whose micro-batch their source "
        "does not say, and one is DeepSpeed's ZeRO-3 of a model that other rows of the same paper fit only just.", "",
        "<details><summary>Rows that cannot be expressed</summary>\n", *left, "", "</details>"])


def step_time() -> str:
    return ("## Step time\n\n[accuracy_step_time.md](accuracy_step_time.md): 1,110 published steps, by source, "
            "with bias and the constant-MFU baseline. Times are the least certain numbers of an estimate, "
            "and say so.")


def page() -> str:
    """The whole page."""
    sections = [INTRODUCTION, streams(), full_size(), frameworks(), allocator(), megatron(), korthikanti(),
                published_memory(), outcomes(), step_time(), OPEN]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "accuracy.md").write_text(page(), encoding="utf-8")
