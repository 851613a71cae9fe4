"""Puts real files into docs/requests.md: `python docs/update_requests.py`.

A block that follows <!-- file:EXAMPLE/NAME --> holds what `request_files` writes for that example, so that
the page cannot show a file that the product does not write.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src")]

from gpuledger.compute.step_time.of_run import step_time  # noqa: E402
from gpuledger.config import load_run  # noqa: E402
from gpuledger.estimate import estimate  # noqa: E402
from gpuledger.planner.requests import RequestOptions, request_files  # noqa: E402

BLOCK = re.compile(r"(<!-- file:([\w-]+)/([\w.]+) -->\n(`{3,4})\w*\n)(.*?)(\4\n)", re.DOTALL)
FIELDS = re.compile(r"(<!-- options:begin -->\n)(.*?)(<!-- options:end -->)", re.DOTALL)
TRAINING = {"seq_len": 8192, "micro_batch_size": 1, "global_batch_size": 128, "precision": "bf16-mixed",
            "optimizer": "adamw", "attention": "flash", "recompute": "full", "loss": "fp32_logits"}
MIXED = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
CLUSTER = {"gpu": "h100-80gb-sxm", "gpus": 32, "gpus_per_node": 8, "network_bytes_per_second": 50e9}
MASTER = {"precision": "bf16-master", "loss": "cross_entropy"}
ASKED = {"tokens": 20_000_000_000, "price_per_gpu_hour": 2.5, "pue": 1.2, "wall_time_limit_hours": 24,
         "mean_time_between_failures_hours": 200, "checkpoint_bytes_per_second": 5e9,
         "partition": "h100", "account": "llm", "image": "registry.example/train:1",
         "volume_claim": "checkpoints", "checkpoint_folder": "/checkpoints"}
# parts of the run, and of the options, that differ
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "fsdp2": ({}, {"framework": "fsdp2", "zero_stage": 3, "fsdp2": MIXED}, {}),
    "torchtitan": ({}, {"framework": "fsdp2", "zero_stage": 3, "fsdp2": MIXED}, {"launcher": "torchtitan"}),
    "deepspeed": (MASTER, {"framework": "deepspeed", "zero_stage": 2}, {}),
    "megatron": (MASTER, {"framework": "megatron", "tp": 2, "pp": 2, "sequence_parallel": True,
                          "zero_stage": 1}, {}),
}


def files_of(example: str) -> dict[str, str]:
    """What is written for one example."""
    training, parallel, options = EXAMPLES[example]
    run = load_run({"name": "Llama 3 8B", "model": "llama-3-8b", "training": TRAINING | training,
                    "parallel": parallel, "cluster": CLUSTER})
    return request_files(estimate(run), step_time(run), RequestOptions(**ASKED | options))


def page() -> str:
    """The page with its files and its table made anew."""
    text = (DOCS / "requests.md").read_text(encoding="utf-8")
    files = {name: files_of(name) for name in {match[2] for match in BLOCK.finditer(text)}}
    text = BLOCK.sub(lambda m: m[1] + files[m[2]][m[3]] + m[6], text)
    return FIELDS.sub(lambda m: m[1] + option_table() + m[3], text)


def option_table() -> str:
    """Every key of RequestOptions."""
    sys.path.append(str(DOCS))
    from update_run_file import field_rows

    return "\n".join(field_rows(RequestOptions)) + "\n"


if __name__ == "__main__":
    (DOCS / "requests.md").write_text(page(), encoding="utf-8")
