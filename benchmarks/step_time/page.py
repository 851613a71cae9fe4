"""The text of docs/accuracy_step_time.md."""

from __future__ import annotations

from typing import Any

HEADER = """\
# How far step times are off

Written by `python benchmarks/step_time/evaluate.py` from `benchmarks/published/step_time.csv`
and `step_time_vtrain.csv`; `benchmarks/step_time/accuracy.json` holds the same numbers. Errors
are percent of the measured seconds; a negative bias reads **too fast**. Nothing was fitted to a
step time except where a table says so, and what a fit used is not scored.

Host time to enqueue a kernel: {host:g} us everywhere, measured on none of these machines.
Software profiles follow from framework and date, the attention kernel's generation too.
`baseline`: one constant MFU, the median of the other sources' on such GPUs in such a datatype.
`rank`: mean rank correlation over the layouts of one model (five or more).
`first`: mean absolute error of this model's first version, which every source is compared with.
"""
ANCHORS = """\
## Beside what others claim for themselves
| who | their claim | ours | note |
| --- | --- | --- | --- |
| vTrain, 8 A100 | 8.37 % on 1,440 | {host[mean]:.1f} % ({host[min]:.1f} to {host[max]:.1f}) | a |
| vTrain, 64 to 512 A100 | 14.73 % on 109 | {multi[mean_absolute]:.1f} % | b |
| Calculon | 3.65 %, max 8.87 % | {table5[mean_absolute]:.2f} %, max {table5[max]:.2f} % | c |
| SimuMax, B200 | 5.62 %, max 13.54 % | {b200[mean_absolute]:.1f} %, max {b200[max]:.1f} % | d |

a: held out, with that machine's host time; {single[mean_absolute]:.1f} % without it. Their
published file has 540 rows. They profiled every operator on that machine.
b: nothing calibrated; their published file has 58 rows.
c: the same eight rows, Korthikanti table 5.
d: not the same rows: theirs are 43 runs of their own with operator efficiencies measured there,
42 of them predicted too fast; ours are 4 rows of others with published curves.
"""
HELD_OUT = """\
## With the host time of that machine
One number, the host's time per kernel, is taken from a random half of vTrain's single-node shapes
(median {microseconds:.1f} us) and scored on the other half, {halves} times: mean absolute error
{host[mean]:.1f} %, between {host[min]:.1f} and {host[max]:.1f} %. The layout chosen there costs
{cost:.1f} % over the best measured one on average, between {least:.1f} and {most:.1f} % by half
(p95 {p95:.0f} %, worst {worst:.0f} %; the median layout {median:.0f} %): **the aim of 3 % is missed here**.

Why: the errors belong to layer shapes that win. With that host time, layers of 2048 are {fast:+.0f} % off
at tp 2 and micro-batch 2, and {slow:+.0f} % at tp 4 and micro-batch 2. Errors of
{sizes} % drawn at random would cost {random} %. No model that
grows with the work can have such shapes right: in {pairs[shorter]} of {pairs[pairs]} pairs of rows that
differ in the size of the micro-batch alone (softmax in the same kernel), twice the work was measured to
take less time, by up to {pairs[most]:.0f} %.
"""
FIRST_MODEL = {
    "vTrain single node": 24.76,
    "vTrain multi node": 12.77,
    "llm-foundry H100-SXM >=128 GPUs": 22.98,
    "llm-foundry H100-SXM <128 GPUs": 19.99,
    "llm-foundry A100-SXM <128 GPUs": 13.72,
    "llm-foundry A100-SXM >=128 GPUs": 13.77,
    "Megatron-Bridge GB200 dense": 11.72,
    "Megatron-Bridge H100-SXM dense": 4.99,
    "Megatron-Bridge B200 dense": 14.75,
    "NeMo H100 FP8": 13.64,
    "Megatron-Core table H100 (mb assumed)": 17.00,
    "Narayanan Table 1": 4.68,
    "Korthikanti Table 5": 2.48,
    "Narayanan Table 2 ZeRO-3": 59.49,
    "Narayanan Table 2 PTD-P": 5.13,
    "torchtitan bf16 H100-SXM": 24.60,
    "torchtitan bf16 A100-SXM": 16.42,
    "BLOOM": 14.28,
    "InternEvo A100 7B": 16.02,
    "fms-fsdp A100-SXM": 7.04,
    "fms-fsdp H100-SXM": 23.48,
    "MaxText H100": 26.72,
    "nanotron H100": 23.87,
    "Zero Bubble 1F1B": 4.84,
    "FlashAttention GPT, 8 A100": 9.00,
}
"""Mean absolute errors of the first version of this model on the same rows."""
BEHIND = """
Behind the first version: {sources}.
Why: it gave H100 rings an A100's share of the link (0.70, where 8 H100s were measured to reach 0.75 at
the sizes of a training step), and let a tenth of every overlapped reduction be seen, where this model
takes the first layer's and the embedding's part of it.
"""
CHOSEN = """\
## Choosing by prediction
Percent of the best measured seconds that taking the layout with the smallest prediction costs, in
groups of rows with equal work on equal GPUs in two or more layouts (axes, micro-batch, schedule, ZeRO
and its group, recompute; repeated rows as their mean), nothing calibrated but in the last line. The
last columns: the mean where ties are broken by a rule.
"""
NO_RULE = """
**No rule for ties is in the planner.** The smallest micro-batch was found on vTrain's rows of several
nodes, where it avoids one row (micro-batch 64, twice as slow as 32, unexplained; predicted 0.6 % faster).
Tested on the sources that it was not seen on (InternEvo, Zero Bubble, Korthikanti, torchtitan: 25 groups) it
changes nothing, and with a band of 3 % it makes BLOOM worse. The planner says how many layouts are
within 3 % of the best one and shows the front of memory and time instead.
"""
NOTES = """\
## Where it is wrong
- **H100 in 16 bit reads 19 to 27 % too fast.** The best matrix product that was measured on one
  (794.5 TFLOP/s) is not sustained under the power limit, and no source used here says what is.
  `gpuledger calibrate` measures it; until then the bias is printed with the seconds and no
  constant hides it.
- **H100 rings get 0.75 of the link**, measured on 8 H100s at the sizes of a training step, where an
  A100 gets the 0.70 that was measured on A100s. With 0.70 on H100s too, these would be off by: {links}. The lower
  value would hide a part of the bias above.
- **Where H100 runs resemble each other, a constant MFU does better**: it is taken from H100
  runs and carries their power limit with it. It says nothing about a layout, a length or a
  micro-batch.
- **A100: one card, two worlds.** What matches Megatron is 10 to 16 % too fast for FSDP, BLOOM
  and InternEvo.
- **vTrain's single node rows read as composed, not timed**: a data-parallel change adds the
  same 1.6680 ms to ten different steps, and time is affine in the micro-batches to 1e-3 ms in
  108 of 108 cases. Below about 8 % it rewards memorising.
- What was not in the first version: ZeRO 1 and 2 gather the updated weights after the optimizer, over a
  group where the framework divides so (InternEvo 16.0 to 12.1 %); DeepSpeed's pipeline in bf16 adds and
  all-reduces fp32 gradients (BLOOM 14.1 to 8.8 %); so does nanotron, which gathers weights after the step
  (24.0 to 20.7 %); nothing hides ZeRO-3's first gather and last scatter.
  Megatron's softmax kernel needs a multiple of 4 heads on a rank (12 rows of vTrain's node).
  Each is read from the framework's code. BLOOM's was looked for because its errors grew with the
  data-parallel ranks, so there the structure is in-sample.
- Tensor-parallel messages hidden under products (tp_comm_overlap of the fp8 recipes) are not modelled.
- vTrain, several nodes: tp 16 across nodes, 39B at tp 2, and 3.6B at micro-batches of 2 and 64
  are unexplained.
- Congestion and stragglers are not modelled (ZeRO-3 of 2021, nanotron at one or two
  micro-batches, InternEvo beyond 256 GPUs). Nor are data loading, checkpoints and evaluation.
- Three mechanisms were found by reading residuals of Zero Bubble (stages one layer short),
  Korthikanti (sends of 1/tp) and torchtitan (recompute per operator). Each is documented by its
  framework and no number in it was fitted, but on these sources the structure is in-sample.
- Repeated measurements of one configuration differ from their median by 1 to 3 %, 6 to 12 % at
  worst.
- Not scored: PCIe, mixture of experts, TPU, AMD, context parallelism beyond 2, DualPipe, ZB-V,
  GPipe.
"""


def page(result: dict[str, Any], no_range: dict[str, str]) -> str:
    """The whole page."""
    parts = [
        HEADER.format(host=1e6 * result["host_seconds"]),
        by_source(result),
        anchors(result),
        held_out(result),
        chosen(result),
        ranges(result, no_range),
        notes(result),
    ]
    return "\n".join(parts)


def by_source(result: dict[str, Any]) -> str:
    lines = [
        "## By source, nothing calibrated",
        "| source | n | mean absolute | bias | p95 | max | rank | baseline | first |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["groups"]:
        rank = "" if row["rank"] is None else f"{row['rank']:.2f}"
        first = FIRST_MODEL.get(row["group"])
        shown = "" if first is None else f"{first:.1f}"
        lines.append(
            f"| {row['group']} | {row['n']} | {row['mean_absolute']:.1f} | {row['bias']:+.1f} | "
            f"{row['p95']:.1f} | {row['max']:.1f} | {rank} | "
            f"{row['baseline']['mean_absolute']:.1f} | {shown} |"
        )
    whole = result["all_others"]
    lines.append(
        f"| all but vTrain, assumed and zero-bubble rows | {whole['n']} | "
        f"{whole['mean_absolute']:.1f} | {whole['bias']:+.1f} | {whole['p95']:.1f} | "
        f"{whole['max']:.1f} | | | 15.5 |"
    )
    return "\n".join(lines) + "\n" + behind(result)


def behind(result: dict[str, Any]) -> str:
    """The sources on which the first version did better."""
    worse = [
        f"{row['group']} ({row['mean_absolute']:.2f} against {FIRST_MODEL[row['group']]:.2f})"
        for row in result["groups"]
        if row["mean_absolute"] > FIRST_MODEL.get(row["group"], 100.0)
    ]
    return BEHIND.format(sources=", ".join(worse))


def anchors(result: dict[str, Any]) -> str:
    groups = {row["group"]: row for row in result["groups"]}
    table5 = groups["Korthikanti Table 5"]
    return ANCHORS.format(
        host=result["host_time"],
        single=groups["vTrain single node"],
        multi=groups["vTrain multi node"],
        table5=table5,
        b200=groups["Megatron-Bridge B200 dense"],
    )


def held_out(result: dict[str, Any]) -> str:
    host = result["host_time"]
    found = [half["choice"] for half in host["halves"] if half["choice"]]
    costs = [one["mean"] for one in found]

    def mean(name: str) -> float:
        return float(sum(one[name] for one in found) / len(found))

    return HELD_OUT.format(
        host=host,
        halves=len(host["halves"]),
        microseconds=1e6 * host["host_seconds"],
        cost=sum(costs) / len(costs),
        least=min(costs),
        most=max(costs),
        p95=mean("p95"),
        worst=mean("max"),
        median=mean("median_layout"),
        fast=host["shape_errors"]["2048, tp 2, micro-batch 2"],
        slow=host["shape_errors"]["2048, tp 4, micro-batch 2"],
        pairs=host["doublings"],
        sizes=", ".join(host["random_errors"]),
        random=", ".join(f"{value:.1f}" for value in host["random_errors"].values()),
    )


def chosen(result: dict[str, Any]) -> str:
    rules = list(next(iter(result["choices"].values()))["rules"])
    halves = [half["choice"] for half in result["host_time"]["halves"] if half["choice"]]
    lines = [
        CHOSEN,
        f"| source | groups | rows | mean | p95 | worst | median layout | {' | '.join(rules)} |",
        "| --- " * (7 + len(rules)) + "|",
    ]
    for name, row in result["choices"].items():
        lines.append(chosen_line(name, row, rules))
    mean = {
        key: sum(half[key] for half in halves) / len(halves)
        for key in ("groups", "rows", "mean", "p95", "max", "median_layout")
    }
    by_rule = {rule: sum(half["rules"][rule] for half in halves) / len(halves) for rule in rules}
    lines.append(chosen_line("vTrain single node, held out", {**mean, "rules": by_rule}, rules))
    return "\n".join(lines) + "\n" + NO_RULE


def chosen_line(name: str, row: dict[str, Any], rules: list[str]) -> str:
    by_rule = " | ".join(f"{row['rules'][rule]:.1f}" for rule in rules)
    return (
        f"| {name} | {row['groups']:.0f} | {row['rows']:.0f} | {row['mean']:.1f} | "
        f"{row['p95']:.1f} | {row['max']:.1f} | {row['median_layout']:.1f} | {by_rule} |"
    )


def ranges(result: dict[str, Any], no_range: dict[str, str]) -> str:
    lines = [
        "## The range that estimates print",
        "5th to 95th percentile of the errors of a family. Left out: "
        + "; ".join(f"{name} ({why})" for name, why in no_range.items())
        + ".",
        "",
        "| family | n | bias | from | to |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family, row in result["families"].items():
        lines.append(
            f"| {family} | {row['n']} | {100 * row['bias']:+.0f} % | {100 * row['low']:+.0f} % | "
            f"{100 * row['high']:+.0f} % |"
        )
    return "\n".join(lines) + "\n"


def notes(result: dict[str, Any]) -> str:
    found = {row["group"]: row["mean_absolute"] for row in result["groups"]}
    links = ", ".join(
        f"{group} {value:.1f} instead of {found[group]:.1f} %"
        for group, value in result["ampere_link_on_hopper"].items()
    )
    return NOTES.format(links=links)
