"""`Keys`: a `config.json` read key by key, with every problem kept until all are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.problems import shown
from ...errors import InputError, NotYetError, Problem


class Keys:
    """The keys of one configuration class. A value of null counts as absent, as in transformers."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values, self.where = values, where
        self.problems: list[Problem] = []

    def whole(self, *names: str, default: int | None = None) -> int:
        """The positive whole number under the first of these names that is there."""
        value = self.first(names)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is None:
            self.problem(f"{names[0]} is missing", "is this the whole config.json?")
        else:
            self.problem(
                f"{names[0]} = {shown(value)} is not a positive whole number",
                "give the unmodified config.json of the model",
            )
        return 1

    def number(self, *names: str, default: float) -> float:
        """The number under the first of these names that is there."""
        value = self.first(names)
        if value is None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        self.problem(
            f"{names[0]} = {shown(value)} is not a number",
            "give the unmodified config.json of the model",
        )
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """true or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        self.problem(
            f"{name} = {shown(value)} is not true or false",
            "give the unmodified config.json of the model",
        )
        return default

    def word(self, *names: str, default: str) -> str:
        """A text."""
        value = self.first(names)
        if isinstance(value, str):
            return value
        if value is not None:
            self.problem(
                f"{names[0]} = {shown(value)} is not a text",
                "give the unmodified config.json of the model",
            )
        return default

    def split(self, hidden_size: int, heads: int) -> int:
        """The head_dim that no key says: the hidden size over the heads, without a rest."""
        if "head_dim" not in self.values and hidden_size % heads:
            self.problem(
                f"{hidden_size} hidden elements cannot be split over {heads} heads",
                "give the unmodified config.json of the model",
            )
        return max(hidden_size // heads, 1)

    def inner(self, name: str) -> Keys:
        """The keys of a mapping inside; none where it is absent."""
        value = self.values.get(name)
        inner = Keys(value if isinstance(value, Mapping) else {}, f"{self.where}: {name}")
        inner.problems = self.problems
        return inner

    def first(self, names: tuple[str, ...]) -> Any:
        """The value of the first of these names that is there and not null."""
        return next(
            (self.values[name] for name in names if self.values.get(name) is not None), None
        )

    def problem(self, message: str, hint: str) -> None:
        """Keep a problem."""
        self.problems.append(Problem(f"{self.where}: {message}", hint))

    def only(self, name: str, value: Any, *, default: Any) -> None:
        """Raises NotYetError unless the key has this value: others are not accounted for."""
        found = self.values.get(name, default)
        if found != value:
            raise NotYetError(
                f"{self.where}: {name} = {shown(found)} is a variant that is not accounted for yet",
                f"models with {name} = {shown(value)} are read",
            )

    def finish(self) -> None:
        """Raises InputError with all problems, if there are any."""
        if self.problems:
            raise InputError.of(self.problems)


def ungated(keys: Keys, *names: str, default: str) -> str:
    """Our name of the activation between two projections."""
    known = {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_pytorch": "gelu",
        "relu": "relu",
        "relu2": "squared_relu",
        "silu": "silu",
        "swish": "silu",
    }
    return _activation(keys, names, default, known)


def gated(keys: Keys, *names: str, default: str) -> str:
    """Our name of the activation of the gate beside the up projection."""
    known = {
        "silu": "swiglu",
        "swish": "swiglu",
        "gelu": "geglu",
        "gelu_new": "geglu",
        "gelu_fast": "geglu",
        "gelu_pytorch_tanh": "geglu",
    }
    return _activation(keys, names, default, known)


def _activation(keys: Keys, names: tuple[str, ...], default: str, known: dict[str, str]) -> str:
    word = keys.word(*names, default=default)
    if word not in known:
        raise NotYetError(
            f"{keys.where}: {names[0]} = {shown(word)} is not accounted for yet",
            f"known: {', '.join(known)}",
        )
    return known[word]


def window(keys: Keys, sliding_window: int | None, layer_types: Any) -> dict[str, int]:
    """Our keys of sliding-window attention, from a window and the type of each layer.

    `layer_types` names each layer "sliding_attention" or "full_attention"; None means all slide.
    Raises NotYetError unless all layers are alike or every n-th layer is full.
    """
    if sliding_window is None:
        return {}
    if layer_types is None:
        return {"sliding_window": sliding_window}
    full = [kind == "full_attention" for kind in layer_types]
    if all(full):
        return {}
    if not any(full):
        return {"sliding_window": sliding_window}
    interval = full.index(True) + 1
    if full != [(layer + 1) % interval == 0 for layer in range(len(full))]:
        raise NotYetError(
            f"{keys.where}: layer_types mixes full and sliding attention in no regular interval",
            "models in which every n-th layer is full are read",
        )
    return {"sliding_window": sliding_window, "full_attention_interval": interval}


def rotary_dim(keys: Keys, head_dim: int, *names: str, default: float) -> dict[str, int]:
    """Our key of partly rotated heads: none where all dims are rotated.

    The share is under one of `names`, or as partial_rotary_factor at the top or in rope_parameters.
    """
    newer = keys.inner("rope_parameters").number("partial_rotary_factor", default=default)
    share = keys.number(*names, "partial_rotary_factor", default=newer)
    return {} if share == 1.0 else {"rotary_dim": int(head_dim * share)}
