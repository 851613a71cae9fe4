"""Plain values from YAML and JSON texts, as YAML 1.2 and JSON define them."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.config.reading import MAX_LEVELS, plain_scalar, read_json, read_yaml
from gpuledger.errors import InputError


@pytest.mark.parametrize(("text", "value"), [
    ("8", 8), ("-8", -8), ("+8", 8), ("010", 10), ("0.1", 0.1), (".5", 0.5), ("1e-3", 0.001),
    ("5e8", 5e8), ("25e9", 25e9), ("5.0e8", 5e8), ("3.", 3.0), ("true", True), ("False", False),
    ("null", None), ("~", None), ("", None), ("Null", None),
    ("no", "no"), ("yes", "yes"), ("1:30", "1:30"), ("0x10", "0x10"), ("1.2.3", "1.2.3"),
    ("8b", "8b"), ("--", "--"), ("-", "-"), (".", "."), ("e5", "e5"), ("1_000", 1000),
    ("infinity", "infinity"), ("nan", "nan"), ("٣", "٣"),
])
def test_a_plain_scalar(text, value):
    found = plain_scalar(text, "test")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "9" * 31, "1e" + "9" * 40])
def test_a_number_that_is_none(text):
    with pytest.raises(InputError):
        plain_scalar(text, "test")


def test_a_quoted_scalar_is_text():
    assert read_yaml("""{a: "8", b: '1e-3', c: 8}""", "test") == {"a": "8", "b": "1e-3", "c": 8}


def test_yaml_and_json_agree():
    text = '{"model": "gpt2", "training": {"seq_len": 8, "every": [1, 2.5, null, true, "x"]}}'
    assert read_yaml(text, "test") == read_json(text, "test")


def test_flow_and_block_style_agree():
    block = "a:\n  b: 1\n  c:\n  - 2\n  - d: 3\n"
    assert read_yaml(block, "test") == read_yaml("{a: {b: 1, c: [2, {d: 3}]}}", "test")


def test_an_empty_document_is_null():
    assert read_yaml("", "test") is None


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_levels_are_limited(read):
    inside = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    assert read(inside, "test")
    with pytest.raises(InputError, match=f"more than {MAX_LEVELS} levels"):
        read(f"[{inside}]", "test")


@pytest.mark.parametrize(("text", "line"), [
    ("a: 1\nb: *x\n", 2), ("a: 1\nb: 2\na: 3\n", 3), ("a: 1\nb: !!set {x}\n", 2),
    ("a: 1\n---\nb: 2\n", 2)])
def test_a_refusal_names_its_line(text, line):
    with pytest.raises(InputError, match=f"^error: test, line {line}: "):
        read_yaml(text, "test")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    for read in (read_yaml, read_json):
        try:
            read(text, "test")
        except InputError as error:
            assert all(problem.message and problem.hint for problem in error.problems)
            assert all("\n" not in problem.message + problem.hint for problem in error.problems)
