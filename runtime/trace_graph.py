"""An ONNX file with the attention's queries as further outputs, made of its bytes alone: no `onnx` is needed.

In protobuf two messages one after the other are one message with the fields of both, lists joined. So an output is
added by putting a model of nothing but that output behind the file's bytes. Weights stay where they are.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

# field numbers of onnx.proto
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_OUTPUT = 7, 1, 12
_NODE_INPUT, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT = 1, 2
_INFO_NAME, _INFO_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT = 1, 2, 1, 1
ELEMENTS = {"fp32": 1, "fp16": 10}
"""Manifest dtype -> onnx.TensorProto number."""


class AttentionQuery(NamedTuple):
    """A layer's query [B,H,n,D] after RoPE, by the name it has in the graph, and the scale of its scores."""

    layer: int
    name: str
    scale: float


def attention_queries(model: bytes) -> list[AttentionQuery]:
    """Of each op of the domain `fastocr`, in order. ValueError where `model` is not ONNX, or has none of these ops."""
    queries = []
    for field, graph in _fields(memoryview(model)):
        if field == _MODEL_GRAPH:
            queries += [query for number, node in _fields(graph) if number == _GRAPH_NODE and (query := _query(node))]
    if not queries:
        raise ValueError("the graph has no attention ops of the domain fastocr")
    return queries


def with_outputs(model: bytes, names: list[str], dtype: str) -> bytes:
    """`model` with its tensors `names`, of manifest dtype `dtype`, as further outputs, in that order."""
    tensor = _varint(_TENSOR_ELEMENT << 3) + _varint(ELEMENTS[dtype])
    kind = _message(_INFO_TYPE, _message(_TYPE_TENSOR, tensor))
    infos = (_message(_GRAPH_OUTPUT, _message(_INFO_NAME, name.encode()) + kind) for name in names)
    return model + _message(_MODEL_GRAPH, b"".join(infos))


def _query(node: memoryview) -> AttentionQuery | None:
    inputs: list[str] = []
    domain, scale = "", None
    for field, value in _fields(node):
        if field == _NODE_INPUT:
            inputs.append(bytes(value).decode())
        elif field == _NODE_DOMAIN:
            domain = bytes(value).decode()
        elif field == _NODE_ATTRIBUTE:
            attribute = dict(_fields(value))
            if bytes(attribute.get(_ATTRIBUTE_NAME, b"")) == b"scale":
                (scale,) = struct.unpack("<f", attribute[_ATTRIBUTE_FLOAT])
    if domain != "fastocr" or len(inputs) < 4 or scale is None:
        return None
    bank = re.fullmatch(r"past\.(\d+)\.visual_key", inputs[3])
    return AttentionQuery(int(bank.group(1)), inputs[0], scale) if bank else None


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of each field; whole numbers are left out. ValueError where it is not protobuf."""
    at, end = 0, len(message)
    while at < end:
        key, at = _read_varint(message, at)
        wire = key & 7
        if wire == 0:
            _, at = _read_varint(message, at)
            continue
        if wire == 2:
            size, at = _read_varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"field of unknown kind {wire}")
        if at + size > end:
            raise ValueError("a field is cut short")
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number is cut short")
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
