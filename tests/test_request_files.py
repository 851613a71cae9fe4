"""Each file of a request is read by a parser of its own: bash, sbatch's list of options, YAML, Kubernetes."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import load_run
from gpuledger.errors import InputError
from gpuledger.estimate import estimate
from gpuledger.planner.requests import RequestOptions, first_request
from gpuledger.planner.requests.slurm import slurm_time
from request_runs import HOSTILE, calls, files_of, run_of, stand_in

DATA = Path(__file__).parent / "data" / "requests"
SLURM = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_CPUS_PER_TASK": "64"}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {}, "fsdp2": {"zero_stage": 3}, "zero-redundancy-optimizer": {"zero_stage": 1},
    "deepspeed": {"zero_stage": 2}, "megatron": {"tp": 2, "pp": 2, "sequence_parallel": True}}


def request_of(framework: str, **options: Any) -> dict[str, str]:
    return files_of(run_of(framework, **RUNS[framework]), **options)


@pytest.mark.parametrize("framework", RUNS)
def test_the_run_file_is_the_run(framework: str) -> None:
    run = run_of(framework, **RUNS[framework])
    assert load_run(yaml.safe_load(files_of(run)["run.yaml"])) == run


@pytest.mark.parametrize("framework", RUNS)
def test_bash_reads_every_script(framework: str) -> None:
    files = request_of(framework, wall_time_limit_hours=12, script_arguments=("--name", HOSTILE))
    scripts = [name for name, text in files.items() if text.startswith("#!/bin/bash\n")]
    assert {"launch.sh", "job.sbatch", "submit.sh"} <= set(scripts)
    for name in scripts:
        read = subprocess.run(["bash", "-n"], input=files[name], text=True, capture_output=True)
        assert (read.returncode, read.stderr) == (0, ""), name


@pytest.mark.parametrize("framework", RUNS)
def test_words_of_the_user_arrive_as_they_are(framework: str, tmp_path: Path) -> None:
    files = request_of(framework, script="my train.py", script_arguments=("--name", HOSTILE, "--x=1 2"))
    launcher = "deepspeed" if framework == "deepspeed" else "torchrun"
    variables = {"RDZV_ENDPOINT": "a b:29500", "HOSTFILE": "my hosts"}
    (words,) = calls(files["launch.sh"], tmp_path, launcher, **variables)
    assert words[-2:] == [HOSTILE, "--x=1 2"]
    assert "my train.py" in words
    assert {"--rdzv-endpoint=a b:29500", "--hostfile=my hosts"} & set(words)
    (tmp_path / "slurm").mkdir()
    (words,) = calls(files["job.sbatch"], tmp_path / "slurm", "srun", **SLURM)
    assert words[-2:] == [HOSTILE, "--x=1 2"]
    assert words[:6] == ["srun", "--kill-on-bad-exit=1", "torchrun", "--nnodes=2", "--nproc-per-node=8",
                         "--rdzv-id=77"]
    assert "--rdzv-endpoint=node-0:29500" in words
    (job,) = [m for m in yaml.safe_load_all(files["job.yaml"]) if m["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    # Kubernetes replaces $(NAME) and turns $$ into $
    assert [word.replace("$$", "$") for word in container["command"][-2:]] == [HOSTILE, "--x=1 2"]
    assert not any(re.search(r"(?<!\$)(\$\$)*\$\(", word) for word in container["command"])
    assert not list(tmp_path.rglob("broken"))


def test_a_launch_without_its_address_stops(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        calls(request_of("fsdp2")["launch.sh"], tmp_path, "torchrun")


def test_one_node_needs_no_address(tmp_path: Path) -> None:
    files = files_of(run_of("fsdp2", gpus=8, zero_stage=3))
    (words,) = calls(files["launch.sh"], tmp_path, "torchrun")
    assert words == ["torchrun", "--nnodes=1", "--nproc-per-node=8", "--standalone", "train.py"]


def test_one_gpu_is_one_process(tmp_path: Path) -> None:
    files = files_of(run_of(None, gpus=1, model="gpt2", training={"seq_len": 1024}))
    assert calls(files["launch.sh"], tmp_path, "python3") == [["python3", "train.py"]]


def sbatch_options(script: str) -> dict[str, str]:
    """The directives of a batch script, split as sbatch does: it stops at the first command."""
    found = {}
    for line in script.splitlines()[1:]:
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = value
    return found


@pytest.mark.parametrize("framework", RUNS)
def test_sbatch_knows_every_directive(framework: str) -> None:
    known = json.loads((DATA / "sbatch_options.json").read_text())["options"]
    script = request_of(framework, wall_time_limit_hours=12, partition="gpu", account="physics",
                        qos="long")["job.sbatch"]
    options = sbatch_options(script)
    assert len(options) == script.count("#SBATCH ")
    for name, value in options.items():
        assert name in known, name
        assert known[name] != "required" or value, name
        assert known[name] != "none" or not value, name
        assert not re.search(r"[\s#'\"\\]", value), name


def test_directives_by_hand() -> None:
    options = sbatch_options(request_of("fsdp2", wall_time_limit_hours=12, partition="gpu",
                                        stop_seconds=600, cpus_per_gpu=12)["job.sbatch"])
    assert options == {
        "job-name": "llama-3-on-h100", "partition": "gpu", "nodes": "2", "ntasks-per-node": "1",
        "gpus-per-node": "8", "cpus-per-task": "96", "exclusive": "", "mem": "0", "time": "0-12:00:00",
        "signal": "B:USR1@600", "requeue": "", "open-mode": "append", "output": "%x-%j.out"}


def test_part_of_a_node_leaves_the_rest_to_others() -> None:
    options = sbatch_options(files_of(run_of("fsdp2", gpus=4, zero_stage=3))["job.sbatch"])
    assert (options["gpus-per-node"], options["cpus-per-task"]) == ("4", "32")
    assert "exclusive" not in options and "mem" not in options


def test_times_are_rounded_up_to_minutes() -> None:
    times = [slurm_time(s) for s in (1, 60, 61, 3600, 86_399, 86_401, 7 * 86_400)]
    assert times == ["0-00:01:00", "0-00:01:00", "0-00:02:00", "0-01:00:00", "1-00:00:00", "1-00:01:00",
                     "7-00:00:00"]


def test_the_signal_stops_the_run_and_the_job_ends_well(tmp_path: Path) -> None:
    """srun stands for a run that saves on SIGTERM and then fails, as torchrun does."""
    stand_in(tmp_path / "scontrol", tmp_path / "log", prints="node-0")
    (tmp_path / "srun").write_text(
        "#!/bin/bash\ntrap 'touch saved; exit 1' TERM\ntouch started\nwhile :; do sleep 0.05; done\n")
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "job.sbatch").write_text(request_of("fsdp2")["job.sbatch"])
    job = subprocess.Popen(["bash", "job.sbatch"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={
        **os.environ, **SLURM, "SLURM_SUBMIT_DIR": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    while not (tmp_path / "started").exists():
        assert job.poll() is None
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    output, _ = job.communicate(timeout=60)
    assert (job.returncode, (tmp_path / "saved").exists()) == (0, True)
    assert "the next job resumes" in output


def test_a_run_that_fails_fails_the_job(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/bash\nexit 3\n")
    (tmp_path / "srun").chmod(0o755)
    stand_in(tmp_path / "scontrol", tmp_path / "log", prints="node-0")
    script = request_of("fsdp2")["job.sbatch"]
    ended = subprocess.run(["bash", "-c", script], env={
        **os.environ, **SLURM, "SLURM_SUBMIT_DIR": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert ended.returncode == 3


def test_each_job_of_a_chain_waits_for_the_one_before(tmp_path: Path) -> None:
    files = request_of("fsdp2", wall_time_limit_hours=12, tokens=4 * 10**9)
    stand_in(tmp_path / "sbatch", tmp_path / "log", prints="41;cluster")
    words = calls(files["submit.sh"], tmp_path, "sbatch")
    jobs = int(re.search(r"in (\d+) such jobs", files["job.sbatch"]).group(1))
    assert jobs > 1 and len(words) == jobs
    known = json.loads((DATA / "sbatch_options.json").read_text())["options"]
    assert {w[2:].partition("=")[0] for call in words for w in call if w.startswith("--")} <= set(known)
    assert words[0] == ["sbatch", "--parsable", "job.sbatch"]


def test_kubernetes_accepts_every_manifest() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for framework in RUNS:
        text = request_of(framework, volume_claim="disk", checkpoint_folder="/checkpoints",
                          wall_time_limit_hours=10**5, script_arguments=("--name", HOSTILE))["job.yaml"]
        manifests = list(yaml.safe_load_all(text))
        assert [m["kind"] for m in manifests][-2:] == ["Service", "Job"]
        for manifest in manifests:
            validate.validate(manifest, validate.latest_version(), strict=True)
        manifests[-1]["spec"]["template"]["spec"]["container"] = []
        with pytest.raises(validate.ValidationError):
            validate.validate(manifests[-1], validate.latest_version(), strict=True)


def test_pods_find_each_other_by_name() -> None:
    service, job = yaml.safe_load_all(request_of("fsdp2")["job.yaml"])
    pod = job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod["subdomain"] == job["metadata"]["name"] == "llama-3-on-h100"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert (job["spec"]["completionMode"], job["spec"]["completions"], job["spec"]["parallelism"]) == (
        "Indexed", 2, 2)
    (container,) = pod["containers"]
    assert "--rdzv-endpoint=llama-3-on-h100-0.llama-3-on-h100:29500" in container["command"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_the_configuration_of_deepspeed_is_mounted_where_it_is_read() -> None:
    files = request_of("deepspeed")
    config, _, job = yaml.safe_load_all(files["job.yaml"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    mount = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "config")
    assert f"{mount}/ds_config.json" in container["command"]
    assert config["data"] == {"ds_config.json": files["ds_config.json"]}


@pytest.mark.parametrize(("given", "told"), [
    ({"job_name": "Two Words"}, "job_name"), ({"partition": "gpu\n#SBATCH --uid=0"}, "partition"),
    ({"account": "a b"}, "account"), ({"namespace": "-x"}, "namespace"),
    ({"script": "-c"}, "script"), ({"script": "a\nb"}, "script"), ({"image": " "}, "image"),
    ({"volume_claim": "disk"}, "checkpoint_folder"), ({"script_arguments": ("\0",)}, "NUL"),
    ({"wall_time_limit_hours": 0.1}, "stop_seconds")])
def test_names_that_would_break_a_file_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RequestOptions(**{"tokens": 1} | given)


def test_what_cannot_be_launched_is_refused() -> None:
    for run, options, told in (
            (run_of(None), {}, "no framework is named"),
            (run_of("ddp"), {"launcher": "megatron"}, "does not start framework ddp")):
        with pytest.raises(InputError, match=told):
            files_of(run, **options)


def test_the_first_plan_that_can_be_launched_is_requested() -> None:
    options = RequestOptions(tokens=10**10)
    plans = [(estimate(run), step_time(run)) for run in (
        run_of(None), run_of("fsdp2", zero_stage=3), run_of("ddp"))]
    chosen = first_request(plans, options)
    assert (chosen.number, chosen.files) == (1, files_of(run_of("fsdp2", zero_stage=3)))
    [(number, problem)] = chosen.passed_over
    assert number == 0 and problem.message.startswith("no framework is named")
    with pytest.raises(InputError, match="no framework is named"):
        first_request(plans[:1], options)
    with pytest.raises(InputError, match="no plan"):
        first_request([], options)
