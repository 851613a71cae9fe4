"""What the emulated GPU says when it cannot be had. No torch, no compiler."""
from __future__ import annotations

import sys

import pytest

from gpuledger.config.cluster import Gpu
from gpuledger.config.presets import list_presets, read_preset
from gpuledger.errors import GpuledgerError, InputError
from gpuledger.torch_runs.emulated_gpu import (
    EmulatedDevice,
    build,
    device_from_gpu,
    emulated_environment,
    installed_torch,
)
from gpuledger.torch_runs.emulated_gpu.launcher import _exit_status

H100 = EmulatedDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_028_765_696)


def one_line(error: pytest.ExceptionInfo[GpuledgerError]) -> str:
    (problem,) = error.value.problems
    assert "\n" not in problem.message + problem.hint
    return f"{problem.message} | {problem.hint}"


@pytest.fixture
def torch_with(tmp_path, monkeypatch):
    """Makes an installed torch of this version.py the only one there is."""

    def install(version_py: str) -> None:
        folder = tmp_path / "torch"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "version.py").write_text(version_py)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(sys.modules, "torch", None)
        monkeypatch.delitem(sys.modules, "torch")

    monkeypatch.setattr(sys, "platform", "linux")
    return install


CUDA_BUILD = "__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\n"


@pytest.mark.parametrize(("version_py", "says"), [
    ("__version__ = '2.14.1+cpu'\ncuda: Optional[str] = None\n",
     "torch 2.14.1+cpu is not a CUDA build"),
    ("__version__ = '2.8.0+cu128'\ncuda = '12.8'\n", "torch 2.8.0+cu128 is older than 2.9"),
])
def test_the_wrong_torch(torch_with, version_py, says):
    torch_with(version_py)
    with pytest.raises(GpuledgerError) as error:
        build()
    assert one_line(error) == (
        f"{says} | install a CUDA build of torch 2.9 or newer on Linux: pip install 'torch>=2.9'")


def test_no_torch(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GpuledgerError) as error:
        build()
    assert one_line(error).startswith("torch is not installed | install a CUDA build of torch")


def test_another_system(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(GpuledgerError) as error:
        build()
    assert one_line(error).startswith("the emulated GPU needs Linux; this is darwin | ")


def test_no_compiler(torch_with, monkeypatch, tmp_path):
    torch_with(CUDA_BUILD)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GPULEDGER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(GpuledgerError) as error:
        build()
    assert one_line(error) == (
        "gcc was not found; the emulated GPU is built with it on first use | "
        "install gcc and binutils, for example: apt-get install gcc")


def test_a_cuda_build_is_found_without_importing_it(torch_with):
    torch_with(CUDA_BUILD)
    found = installed_torch.installed_torch()
    assert (found.version, found.cuda) == ("2.14.1+cu130", "13.0")
    assert "torch" not in sys.modules


@pytest.mark.parametrize("devices", [0, 65])
def test_number_of_devices(devices):
    with pytest.raises(InputError) as error:
        emulated_environment(H100, devices=devices)
    assert one_line(error) == f"{devices} emulated devices | ask for 1 to 64"


def test_a_context_larger_than_the_device():
    with pytest.raises(InputError) as error:
        EmulatedDevice("small", (8, 0), 1, total_bytes=100, context_bytes=100)
    assert "a context of 100 bytes on a device of 100 bytes" in one_line(error)


def test_every_cuda_preset_whose_sms_are_known_can_be_emulated():
    presets = {name: Gpu.model_validate(read_preset("gpus", name)) for name in list_presets("gpus")}
    cuda = [gpu for gpu in presets.values() if gpu.vendor == "nvidia"]
    assert len(cuda) >= 20
    for gpu in cuda:
        if gpu.num_sms is None:
            with pytest.raises(InputError, match="its number of SMs is not known"):
                device_from_gpu(gpu)
            continue
        device = device_from_gpu(gpu)
        assert (device.name, device.total_bytes) == (gpu.full_name, gpu.capacity_bytes)


def test_an_amd_preset_cannot():
    with pytest.raises(InputError) as error:
        device_from_gpu(Gpu.model_validate(read_preset("gpus", "mi300x-192gb")))
    assert one_line(error).startswith("mi300x-192gb (amd) has no CUDA compute capability | ")


@pytest.mark.parametrize(("code", "status"), [(None, 0), (3, 3), (256, 0), ("text", 1), (True, 1)])
def test_exit_status_is_the_interpreters(code, status):
    assert _exit_status(code) == status
