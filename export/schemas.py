"""The domain of our ops, and the schemas that onnxscript asks for when it translates them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx

DOMAIN = "fastocr"
OPSET_VERSION = 1
ENGINE_OPSET_VERSION = 2  # the engine form's: the same op names with other inputs
OPSET = 24  # of the standard ops in the bodies

AttrType = onnx.defs.OpSchema.AttrType


def register_schema(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, AttrType | int | str],
    integers: Collection[str],
    version: int = OPSET_VERSION,
) -> None:
    """Register an op of our domain, in one version of the domain, once a process.

    attributes: name to the type of a required one, or to a default. integers: the tensors that are int64; all others
    are of the model's dtype.
    """
    schema = onnx.defs.OpSchema
    if onnx.defs.has(name, version, DOMAIN) and onnx.defs.get_schema(name, version, DOMAIN).since_version == version:
        return

    def parameter(tensor: str):
        return schema.FormalParameter(tensor, "I" if tensor in integers else "T")

    onnx.defs.register_schema(
        schema(
            name,
            DOMAIN,
            version,
            inputs=[parameter(tensor) for tensor in inputs],
            outputs=[parameter(tensor) for tensor in outputs],
            type_constraints=[
                ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "model dtype"),
                ("I", ["tensor(int64)"], "lengths and row numbers"),
            ],
            attributes=[
                schema.Attribute(attribute, value, "", required=True)
                if isinstance(value, AttrType)
                else schema.Attribute(attribute, onnx.helper.make_attribute(attribute, value))
                for attribute, value in attributes.items()
            ],
        )
    )
