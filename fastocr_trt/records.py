"""Dataclasses from JSON, with every value checked against its field's type."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def parse_json(text: str | bytes) -> Any:
    """What the JSON `text` holds. ValueError where it is none, no UTF-8, or nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def record(kind: type[Record], data: Any, where: str, least: int = 0) -> Record:
    """A `kind` from the JSON object `data`; lists become tuples.

    least: the smallest whole number allowed. Raises ValueError, which names `where`, the field and the value.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_short(data)}, not an object")
    known = {f.name: f for f in fields(kind)}
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{where} has unknown fields {unknown}")
    missing = [
        name
        for name, field in known.items()
        if name not in data and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{where} lacks {missing}")
    hints = get_type_hints(kind)
    return kind(**{name: checked(value, hints[name], f"{where}.{name}", least) for name, value in data.items()})


def checked(value: Any, hint: Any, where: str, least: int = 0) -> Any:
    """`value` as the type `hint` wants it, or ValueError.

    hint: str, int, float, dict, dict[str, x], tuple[x, ...], X | None, or a dataclass.
    """
    if get_origin(hint) in (UnionType, Union):
        if value is None and type(None) in get_args(hint):
            return None
        return checked(value, next(a for a in get_args(hint) if a is not type(None)), where, least)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} is {_short(value)}, not a list")
        return tuple(checked(item, get_args(hint)[0], where, least) for item in value)
    if is_dataclass(hint):
        return record(hint, value, where, least)
    if get_origin(hint) is dict and get_args(hint)[1] is not Any:
        items = checked(value, dict, where)
        return {key: checked(item, get_args(hint)[1], f"{where}.{key}", least) for key, item in items.items()}
    if hint is float:
        number = _float(value)
        if number is None:
            raise ValueError(f"{where} is {_short(value)}, not a number")
        return number
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{where} is {_short(value)}, not a whole number of at least {least}")
        return value
    plain = get_origin(hint) or hint
    if plain is not Any and not isinstance(value, plain):
        raise ValueError(f"{where} is {_short(value)}, not a {plain.__name__}")
    return value


def _float(value: Any) -> float | None:
    """None where it is no number, or none that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested, or with more digits, than Python writes out
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
