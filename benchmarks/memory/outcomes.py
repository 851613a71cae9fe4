"""Who ran and who ran out of memory, against the verdict: with margin, fits, too close, does not fit.

`python benchmarks/memory/outcomes.py` writes outcomes.json beside it. Runs that ran out of memory are
in ../published/outcomes.csv; runs that ran are the rows of ../published/memory.csv and step_time.csv.
"""
from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import published

from gpuledger.config import Run, RunOptions, load_run, resolve_run
from gpuledger.config.load import load_gpu
from gpuledger.errors import GpuledgerError
from gpuledger.estimate import estimate
from gpuledger.memory.allocator import parse_alloc_conf

HERE = Path(__file__).parent
OUT_OF_MEMORY = HERE.parent / "published" / "outcomes.csv"
STEP_TIMES = HERE.parent / "published" / "step_time.csv"
RESULT = HERE / "outcomes.json"
VERDICTS = ("fits with margin", "fits", "too close to call", "does not fit")
RECOMPUTE = {"none": "none", "full": "full", "selective": "selective", "operators": "per_op"}
SCHEDULES = ("interleaved",)            # of step_time.csv: 1F1B where vpp is 1
Case = tuple[str, str, str, Run | str, str]     # outcome, id, configuration, run or reason, allocator


def cases() -> Iterator[Case]:
    """Every row with an outcome."""
    with OUT_OF_MEMORY.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield "oom", row["id"], row["configuration"], attempt(row, of_outcome), ""
    for row in published.rows():
        run = row["reason"] or attempt(row, published.run_of)
        yield "ran", row["id"], row["configuration"], run, row["alloc_conf"]
    with STEP_TIMES.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield "ran", row["id"], f"{row['group']}: {row['model']}", attempt(row, of_step_time), ""


def attempt(row: dict[str, str], make: Any) -> Run | str:
    """The run, or why it cannot be expressed."""
    if row.get("reason"):
        return row["reason"]
    try:
        run: Run = make(row)
        return run
    except GpuledgerError as error:
        return error.problems[0].message


def of_outcome(row: dict[str, str]) -> Run:
    """A preset with settings, or a model of its own. Raises GpuledgerError."""
    settings = tuple(json.loads(row["settings"]))
    options = RunOptions(gpu=row["gpu"], gpus=int(row["gpus"]), set=settings)
    if not row["model"]:
        return resolve_run(row["preset"], options)[0]
    model = json.loads(row["model"])
    ours = tuple(f"model.{key}={value}" for key, value in model.items() if key not in ("qkv_projection",))
    base = RunOptions(gpu=row["gpu"], gpus=int(row["gpus"]), set=(
        *ours, f"model.qkv_projection={model['qkv_projection']}", *settings))
    return resolve_run("llama-2-7b" if model["norm"] == "rmsnorm" else "gpt3-6.7b", base)[0]


def of_step_time(row: dict[str, str]) -> Run:
    """A published step as a run: ZeRO-3 is FSDP2's account, the rest Megatron's states and tensor
    parallelism. Raises GpuledgerError for what is not modelled."""
    axes = {name: int(row[name]) for name in ("tp", "pp", "vpp", "cp")}
    gpus, stage = int(row["gpus"]), int(row["zero_stage"])
    if row["schedule"] not in SCHEDULES or row["precision"] == "fp8" or row["profile"] == "torch-compiled":
        raise GpuledgerError("fp8, torch.compile or a schedule without an account", "")
    if row["shard_group"]:
        raise GpuledgerError("sharded over a part of the ranks", "")
    dp = gpus // (axes["tp"] * axes["pp"] * axes["cp"])
    gated, torch = row["gated"] == "1", stage == 3 and axes["tp"] == axes["pp"] == 1
    unfused = row["attention_kernel"] == "unfused"
    model = {
        **{name: int(row[name]) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim",
                                             "ffn_hidden_size", "vocab_size")},
        "max_position_embeddings": int(row["seq_len"]), "norm": "rmsnorm" if gated else "layernorm",
        "activation": "swiglu" if gated else "gelu_tanh", "positions": "rotary" if gated else "learned",
        "qkv_projection": "separate" if gated else "fused", "bias": not gated, "tie_embeddings": not gated,
        "dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
    training = {
        "seq_len": int(row["seq_len"]), "micro_batch_size": int(row["micro_batch_size"]),
        "global_batch_size": int(row["global_batch_size"]), "optimizer": "adamw", "loss": "cross_entropy",
        "precision": "bf16-mixed" if torch else "bf16-master",
        "attention": "eager" if unfused else "flash", "recompute": RECOMPUTE[row["recompute"]]}
    parallel: dict[str, Any] = {**axes, "dp": dp, "zero_stage": stage, "model_parallel": "megatron",
                                "sequence_parallel": row["sequence_parallel"] == "1"}
    if torch:
        parallel |= {"framework": "fsdp2", "model_parallel": None,
                     "fsdp2": {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}}
    cluster = {"gpu": row["gpu"], "gpus": gpus, "gpus_per_node": min(gpus, int(row["gpus_per_node"]))}
    return load_run({"name": row["id"], "model": model, "training": training, "parallel": parallel,
                     "cluster": cluster})


def verdict(run: Run, alloc_conf: str) -> tuple[str, int, int]:
    """(one of VERDICTS, expected bytes, capacity). Raises GpuledgerError.

    The allocator is replayed where its settings are known, and where the answer could turn.
    """
    memory = estimate(run).memory
    near = 0.8 * memory.capacity_bytes < memory.device_used_bytes < 1.05 * memory.capacity_bytes
    if alloc_conf or near:
        memory = estimate(run, replay=True, settings=parse_alloc_conf(alloc_conf)).memory
    word = (VERDICTS[0] if memory.fits_with_margin else VERDICTS[1] if memory.fits
            else VERDICTS[2] if memory.may_fit else VERDICTS[3])
    return word, memory.device_used_bytes, memory.capacity_bytes


def judged() -> tuple[list[dict[str, Any]], Counter[tuple[str, str]]]:
    """(rows with a verdict, reasons of the others counted with their outcome)."""
    done, left = [], Counter[tuple[str, str]]()
    for outcome, name, configuration, run, alloc_conf in cases():
        try:
            if isinstance(run, str):
                raise GpuledgerError(run, "")
            word, used, capacity = verdict(run, alloc_conf)
        except GpuledgerError as error:
            left[outcome, error.problems[0].message] += 1
            continue
        done.append({"id": name, "configuration": configuration, "outcome": outcome, "verdict": word,
                     "used_bytes": used, "capacity_bytes": capacity})
    return done, left


def main() -> None:
    load_gpu("h100-80gb-sxm")
    done, left = judged()
    counts = Counter((row["outcome"], row["verdict"]) for row in done)
    table = {outcome: {word: counts[outcome, word] for word in VERDICTS} for outcome in ("ran", "oom")}
    wrong = [row for row in done if (row["outcome"], row["verdict"]) in (("ran", VERDICTS[3]), ("oom", VERDICTS[0]),
                                                                         ("oom", VERDICTS[1]))]
    RESULT.write_text(json.dumps({
        "table": table, "out_of_memory": [row for row in done if row["outcome"] == "oom"], "wrong": wrong,
        "left_out": [{"outcome": o, "reason": r, "rows": n} for (o, r), n in left.most_common()]}, indent=1) + "\n",
        encoding="utf-8")
    print(json.dumps(table, indent=1))
    for row in wrong:
        print(row["outcome"], row["verdict"], row["id"], row["configuration"],
              f"{row['used_bytes'] / 2**30:.1f} of {row['capacity_bytes'] / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
