"""The command line: what is printed where, exit statuses, and the options, which are data."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.cli.main import status_of

OPTIONS = {
    "emulate": ["--devices", "--global-batch", "--gpu", "--gpus", "--json", "--micro-batch", "--precision", "--rank",
                "--recompute", "--seq-len", "--set", "--snapshot", "--stats", "--world-size", "--zero"],
    "validate": ["--global-batch", "--json", "--matrix", "--micro-batch", "--output", "--precision", "--recompute",
                 "--rehearse", "--seq-len", "--set"],
    "estimate": ["--alloc-conf", "--convention", "--events", "--explain", "--global-batch", "--gpu", "--gpus", "--json",
                 "--micro-batch", "--pp", "--precision", "--recompute", "--require-fit", "--seq-len", "--set",
                 "--snapshot", "--tp", "--zero"],
    "mfu": ["--convention", "--global-batch", "--gpu", "--gpus", "--json", "--precision", "--recompute",
            "--seq-len", "--set", "--step-seconds", "--tokens-per-second", "--tokens-per-second-per-gpu"],
    "sweep": ["--chart", "--csv", "--global-batch", "--gpu", "--gpus", "--json", "--micro-batch", "--over", "--pp",
              "--precision", "--recompute", "--replay", "--seq-len", "--set", "--tp", "--zero"],
    "report": ["--compare", "--global-batch", "--gpu", "--gpus", "--md", "--measured", "--micro-batch", "--out",
               "--over", "--pp", "--precision", "--recompute", "--seq-len", "--set", "--tp", "--zero"],
    "plan": ["--by", "--chart", "--days", "--global-batch", "--gpu", "--gpus", "--headroom", "--json", "--out",
             "--over", "--precision", "--price", "--request", "--require-fit", "--seq-len", "--set", "--tokens",
             "--top"],
    "presets": ["--json"],
}
"""A new option is a visible difference here: what is not in this list belongs into the run file."""

GPT2 = ("estimate", "gpt2", "--gpu", "h100", "--gpus", "1")


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = status_of(list(arguments))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("command", OPTIONS)
def test_options_are_these(command: str) -> None:
    from typer.main import get_command

    from gpuledger.cli.main import app
    group = get_command(app)
    parameters = group.commands[command].params
    found = sorted(name for p in parameters for name in p.opts if name.startswith("--"))
    assert found == OPTIONS[command]


def test_data_goes_to_stdout_and_messages_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = output(capsys, *GPT2)
    assert status == 0
    assert "peak allocated" in out and "fits:" in out
    assert "assumed: precision = bf16-mixed" in err and "assumed" not in out


def test_json_contract(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = output(capsys, *GPT2, "--json")
    answer = json.loads(out)
    assert status == 0
    assert list(answer) == ["schema_version", "run", "parameters", "memory", "flops", "time", "checkpoint",
                            "entries", "advice", "assumptions", "warnings"]
    assert answer["schema_version"] == 1
    assert answer["parameters"] == {"total": 124_439_808, "active": 124_439_808, "per_rank_max": 124_439_808}
    stage = answer["memory"]["by_stage"][0]
    terms = ("parameters", "gradients", "optimizer", "activations", "buffers")
    assert sum(stage[f"{term}_bytes"] for term in terms) == stage["peak_allocated_bytes"]
    assert sum(entry["bytes"] for entry in answer["entries"]) == stage["peak_allocated_bytes"]
    assert all(isinstance(entry["bytes"], int) for entry in answer["entries"])
    assert answer["memory"]["fits"] is True
    assert answer["memory"]["headroom_bytes"] == (answer["memory"]["capacity_bytes"]
                                                  - answer["memory"]["device_used_bytes"])


def test_a_run_of_the_json_is_a_run_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What was resolved can be estimated again, with the same answer and nothing assumed."""
    _, out, _ = output(capsys, *GPT2, "--json")
    first = json.loads(out)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(first["run"]))
    status, out, _ = output(capsys, "estimate", str(file), "--json")
    again = json.loads(out)
    assert status == 0
    assert again["memory"] == first["memory"] and again["assumptions"] == []


def test_require_fit(capsys: pytest.CaptureFixture[str]) -> None:
    too_large = ("estimate", "llama-3-70b", "--gpu", "h100", "--gpus", "1", "--zero", "0")
    assert output(capsys, *too_large)[0] == 0
    status, out, _ = output(capsys, *too_large, "--require-fit")
    assert status == 1 and "does not fit" in out
    assert output(capsys, *GPT2, "--require-fit")[0] == 0


def test_explain_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, *GPT2, "--explain")
    total = next(line for line in out.splitlines() if line.startswith("sum "))
    explained = [line for line in out.splitlines() if line.endswith("]") and "[" in line and "  " in line]
    assert "= peak allocated" in total and len(explained) > 30
    assert "[Z1]" in out and "source: ZeRO 1910.02054" in out


def test_expandable_segments_waste_less(capsys: pytest.CaptureFixture[str]) -> None:
    def reserved(*more: str) -> int:
        _, out, _ = output(capsys, *GPT2, "--json", *more)
        return int(json.loads(out)["memory"]["by_stage"][0]["peak_reserved_bytes"])

    assert reserved("--alloc-conf", "expandable_segments:True") < reserved()


def test_events_and_snapshot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The stream's highest level is the printed peak; the snapshot has the stream's allocations."""
    import pickle

    events, snapshot = tmp_path / "events.jsonl", tmp_path / "snapshot.pickle"
    status, out, err = output(capsys, *GPT2, "--json", "--events", str(events), "--snapshot", str(snapshot))
    assert status == 0 and "memory viewer" in err
    stage = json.loads(out)["memory"]["by_stage"][0]
    live = highest = allocations = 0
    for line in events.read_text().splitlines():
        event = json.loads(line)
        sign = 1 if event["action"] == "allocate" else -1
        live += sign * event["bytes"]
        highest = max(highest, live)
        allocations += sign > 0
        assert event["tensor"] and event["where"] and event["category"]
    assert highest == stage["peak_requested_bytes"]
    trace = pickle.loads(snapshot.read_bytes())["device_traces"][0]
    assert sum(entry["action"] == "alloc" for entry in trace) == allocations


@pytest.mark.parametrize(("arguments", "told"), [
    (["estimate", "gpt2"], "error:"),
    (["estimate", "gpt22", "--gpu", "h100", "--gpus", "1"], "did you mean gpt2"),
    (["estimate", "gpt2", "--gpu", "h1000", "--gpus", "1"], "h100"),
    (["estimate", "gpt2", "--zreo", "3"], "--help lists the options"),
    (["estimate", "gpt2", "--gpus", "many"], "--help lists the options"),
    ([*GPT2, "--convention", "palmm"], "palm"),
    ([*GPT2, "--alloc-conf", "expandable_segment:True"], "hint:"),
    (["mfu", "gpt2", "--gpu", "h100", "--gpus", "1"], "one is needed"),
    (["presets", "model"], "models, gpus, clusters, runs"),
    (["estimat", "gpt2"], "error:"),
])
def test_wrong_input_is_two_lines_and_status_2(
        arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = output(capsys, *arguments)
    assert status == 2 and out == ""
    assert told in err and "hint:" in err and "Traceback" not in err


def test_mfu_of_a_measured_run(capsys: pytest.CaptureFixture[str]) -> None:
    """51,470,401,536 FLOP a token at 10,000 tokens/s on a GPU of 989e12: 52.0 %."""
    status, out, _ = output(capsys, "mfu", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--global-batch", "8",
                            "--tokens-per-second-per-gpu", "10000", "--json")
    rows = {row["convention"]: row for row in json.loads(out)["rows"]}
    assert status == 0
    assert rows["megatron"]["model_flops_per_token"] == 51_470_401_536
    assert rows["megatron"]["mfu"] == pytest.approx(0.520428, abs=1e-6)


def test_import_is_light() -> None:
    """The package and the estimate import no torch, numpy or matplotlib."""
    program = ("import sys, gpuledger, gpuledger.cli.estimate, gpuledger.report.estimate_table; "
               "print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_closed_pipe_is_no_error() -> None:
    process = subprocess.run(
        f"{sys.executable} -m gpuledger.cli.main presets models | head -1", shell=True,
        capture_output=True, text=True, check=True)
    assert process.stderr == ""
