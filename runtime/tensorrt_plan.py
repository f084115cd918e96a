"""What a TensorRT session allocates and binds, worked out without the library: pure functions of the manifest.

A role is one use of an engine, with an execution context of its own, so that switching between prefill and decode costs
nothing. Every tensor of a role has one place in one buffer, and keeps it for as long as the buffers live:

- `cache.{layer}.{bank}`: a bank; `past.*` and `present.*` of every engine are bound to it, so it is written in place.
- `step` and `next`: two blocks of one layout that hold what a step hands to the next. An engine reads `step` and writes
  `next`, and one copy of the block ends the step. Two blocks, because an engine may write an output before the last
  read of the input it came from; a copy, not blocks that take turns, because then one captured graph serves every step.
- `chunk`: the inputs of a prefill chunk. `page`: what stays the same while a batch is written, and constants.
- `visual_embeds`, `logits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from ..backends import EngineFile, TensorRecord
from ..errors import EngineError
from ..manifest import Manifest
from .cache import BANKS
from .session import Mode

ALIGNMENT = 256  # bytes: what TensorRT asks of an address
SLOT_BUCKET = 128  # *_slots are as long as a multiple of this many rows: every new length is a new graph
CHUNK_BUCKET = 32  # rows of a prefill chunk, for the same reason
FIXATION_BUCKET = 32  # so is fixation_slots; unused places hold -1
ITEM_SIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
TOKENS_HEAD = ALIGNMENT  # where in `step` the tokens begin; status comes before, so that one copy fetches both

RoleName = Literal["vision", "prefill", "decode"]


@dataclass(frozen=True)
class Role:
    """One use of an engine: its name in the manifest, what for, and the index of the optimisation profile."""

    engine: str
    name: RoleName
    profile: int


@dataclass(frozen=True)
class Roles:
    """The roles of a backend's engines. With the plugin `dense` and `fast` are one: attend_all tells them apart."""

    vision: Role
    prefill: Role
    dense: Role
    fast: Role

    @classmethod
    def of(cls, engines: Mapping[str, EngineFile]) -> Roles:
        """EngineError where the engines are neither vision and decoder nor vision, dense and fast."""
        if set(engines) == {"vision", "decoder"}:
            dense, fast = "decoder", "decoder"
        elif set(engines) == {"vision", "dense", "fast"}:
            dense, fast = "dense", "fast"
        else:
            raise EngineError(
                f"the manifest's engines are {sorted(engines)}; they must be vision and decoder (with the plugin) or "
                "vision, dense and fast"
            )

        def role(engine: str, name: RoleName) -> Role:
            profiles = engines[engine].profiles
            return Role(engine, name, profiles.index(name) if name in profiles else 0)

        return cls(role("vision", "vision"), role(dense, "prefill"), role(dense, "decode"), role(fast, "decode"))

    def all(self) -> list[Role]:
        return list(dict.fromkeys((self.vision, self.prefill, self.dense, self.fast)))

    def mode(self, mode: Mode) -> Role:
        return self.dense if mode == "dense" else self.fast


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call: pages, query rows a page, k, lengths of the two *_slots, rows of visual_embeds."""

    batch: int
    rows: int
    fixation: int
    visual_slots: int
    text_slots: int
    embeds: int


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: a buffer's name and a byte offset within it."""

    buffer: str
    offset: int = 0


class Block:
    """Several tensors in one buffer, each aligned, in the order given: name -> (shape, dtype)."""

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        self.offsets: dict[str, int] = {}
        self.nbytes = 0
        for name, (shape, dtype) in fields.items():
            self.offsets[name] = self.nbytes
            self.nbytes += aligned(prod(shape) * ITEM_SIZE[dtype])


class Plan:
    """Buffers and bindings for batches of up to `batch` pages; a smaller one uses the front of each tensor's place."""

    def __init__(self, manifest: Manifest, batch: int) -> None:
        self.batch = batch
        self._decoder = decoder = manifest.decoder
        self._dtype = DTYPES[manifest.dtype]
        self._capacities = capacities = manifest.capacities
        self.bank_rows = capacities.bank_rows
        chunk, slots = capacities.prefill_chunk, max(self.bank_rows.values())
        fixation = (batch, decoder.num_key_value_heads, capacities.max_visual_tokens)
        self.step = Block(
            {
                "status": ((1,), "int64"),
                "input_ids": ((batch, 1), "int64"),
                "position_ids": ((3, batch, 1), "int64"),
                "text_length": ((batch,), "int64"),
                "text_valid": ((batch, 1), "int64"),
                "fixation": (fixation, "int64"),  # the last: only as much of it is copied as a batch uses
            }
        )
        self.chunk = Block(
            {
                "input_ids": ((batch, chunk), "int64"),
                "position_ids": ((3, batch, chunk), "int64"),
                "visual_length": ((batch,), "int64"),
                "text_length": ((batch,), "int64"),
                "visual_valid": ((batch, chunk), "int64"),
                "text_valid": ((batch, chunk), "int64"),
            }
        )
        self.page = Block(
            {
                "visual_length": ((batch,), "int64"),
                "visual_valid": ((batch, 1), "int64"),
                "active": ((batch,), "int64"),
                "num_fixations": ((batch,), "int64"),
                "attend_all": ((1,), "int64"),
                "zeros": ((batch,), "int64"),
                "one": ((1,), "int64"),
                "slots": ((slots,), "int64"),
            }
        )

    def buffers(self) -> dict[str, int]:
        """Bytes of every buffer, by name."""
        decoder, item = self._decoder, ITEM_SIZE[self._dtype]
        made = {
            f"cache.{layer}.{bank}": prod(self.bank_shape(bank)) * item
            for layer in range(decoder.num_layers)
            for bank in BANKS
        }
        made["visual_embeds"] = self.batch * self._capacities.max_visual_tokens * decoder.hidden_size * item
        made["logits"] = self.batch * decoder.vocab_size * ITEM_SIZE["float32"]
        return made | {
            "step": self.step.nbytes,
            "next": self.step.nbytes,
            "chunk": self.chunk.nbytes,
            "page": self.page.nbytes,
        }

    def bank_shape(self, bank: str, batch: int | None = None) -> tuple[int, ...]:
        """[B,KV,rows,D] of a bank as an engine sees it."""
        decoder, kind = self._decoder, bank.split("_")[0]
        pages = self.batch if batch is None else batch
        return (pages, decoder.num_key_value_heads, self.bank_rows[kind], decoder.head_dim)

    def place(self, role: RoleName, tensor: TensorRecord) -> Place:
        """Where a tensor of a decoder engine lies; EngineError for one that this version does not know."""
        name, reads = tensor.name, tensor.mode == "input"
        kind, _, bank = name.partition(".")
        if kind == ("past" if reads else "present") and self._is_bank(bank):
            return Place(f"cache.{bank}")
        if reads and name in ("visual_slots", "text_slots", "fixation_slots"):
            return Place("page", self.page.offsets["slots"])
        if not reads and name == "logits":
            return Place("logits")
        if not reads and name == "fixation":
            return Place("next", self.step.offsets["fixation"])
        if not reads and name.startswith("next_") and name[5:] in self.step.offsets:
            return Place("next", self.step.offsets[name[5:]])
        if reads and name == "visual_embeds":
            return Place("visual_embeds")
        if reads and role == "prefill" and name in self._PREFILL:
            block, field = self._PREFILL[name]
            return Place(block, getattr(self, block).offsets[field])
        if reads and role == "decode":
            for block in ("step", "page"):
                if name in self._DECODE[block]:
                    return Place(block, getattr(self, block).offsets[name])
        raise EngineError(f"the engine has the {tensor.mode} {name!r}, which this version of fastocr-trt does not know")

    # A chunk of prefill advances nothing by itself and keeps no fixation, but it hands on what it found.
    _PREFILL = {  # noqa: RUF012
        **{
            name: ("chunk", name)
            for name in ("input_ids", "position_ids", "visual_length", "text_length", "visual_valid", "text_valid")
        },
        "active": ("page", "zeros"),
        "num_fixations": ("page", "zeros"),
        "attend_all": ("page", "one"),
        "fixation": ("step", "fixation"),
        "status": ("step", "status"),
    }
    _DECODE = {  # noqa: RUF012
        "step": ("status", "input_ids", "position_ids", "text_length", "text_valid", "fixation"),
        "page": ("visual_length", "visual_valid", "active", "num_fixations", "attend_all"),
    }

    def shape(self, name: str, sizes: Sizes) -> tuple[int, ...]:
        """Shape of a decoder engine's input at a call of these sizes."""
        batch, rows = sizes.batch, sizes.rows
        if name.startswith("past."):
            return self.bank_shape(name.rsplit(".", 1)[1], batch)
        if name in ("input_ids", "visual_valid", "text_valid"):
            return (batch, rows)
        if name in ("attend_all", "status"):
            return (1,)
        shapes = {
            "position_ids": (3, batch, rows),
            "visual_embeds": (sizes.embeds, self._decoder.hidden_size),
            "visual_slots": (sizes.visual_slots,),
            "text_slots": (sizes.text_slots,),
            "fixation_slots": (sizes.fixation,),
            "fixation": (batch, self._decoder.num_key_value_heads, sizes.fixation),
        }
        return shapes.get(name, (batch,))

    def prefill_rows(self, rows: int, least: int) -> int:
        """Rows that a chunk of `rows` is padded to; least: the fewest that the profile takes."""
        return max(rows, min(_up(max(rows, least), CHUNK_BUCKET), self._capacities.prefill_chunk))

    def prefill_sizes(self, batch: int, rows: int, visual: int, text: int, embeds: int) -> Sizes:
        """Of a chunk of `prefill_rows`: visual, text are the largest valid counts of the batch."""
        return Sizes(batch, rows, 1, self._bucket("visual", visual), self._bucket("text", text), embeds)

    def decode_sizes(self, batch: int, fixation: int, visual: int, text: int, most: int | None = None) -> Sizes:
        """Of a step: as prefill_sizes, and fixation, the largest of num_fixations. It reads no visual_embeds.

        most: the longest fixation_slots that the profile takes.
        """
        slots = self._bucket("visual", visual)
        limit = slots if most is None else min(slots, most)
        k = max(1, fixation, min(_up(max(1, fixation), FIXATION_BUCKET), limit))
        return Sizes(batch, 1, k, slots, self._bucket("text", text), 1)

    def _bucket(self, kind: str, rows: int) -> int:
        capacities = self._capacities
        most = capacities.max_visual_tokens if kind == "visual" else capacities.max_text_tokens
        return max(rows, min(_up(max(1, rows), SLOT_BUCKET), most))

    def closing_bytes(self, sizes: Sizes) -> int:
        """How much of `next` a step copies over `step`."""
        fixation = prod(self.shape("fixation", sizes)) * ITEM_SIZE["int64"]
        return self.step.offsets["fixation"] + fixation

    def fetched_bytes(self) -> int:
        """How much of `step` the host reads after a step: the status, and at TOKENS_HEAD a token per page."""
        return TOKENS_HEAD + self.batch * ITEM_SIZE["int64"]

    def check_tensors(self, engine: str, tensors: Iterable[TensorRecord]) -> None:
        """EngineError where an engine's tensor has another dtype or other fixed sizes than the manifest says.

        Bound as they are, such tensors would be read and written beyond their buffers.
        """
        if engine == "vision":
            self._check_vision(tensors)
            return
        chunk = self._capacities.prefill_chunk
        embeds = self.batch * self._capacities.max_visual_tokens
        most = Sizes(self.batch, chunk, self._capacities.max_visual_tokens, *self.bank_rows.values(), embeds)
        for tensor in tensors:
            self.place("decode" if tensor.name not in self._PREFILL else "prefill", tensor)
            floating = tensor.name == "visual_embeds" or tensor.name.startswith(("past.", "present."))
            wanted = self._dtype if floating else "float32" if tensor.name == "logits" else "int64"
            shape = self._full_shape(tensor, most)
            fits = len(shape) == len(tensor.shape) and all(
                size in (-1, want) or (free and 0 < size <= want)
                for size, (want, free) in zip(tensor.shape, shape, strict=True)
            )
            if tensor.dtype != wanted or not fits:
                raise EngineError(
                    f"the engine {engine} has {tensor.name} as {tensor.dtype} {list(tensor.shape)}, and the manifest "
                    f"says {wanted} {[want for want, _ in shape]}"
                )

    def _check_vision(self, tensors: Iterable[TensorRecord]) -> None:
        hidden = self._decoder.hidden_size
        found = next((t for t in tensors if (t.name, t.mode) == ("visual_embeds", "output")), None)
        if found is None:
            raise EngineError("the engine vision has no output visual_embeds, which the manifest says it gives")
        if found.dtype != self._dtype or len(found.shape) != 2 or found.shape[1] not in (-1, hidden):
            raise EngineError(
                f"the engine vision has visual_embeds as {found.dtype} {list(found.shape)}, and the manifest says "
                f"{self._dtype} {[-1, hidden]}"
            )

    def _full_shape(self, tensor: TensorRecord, most: Sizes) -> list[tuple[int, bool]]:
        """The largest size of each axis, and whether a call may have a smaller one."""
        name, step = tensor.name, Sizes(most.batch, 1, most.fixation, 0, 0, 0)
        if name == "logits":
            return [(most.batch, True), (self._decoder.vocab_size, False)]
        if name.startswith(("past.", "present.")):
            pages, *rest = self.bank_shape(name.rsplit(".", 1)[1])
            return [(pages, True), *((size, False) for size in rest)]
        shape = self.shape(name.removeprefix("next_"), step if name.startswith("next_") else most)
        fixed = {"visual_embeds": 1, "position_ids": 0, "next_position_ids": 0, "fixation": 1, "next_fixation": 1}
        return [(size, axis != fixed.get(name)) for axis, size in enumerate(shape)]

    def _is_bank(self, text: str) -> bool:
        layer, _, bank = text.partition(".")
        return bank in BANKS and layer.isdigit() and int(layer) < self._decoder.num_layers


def aligned(nbytes: int) -> int:
    return _up(nbytes, ALIGNMENT)


def numpy_type(dtype: str) -> type:
    """The numpy type of a tensor's items; bfloat16 travels as its bits."""
    return {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int64": np.int64}[dtype]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
