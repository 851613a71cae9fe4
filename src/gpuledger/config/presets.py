"""Where the presets are and how a name finds one.

Names are compared without case, spaces, - and _ so `GPT2_XL` finds gpt2-xl; a dot counts, because
opt-1.3b is not opt-13b. Short names are listed in presets/aliases.yaml.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..errors import InputError
from .problems import nearest, shown
from .reading import Values, read_file

KINDS = ("models", "gpus", "clusters", "runs")
SINGULAR = {"models": "model", "gpus": "GPU", "clusters": "cluster", "runs": "run"}


@lru_cache(maxsize=1)
def presets_folder() -> Path:
    """The folder of the presets: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_presets", package.parents[1] / "presets"):
        if folder.is_dir():
            return folder
    raise InputError(f"no presets beside {package}", "reinstall gpuledger: its presets are missing")


def list_presets(kind: str) -> list[str]:
    """Names of all presets of a kind, sorted. Raises InputError unless it is one of KINDS."""
    if kind not in KINDS:
        raise InputError(f"unknown kind of preset {shown(kind)}", f"one of: {', '.join(KINDS)}")
    return sorted(path.stem for path in (presets_folder() / kind).glob("*.yaml"))


@lru_cache(maxsize=1)
def _all_aliases() -> Values:
    return read_file(presets_folder() / "aliases.yaml")


def aliases(kind: str) -> dict[str, str]:
    """Short names of a kind and the preset that each stands for."""
    return dict(_all_aliases().get(kind, {}))


def preset_path(kind: str, name: str) -> Path | None:
    """The file of a preset, or None where no preset has this name."""
    folder = presets_folder() / kind
    plain = name.replace("-", "").replace(".", "").isalnum() and name == name.lower()
    if plain and (folder / f"{name}.yaml").is_file():
        return folder / f"{name}.yaml"
    wanted = simplified(name)
    for known in list_presets(kind):
        if simplified(known) == wanted:
            return folder / f"{known}.yaml"
    for short, known in aliases(kind).items():
        if simplified(short) == wanted:
            return folder / f"{known}.yaml"
    return None


def read_preset(kind: str, name: str) -> Values:
    """The keys of a preset and its name. Raises InputError with the nearest names if unknown."""
    path = preset_path(kind, name)
    if path is None:
        raise unknown_preset([kind], name)
    return {"name": path.stem, **read_file(path)}


def unknown_preset(kinds: list[str], name: str) -> InputError:
    """The error for a name that is no preset of these kinds."""
    known = {word: word for kind in kinds for word in list_presets(kind)}
    known |= {short: target for kind in kinds for short, target in aliases(kind).items()}
    # A name from a model hub (owner/model) is looked up by its last part.
    close = nearest(name.rpartition("/")[2].lower(), known)
    targets = list(dict.fromkeys(known[word] for word in close))
    what = " or ".join(SINGULAR[kind] for kind in kinds)
    listing = f"`gpuledger presets {kinds[-1]}` lists all {len(list_presets(kinds[-1]))}"
    meant = f"did you mean {' or '.join(targets)}? " if targets else ""
    return InputError(f"unknown {what} {shown(name)}", f"{meant}{listing}")


def simplified(name: str) -> str:
    """A name as it is compared."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter == ".")
