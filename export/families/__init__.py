"""What differs per model family: one module each, chosen by the checkpoint's `model_type`."""

from __future__ import annotations

from types import ModuleType

from ...errors import ExportError
from . import qwen2_5_vl

_FAMILIES = {model_type: qwen2_5_vl for model_type in qwen2_5_vl.MODEL_TYPES}


def family_of(model_type: str | None, source: str) -> ModuleType:
    """The family's module, or ExportError that names the families there are."""
    if model_type in _FAMILIES:
        return _FAMILIES[model_type]
    named = f"of the family {model_type!r}" if model_type else "without a model_type in its config.json"
    raise ExportError(f"{source} is a checkpoint {named}; supported are {', '.join(sorted(_FAMILIES))}")
