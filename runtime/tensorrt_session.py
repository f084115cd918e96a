"""TensorRT and TensorRT-RTX: engines whose state lives in device buffers, a decode step that is one graph launch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from ..backends import BackendRecord, TensorRecord
from ..counts import plural
from ..errors import EngineError, PageError
from ..manifest import Manifest
from ..reference import (
    STATUS_FIXATION_OUT_OF_RANGE,
    STATUS_TEXT_BANK_FULL,
    STATUS_VALID_OUT_OF_RANGE,
    STATUS_VISUAL_BANK_FULL,
)
from .cache import check_room, chunk_valid
from .cuda_memory import OUT_OF_MEMORY, Cuda, CudaError, Memory, view
from .session import Mode
from .tensorrt_call import Call
from .tensorrt_library import Engines, Library
from .tensorrt_plan import DTYPES, ITEM_SIZE, TOKENS_HEAD, Plan, Role, Roles, Sizes, aligned, numpy_type

GROUP_SIZE = 8
SCRATCH, RING = "working memory", "ring"
VISION_INPUTS = ("pixel_values", "rotary_positions", "window_rows", "window_inverse")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _while_open(
    method: Callable[Concatenate[TensorRTSession, Arguments], Result],
) -> Callable[Concatenate[TensorRTSession, Arguments], Result]:
    """A method that uses what `close` gives back: EngineError once that is gone, and no `close` while it runs."""

    @wraps(method)
    def checked(self: TensorRTSession, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self._lock:
            if not self._release.alive:
                raise EngineError("the engine was closed and holds nothing on the GPU any more; load it again to read")
            return method(self, *arguments, **named)

    return checked


class TensorRTSession:
    """A `GroupedSession` on the engines of one backend. Not for two threads at once; several may live in one process.
    Another thread may close it: what is being read then ends with an EngineError.

    library: the backend, whose engines the manifest holds. group_size: decode steps that are queued before the host
    looks at their tokens. Everything held on the GPU is given back by `close`, by leaving a `with`, or where the
    constructor fails. Raises EngineError with the way out.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        library: Library,
        group_size: int = GROUP_SIZE,
    ) -> None:
        record = BackendRecord.from_dict(library.backend, manifest.backends[library.backend])
        self.manifest = manifest
        self.group_size = group_size
        self._library = library
        self._plan: Plan | None = None
        self._calls: dict[Role, Call] = {}
        self._tensors: dict[str, list[TensorRecord]] = {}
        self._sizes: dict[Role, Sizes] = {}
        self._lock = threading.RLock()
        self._stack = ExitStack()  # its callbacks hold no reference to the session, which may just be dropped
        self._release = weakref.finalize(self, self._stack.close)
        try:
            self._open(directory, record)
        except BaseException:
            self.close()
            raise

    def _open(self, directory: Path, record: BackendRecord) -> None:
        self._cuda = Cuda(self._library.cudart)
        self._stack.callback(self._cuda.close)
        self._memory = Memory(self._cuda)
        self._stack.callback(self._memory.close)
        self._roles = roles = Roles.of(record.engines)
        self._engines = Engines(self._library, directory, record)
        self._stack.callback(self._engines.close)
        self._stack.callback(_close, self._calls)
        check = Plan(self.manifest, self.manifest.capacities.max_batch)
        for name, file in record.engines.items():
            self._engines.check_profiles(name, file)
            self._tensors[name] = self._engines.tensors(name)
            check.check_tensors(name, self._tensors[name])
        scratch = max(self._engines.working_memory(role) for role in roles.all())
        self._allocate({SCRATCH: scratch}, "the engines' working memory", self._lower_capacities())
        shared = (self._memory.address(SCRATCH), scratch)
        for role in roles.all():
            context = self._engines.context(role, shared, int(self._cuda.stream))
            name = f"{role.engine} ({role.name})"
            self._calls[role] = Call(self._cuda, context, name, self._engines.because, role.name == "decode")
        self._cuda.wait()
        self._least_rows = self._engines.smallest(roles.prefill, "input_ids")[1]
        self._most_fixations = self._engines.largest(roles.fast, "fixation_slots")[0]
        self._attends = any(t.name == "attend_all" for t in self._tensors[roles.fast.engine])

    def close(self) -> None:
        """Give back everything on the GPU. The session is of no use afterwards; a second call does nothing."""
        with self._lock:
            self._release()

    def __enter__(self) -> TensorRTSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The Session protocol.

    @_while_open
    def encode_image(
        self,
        pixel_values: np.ndarray,
        rotary_positions: np.ndarray,
        window_rows: np.ndarray,
        window_inverse: np.ndarray,
    ) -> np.ndarray:
        feeds = dict(zip(VISION_INPUTS, (pixel_values, rotary_positions, window_rows, window_inverse), strict=True))
        call, dtype = self._calls[self._roles.vision], DTYPES[self.manifest.dtype]
        rows = len(pixel_values) // self.manifest.vision.spatial_merge_size**2
        shape = (rows, self.manifest.decoder.hidden_size)
        known = {t.name: t for t in self._tensors["vision"]}
        feeds = {name: self._as(known[name].dtype, value) for name, value in feeds.items() if name in known}
        needs = {f"vision.{name}": value.nbytes for name, value in feeds.items()}
        needs["vision.visual_embeds"] = rows * shape[1] * ITEM_SIZE[dtype]
        self._allocate(needs, f"a picture of {plural(rows, 'visual token')}", "make the picture smaller")
        call.bind({name.partition(".")[2]: self._memory.address(name) for name in needs})
        call.shape({name: value.shape for name, value in feeds.items()})
        for name, value in feeds.items():
            self._cuda.write(self._memory.address(f"vision.{name}"), value)
        call.run()
        return _widen(self._cuda.read(self._memory.address("vision.visual_embeds"), shape, numpy_type(dtype)), dtype)

    @_while_open
    def begin(self, visual_embeds: np.ndarray, num_fixations: np.ndarray) -> None:
        batch = len(num_fixations)
        if self._plan is None or self._plan.batch < batch:
            self._make_buffers(batch)
        self._batch, self._embeds = batch, len(visual_embeds)
        plan, cuda = self._plan, self._cuda
        for name in plan.buffers():
            if name.startswith("cache.") or name in ("step", "next"):
                cuda.zero(self._memory.address(name), self._memory.size(name))  # a masked row must be a finite number
        page = {"num_fixations": num_fixations, "active": np.ones(batch), "zeros": np.zeros(batch), "attend_all": [0]}
        page |= {"one": [1], "slots": np.arange(max(plan.bank_rows.values()))}
        self._write("page", page)
        self._attending = False
        cuda.write(self._memory.address("visual_embeds"), self._as(DTYPES[self.manifest.dtype], visual_embeds))
        self._fixations = int(num_fixations.max())
        self._active = np.ones(batch, np.int64)
        self._visual_length = np.zeros(batch, np.int64)
        self._text_length = np.zeros(batch, np.int64)

    @_while_open
    def prefill(self, kind: str, input_ids: np.ndarray, position_ids: np.ndarray, counts: np.ndarray) -> None:
        plan, role = self._plan, self._roles.prefill
        rows = plan.prefill_rows(input_ids.shape[1], self._least_rows)
        check_room(plan.bank_rows, self._visual_length, self._text_length, rows)
        padding = (0, rows - input_ids.shape[1])
        visual, text = chunk_valid(kind, self._visual_length, self._text_length, counts, rows)
        chunk = {
            "input_ids": np.pad(input_ids, ((0, 0), padding), mode="edge"),
            "position_ids": np.pad(position_ids, ((0, 0), (0, 0), padding), mode="edge"),
            "visual_length": self._visual_length,
            "text_length": self._text_length,
            "visual_valid": visual,
            "text_valid": text,
        }
        sizes = plan.prefill_sizes(self._batch, rows, int(visual.max()), int(text.max()), self._embeds)
        self._shape(role, sizes)
        self._write("chunk", chunk)
        status = ITEM_SIZE["int64"]
        self._calls[role].run(lambda: self._cuda.copy(self._at("step"), self._at("next"), status))
        if kind == "visual":
            self._visual_length = self._visual_length + counts
        else:
            self._text_length = self._text_length + counts

    @_while_open
    def finish_prefill(self, input_ids: np.ndarray, position_ids: np.ndarray) -> None:
        self._write(
            "step",
            {
                "input_ids": input_ids,
                "position_ids": position_ids,
                "text_length": self._text_length,
                "text_valid": self._text_length + 1,
            },
        )
        self._write("page", {"visual_length": self._visual_length, "visual_valid": self._visual_length})
        self.step("dense")

    @_while_open
    def step(self, mode: Mode) -> None:
        self._queue(mode, 0)
        self._fetched = 1

    @_while_open
    def steps(self, mode: Mode, count: int) -> np.ndarray:
        if not 1 <= count <= self.group_size:
            raise ValueError(f"{count} steps at once; a group is 1 to {self.group_size}")
        for place in range(count):
            self._queue(mode, place)
        self._fetched = count
        return self._tokens()

    @_while_open
    def next_tokens(self) -> np.ndarray:
        return self._tokens()[-1]

    @_while_open
    def logits(self) -> np.ndarray:
        shape = (self._batch, self.manifest.decoder.vocab_size)
        return self._cuda.read(self._at("logits"), shape, np.float32)

    @_while_open
    def choose(self, tokens: np.ndarray) -> None:
        self._write("step", {"input_ids": tokens})

    @_while_open
    def set_active(self, active: np.ndarray) -> None:
        self._active = active.astype(np.int64)
        self._write("page", {"active": self._active})

    @_while_open
    def fixation(self) -> np.ndarray:
        sizes = self._decode_sizes()
        shape = self._plan.shape("fixation", sizes)
        return self._cuda.read(self._at("step", "fixation"), shape, np.int64)

    # Steps.

    def _queue(self, mode: Mode, place: int) -> None:
        """Give the stream one step, and the fetch of its status and tokens into a place of the ring."""
        check_room(self._plan.bank_rows, self._visual_length, self._text_length, 1)
        role = self._roles.mode(mode)
        if self._attends and self._attending != (mode == "dense"):
            self._attending = mode == "dense"
            source = "one" if self._attending else "zeros"
            self._cuda.copy(self._at("page", "attend_all"), self._at("page", source), ITEM_SIZE["int64"])
        sizes = self._decode_sizes()
        self._shape(role, sizes)
        closing = self._plan.closing_bytes(sizes)
        self._calls[role].run(lambda: self._cuda.copy(self._at("step"), self._at("next"), closing))
        nbytes = self._plan.fetched_bytes()
        self._cuda.fetch(self._memory.address(RING) + place * aligned(nbytes), self._at("step"), nbytes)
        self._text_length = self._text_length + self._active

    def _decode_sizes(self) -> Sizes:
        text = int(self._text_length.max()) + 1
        return self._plan.decode_sizes(
            self._batch, self._fixations, int(self._visual_length.max()), text, self._most_fixations
        )

    def _tokens(self) -> np.ndarray:
        """[steps, B] of the steps last queued, once they are done; PageError where one found that something is full."""
        self._cuda.wait()
        row = aligned(self._plan.fetched_bytes()) // ITEM_SIZE["int64"]
        ring = view(self._memory.address(RING), (self.group_size, row), np.int64)[: self._fetched]
        if status := int(np.bitwise_or.reduce(ring[:, 0])):
            raise self._refusal(status)
        first = TOKENS_HEAD // ITEM_SIZE["int64"]
        return ring[:, first : first + self._batch].copy()

    def _refusal(self, status: int) -> PageError:
        capacities = self.manifest.capacities
        build = f"build the engines again with `fastocr-export ENGINE_DIR --backend {self._library.backend}`"
        if status & STATUS_VISUAL_BANK_FULL:
            return PageError(
                f"the visual bank is full: it holds {plural(capacities.max_visual_tokens, 'visual token')} a page; "
                "make the page smaller, or export with a larger --max-visual-tokens"
            )
        if status & STATUS_TEXT_BANK_FULL:
            return PageError(
                f"the text bank is full: it holds {plural(capacities.max_text_tokens, 'text token')} a page; lower "
                "--max-new-tokens, or export with a larger --max-text-tokens"
            )
        if status & STATUS_FIXATION_OUT_OF_RANGE:
            return PageError(f"a fixation named a row beyond its page, so the text would be wrong; {build}")
        if status & STATUS_VALID_OUT_OF_RANGE:
            return PageError(
                f"a count of valid rows passed its bank of {capacities.max_visual_tokens:,} visual or "
                f"{capacities.max_text_tokens:,} text tokens, so the text would be wrong; {build}"
            )
        return PageError(f"the engine gave the status {status}, which this version does not know; {build}")

    # Buffers.

    def _make_buffers(self, batch: int) -> None:
        """Allocate for batches of up to `batch` pages, and bind the decoder's tensors; the old buffers go first."""
        if self._plan is not None:
            old, self._plan = self._plan, None
            self._cuda.wait()
            self._memory.free(*old.buffers())
        self._memory.free(RING)
        plan = Plan(self.manifest, batch)
        self._allocate(
            plan.buffers(), f"a batch of {batch}", "read fewer pages at once, or " + self._lower_capacities()
        )
        self._memory.pin(RING, self.group_size * aligned(plan.fetched_bytes()))
        for role, call in self._calls.items():
            if role.name != "vision":
                places = {t.name: plan.place(role.name, t) for t in self._tensors[role.engine]}
                call.bind({name: self._memory.address(p.buffer) + p.offset for name, p in places.items()})
        self._plan = plan

    def _allocate(self, sizes: dict[str, int], purpose: str, advice: str) -> None:
        """Reserve device memory; where it does not fit all of it is freed again, and EngineError tells the sizes."""
        try:
            for name, nbytes in sizes.items():
                self._memory.reserve(name, nbytes)
        except CudaError as error:
            self._memory.free(*sizes)
            if error.code != OUT_OF_MEMORY:
                raise
            free, total = self._cuda.free_and_total()
            cache = sum(nbytes for name, nbytes in sizes.items() if name.startswith("cache."))
            share = f" ({_gib(cache)} of it the KV cache)" if cache else ""
            raise EngineError(
                f"the GPU has {_gib(free)} of {_gib(total)} free, and {purpose} takes {_gib(sum(sizes.values()))}"
                f"{share}; {advice}, or end what else uses the GPU"
            ) from None

    def _lower_capacities(self) -> str:
        room = self.manifest.capacities
        return (
            f"export with a smaller --max-visual-tokens (now {room.max_visual_tokens:,}), --max-text-tokens "
            f"({room.max_text_tokens:,}) or --max-batch ({room.max_batch})"
        )

    def _at(self, buffer: str, field: str | None = None) -> int:
        offset = 0 if field is None else getattr(self._plan, buffer).offsets[field]
        return self._memory.address(buffer) + offset

    def _write(self, buffer: str, fields: dict[str, object]) -> None:
        for field, value in fields.items():
            self._cuda.write(self._at(buffer, field), np.asarray(value, np.int64))

    def _shape(self, role: Role, sizes: Sizes) -> None:
        if self._sizes.get(role) == sizes:
            return
        self._sizes.pop(role, None)
        inputs = [t.name for t in self._tensors[role.engine] if t.mode == "input"]
        self._calls[role].shape({name: self._plan.shape(name, sizes) for name in inputs})
        self._sizes[role] = sizes

    @staticmethod
    def _as(dtype: str, value: np.ndarray) -> np.ndarray:
        """`value` in the type of an engine's input; a bfloat16's bits are the upper half of a float32's."""
        if dtype != "bfloat16":
            return np.ascontiguousarray(value, numpy_type(dtype))
        bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even


def _close(calls: dict[Role, Call]) -> None:
    for call in calls.values():
        call.close()
    calls.clear()


def _widen(value: np.ndarray, dtype: str) -> np.ndarray:
    """numpy has no bfloat16: its bits as float32, exactly."""
    return (value.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else value


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"
