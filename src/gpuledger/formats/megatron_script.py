"""A launch of Megatron-LM as people keep it: a shell script, or a YAML file with its arguments.

Of a script, scalar variables are filled in ($NAME, ${NAME}, ${NAME:-default}, $((a * b))) and every
`--key value` is read, in arrays and quoted lists too. Nothing is run.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError

ARGUMENTS = "MODEL_ARGS"  # of Megatron-LM's own test cases, beside ENV_VARS
ASSIGNMENT = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)="
                        r"(\"[^\"]*\"|'[^']*'|\$\(\([^\n]*\)\)|[^\s(]*)\s*$", re.M)
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
POSITIONAL = re.compile(r"\$\{\d+:?-([^}]*)\}")
ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
ARRAY = re.compile(r"\b[A-Za-z_]\w*\+?=\(")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.FloorDiv: operator.floordiv, ast.Div: operator.floordiv}
END = ";"  # of a value
LEVELS = 5  # of variables in variables


def arguments_of(keys: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments of a YAML or JSON file. Raises InputError where MODEL_ARGS is no mapping."""
    given = keys.get(ARGUMENTS, keys)
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {ARGUMENTS} is no mapping", "write `--key: value` lines under it")
    return {str(key).removeprefix("--"): value for key, value in given.items()
            if ARGUMENTS in keys or str(key).startswith("--")}


def is_script(path: Path, text: str) -> bool:
    """A shell script, or a text, that gives Megatron's arguments."""
    return path.suffix.lower() not in (".yaml", ".yml", ".json") and "--num-layers" in text


def parse_script(text: str) -> dict[str, Any]:
    """The arguments of a shell script. Raises InputError for a quote that is not closed."""
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", text.replace("\\\n", " "))
    given = {name: value.strip("\"'") for name, value in ASSIGNMENT.findall(text)}
    # NAME=${NAME:-default} means the default here
    variables = {name: _filled(value, {k: v for k, v in given.items() if k != name})
                 for name, value in given.items()}
    for _ in range(LEVELS):
        filled = _filled(text, variables)
        if filled == text:
            break
        text = filled
        variables = {name: _filled(value, variables) for name, value in variables.items()}
    ended = ARRAY.sub(" ", text).replace("(", " ")
    for end in (")", ";", "\n"):
        ended = ended.replace(end, f" {END} ")
    return parse_command(ended)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables that the script sets, defaults and arithmetic in place."""
    def value(found: re.Match[str]) -> str:
        name, default = found.group(1) or found.group(3), found.group(2)
        known = variables.get(name, default)
        return found.group(0) if known is None else known

    text = POSITIONAL.sub(r"\1", VARIABLE.sub(value, text))
    return ARITHMETIC.sub(lambda found: _calculated(found.group(1), variables) or found.group(0), text)


def _calculated(text: str, variables: Mapping[str, str]) -> str | None:
    """The value of sums, products and quotients of whole numbers; None for anything else.

    Variables may stand there without a dollar.
    """
    text = re.sub(r"[A-Za-z_]\w*", lambda found: variables.get(found.group(), found.group()), text)

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return int(OPERATORS[type(node.op)](of(node.left), of(node.right)))
        raise ValueError

    try:
        return str(of(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def parse_command(command: str) -> dict[str, Any]:
    """The `--key value` pairs of a command line; a flag without a value is True.

    Raises InputError for a quote that is not closed.
    """
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"the command line cannot be split: {error}", "check its quotes") from error
    arguments: dict[str, Any] = {}
    key: str | None = None
    for word in (part for whole in words for part in _split(whole)):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            arguments[name] = _value(value) if equals else True
            key = None if equals else name
        elif word == END or word.endswith(".py") or "[@]" in word:
            key = None
        elif key is not None:
            known = arguments[key]
            arguments[key] = _value(word) if known is True else f"{known} {word}"
    return arguments


def _split(word: str) -> list[str]:
    """The words of a quoted list of arguments, as in ARGS="--seq-length 2048 --bf16"."""
    word = re.sub(r"^\w+\+?=\s*(?=--)", "", word)
    return word.split() if re.search(r"(^|\s)--\w", word) and " " in word else [word]


def _value(word: str) -> Any:
    """A number where it is one."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
