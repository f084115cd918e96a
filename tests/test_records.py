"""JSON of any shape becomes a checked record or one ValueError."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fastocr_trt.records import parse_json, record


@dataclass(frozen=True)
class Point:
    x: float
    name: str = ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 200_000, "nested too deep"),
        ('{"x": ' * 200_000, "nested too deep"),
        (b"\x80{", "utf-8"),
        ("{", "line 1"),
        ("9" * 5_000, "digits"),
    ],
)
def test_what_is_no_json_is_a_value_error(text, told):
    with pytest.raises(ValueError, match=told):
        parse_json(text)


def test_values_that_no_float_holds_and_that_cannot_be_shown():
    with pytest.raises(ValueError, match=r"the point\.x is 1000.*not a number"):
        record(Point, {"x": 10**400}, "the point")
    with pytest.raises(ValueError, match="not a number"):
        record(Point, {"x": float("nan")}, "the point")
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"the point\.name is a list, not a str"):
        record(Point, {"x": 1, "name": deep}, "the point")
    assert record(Point, {"x": 1}, "the point") == Point(1.0)
