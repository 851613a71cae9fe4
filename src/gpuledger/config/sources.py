"""From what a user names (a preset, a file, a mapping) to the keys of a record."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ..errors import InputError
from .presets import preset_path, read_preset, unknown_preset
from .problems import shown
from .reading import Values, read_file, read_text

Source = str | Path | Mapping[str, Any]
FILE_SUFFIXES = (".yaml", ".yml", ".json")


def run_keys(source: Source) -> tuple[Values, Path | None]:
    """The keys of a run and the folder that its relative paths start from.

    A model alone (preset, file, Hugging Face config.json) becomes a run of which only the model is
    known; a launch of Megatron-LM (shell script, YAML) becomes one without a GPU. Raises InputError if
    there is no such preset or file, or it is neither a run nor a model.
    """
    if isinstance(source, Mapping):
        return as_run(deepcopy(dict(source)), "the mapping"), None  # completed in place later
    path = file_named(source)
    if path is not None:
        return _keys_in(path), path.parent
    name = str(source)
    if preset_path("runs", name) is not None:
        return without_source(read_preset("runs", name)), None
    model = preset_path("models", name)
    if model is not None:
        return {"name": model.stem, "model": name}, None
    raise unknown_preset(["runs", "models"], name)


def model_keys(source: Source, folder: Path | None = None) -> Values:
    """The keys of a model, from a preset's name, a file or its own keys. Raises InputError."""
    if isinstance(source, Mapping):
        return _model_of(dict(source), "the model")
    path = file_named(source, folder)
    if path is not None:
        keys = _model_of(read_file(path), str(path))
        return {"name": _name_of(path), **keys}
    return without_source(read_preset("models", str(source)))


def gpu_keys(source: Source, folder: Path | None = None) -> Values:
    """The keys of a GPU, from a preset's name, a file or its own keys. Raises InputError."""
    if isinstance(source, Mapping):
        return dict(source)
    path = file_named(source, folder)
    return read_file(path) if path is not None else read_preset("gpus", str(source))


def cluster_keys(source: Source, folder: Path | None = None) -> Values:
    """The keys of a cluster, its GPU expanded if it is a name. Raises InputError."""
    if isinstance(source, Mapping):
        keys = dict(source)
    else:
        path = file_named(source, folder)
        keys = read_file(path) if path is not None else read_preset("clusters", str(source))
    if isinstance(keys.get("gpu"), str):
        keys["gpu"] = gpu_keys(keys["gpu"], folder)
    return keys


def file_named(source: str | Path, folder: Path | None = None) -> Path | None:
    """The file that a text means, or None where it is to be a preset's name.

    A name with a slash or a suffix of ours is a file, and so is any name that exists and is no
    preset. A folder stands for the config.json in it.
    """
    text = str(source)
    if not text.strip() or "\0" in text:
        raise InputError(
            f"{shown(text)} names nothing", "give a preset's name or the path of a file"
        )
    path = (folder / text) if folder is not None else Path(text)
    looks_like_file = isinstance(source, Path) or path.suffix.lower() in (
        *FILE_SUFFIXES, ".sh")
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:
        raise InputError(f"cannot read {shown(text)}: {error.strerror}", "check the path") from None
    if is_folder and ("/" in text or looks_like_file or not _is_preset(text)):
        return _config_in(path)
    if exists and not is_folder and ("/" in text or looks_like_file or not _is_preset(text)):
        return path
    if looks_like_file or text.startswith(("/", "./", "../", "~")):
        raise InputError(
            f"no such file: {text}", "check the path; `gpuledger presets` lists the presets"
        )
    return None


def _keys_in(path: Path) -> Values:
    """The keys of a run in a file of any kind that is read: YAML, JSON, or a launch script of Megatron's."""
    if path.suffix.lower() not in FILE_SUFFIXES:
        from ..formats.megatron_script import is_script, parse_script

        text = read_text(path)
        if is_script(path, text):
            return _of_launch(parse_script(text), path)
    keys = read_file(path)
    if "model" not in keys and any(key == "MODEL_ARGS" or key.startswith("--") for key in keys):
        from ..formats.megatron_script import arguments_of

        return _of_launch(arguments_of(keys, str(path)), path)
    return as_run(keys, str(path))


def _of_launch(arguments: Mapping[str, Any], path: Path) -> Values:
    from ..formats.megatron import launch_keys

    keys = launch_keys(arguments)
    keys["model"]["name"] = keys["name"] = path.stem
    return keys


def as_run(keys: Values, where: str) -> Values:
    """The keys of a run, whether these are a run's or a model's."""
    if "model" in keys:
        return without_source(keys)
    if is_hugging_face(keys) or "num_layers" in keys or "hidden_size" in keys:
        return {"model": {"name": _name_of(Path(where)), **_model_of(keys, where)}}
    found = ", ".join(list(keys)[:5]) or "no keys"
    raise InputError(
        f"{where} is neither a run nor a model (it has {shown(found)[1:-1]})",
        "a run has a top-level key model, a Hugging Face config.json has model_type",
    )


def is_hugging_face(keys: Mapping[str, object]) -> bool:
    """These are the keys of a Hugging Face config.json."""
    return "model_type" in keys or "architectures" in keys


def without_source(keys: Values) -> Values:
    """The keys that belong to the record: `source` says where a file's numbers come from."""
    return {key: value for key, value in keys.items() if key != "source"}


def _model_of(keys: Values, where: str) -> Values:
    if not is_hugging_face(keys):
        return without_source(keys)
    from ..formats.hf import model_from_config

    return model_from_config(keys, where)


def _name_of(path: Path) -> str:
    return path.parent.name or "model" if path.stem == "config" else path.stem


def _is_preset(name: str) -> bool:
    return any(
        preset_path(kind, name) is not None for kind in ("runs", "models", "clusters", "gpus")
    )


def _config_in(folder: Path) -> Path:
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(
            f"{folder} is a folder without a config.json", "name the run file or config.json in it"
        )
    return config
