"""ONNX Runtime: graphs over one weights file, caches bound in place, a decode step that feeds itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from ..errors import EngineError
from ..manifest import REBUILD, Manifest
from .buffers import Buffer, Device
from .cache import TwoBankCache, chunk_valid
from .session import Mode

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
SLOT_BUCKET = 32  # text_slots grows by this many rows at a time: a new shape costs ONNX Runtime a new plan
SHARED_ABOVE = 512 * 2**20  # bytes of weights; below, a second copy is cheaper than slower batches
STEP_INPUTS = ("input_ids", "position_ids", "text_length", "text_valid")


class OnnxRuntimeSession:
    """A `Session` on ONNX Runtime. Not for two threads at once.

    share_weights: the graphs read one mapping of weights.bin and repack nothing; None does so for large models.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        provider: str = "cpu",
        threads: int | None = None,
        share_weights: bool | None = None,
    ) -> None:
        self.manifest = manifest
        self.device = Device(provider)
        self.logits_on_host = provider == "cpu"
        self._directory = directory
        self._threads = threads
        self._share_weights = _shares(manifest) if share_weights is None else share_weights
        self._provider = PROVIDERS[provider]
        self._graphs: dict[str, ort.InferenceSession] = {}
        self._inputs: dict[str, list[str]] = {}
        self._outputs: dict[str, list[str]] = {}
        self._cache: TwoBankCache | None = None
        self._arange = np.arange(max(manifest.capacities.bank_rows.values()))

    def graph(self, name: str) -> ort.InferenceSession:
        """The graph `vision`, `dense` or `fast`, loaded on first use."""
        if name not in self._graphs:
            path = self._directory / self.manifest.files[name].file
            try:
                options = _options(self._threads, self._share_weights, reuse=name != "vision")
                session = self._create(name, path, options)
            except Exception as error:  # ONNX Runtime raises a dozen unrelated types
                raise EngineError(f"ONNX Runtime cannot load {path}: {_first_line(error)}; {REBUILD}") from error
            _check_graph(name, session, self.manifest, path)
            self._graphs[name] = session
            self._inputs[name] = [i.name for i in session.get_inputs()]
            self._outputs[name] = [o.name for o in session.get_outputs()]
        return self._graphs[name]

    def _create(self, name: str, path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
        return ort.InferenceSession(str(path), options, providers=[self._provider])

    def encode_image(
        self,
        pixel_values: np.ndarray,
        rotary_positions: np.ndarray,
        window_rows: np.ndarray,
        window_inverse: np.ndarray,
    ) -> np.ndarray:
        feeds = {
            "pixel_values": pixel_values,
            "rotary_positions": rotary_positions,
            "window_rows": window_rows,
            "window_inverse": window_inverse,
        }
        session = self.graph("vision")
        return session.run(["visual_embeds"], {k: v for k, v in feeds.items() if k in self._inputs["vision"]})[0]

    def begin(self, visual_embeds: np.ndarray, num_fixations: np.ndarray) -> None:
        batch = len(num_fixations)
        if self._cache is None or self._cache.batch != batch:
            self._cache = None  # the old one goes before the new one comes
            shape, capacities = self.manifest.decoder, self.manifest.capacities
            self._cache = TwoBankCache(shape, capacities, batch, self.manifest.dtype, self.device)
        else:
            self._cache.clear()
        kv_heads, vocab = self.manifest.decoder.num_key_value_heads, self.manifest.decoder.vocab_size
        k = max(1, int(num_fixations.max()))
        zeros = self.device.zeros
        self._steps: list[dict[str, Buffer]] = [
            {
                "input_ids": zeros((batch, 1), "int64"),
                "position_ids": zeros((3, batch, 1), "int64"),
                "text_length": zeros((batch,), "int64"),
                "text_valid": zeros((batch, 1), "int64"),
                "fixation": zeros((batch, kv_heads, k), "int64"),
            }
            for _ in range(2)
        ]
        self._turn = 0
        self._logits = zeros((batch, vocab), "fp32")
        self._visual_embeds = self.device.put(visual_embeds)
        self._visual_length = np.zeros(batch, np.int64)
        self._text_length = np.zeros(batch, np.int64)
        self._active = self.device.put(np.ones(batch, np.int64))
        self._active_host = np.ones(batch, np.int64)
        self._fixations = {
            "num_fixations": self.device.put(num_fixations.astype(np.int64)),
            "fixation_slots": self._slots(k),
        }
        self._no_fixations = {
            "num_fixations": self.device.put(np.zeros(batch, np.int64)),
            "fixation_slots": self._slots(1),
        }
        self._bindings: dict[tuple[str, int], ort.IOBinding] = {}
        self._bound_slots: dict[tuple[str, int], int] = {}

    def prefill(self, kind: str, input_ids: np.ndarray, position_ids: np.ndarray, counts: np.ndarray) -> None:
        rows = input_ids.shape[1]
        self._cache.reserve(self._visual_length, self._text_length, rows)
        session = self.graph("dense")
        visual_valid, text_valid = chunk_valid(kind, self._visual_length, self._text_length, counts, rows)
        feeds = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "visual_length": self._visual_length,
            "text_length": self._text_length,
            "visual_valid": visual_valid,
            "text_valid": text_valid,
            "active": np.zeros_like(counts),
        }
        buffers = {name: self.device.put(value.astype(np.int64)) for name, value in feeds.items()}
        buffers |= self._no_fixations
        buffers["visual_embeds"] = self._visual_embeds
        buffers["visual_slots"] = self._slots(int(visual_valid.max()))
        buffers["text_slots"] = self._slots(int(text_valid.max()))
        binding = session.io_binding()
        self._bind_inputs("dense", binding, buffers)
        for name in self._outputs["dense"]:
            if not name.startswith("present."):
                binding.bind_output(name, self.device.kind)
        session.run_with_iobinding(binding)
        if kind == "visual":
            self._visual_length = self._visual_length + counts
        else:
            self._text_length = self._text_length + counts

    def finish_prefill(self, input_ids: np.ndarray, position_ids: np.ndarray) -> None:
        step = self._steps[self._turn]
        step["input_ids"].write(input_ids)
        step["position_ids"].write(position_ids)
        step["text_length"].write(self._text_length)
        step["text_valid"].write(self._text_length[:, None] + 1)
        self._visual = {
            "visual_length": self.device.put(self._visual_length),
            "visual_valid": self.device.put(self._visual_length[:, None].copy()),
            "visual_slots": self._slots(int(self._visual_length.max())),
        }
        self._run_step("dense")

    def step(self, mode: Mode) -> None:
        self._run_step(mode)

    def next_tokens(self) -> np.ndarray:
        return self._steps[self._turn]["input_ids"].read()[:, 0]

    def logits(self) -> np.ndarray:
        return self._logits.read()

    def choose(self, tokens: np.ndarray) -> None:
        self._steps[self._turn]["input_ids"].write(tokens[:, None])

    def set_active(self, active: np.ndarray) -> None:
        self._active_host = active.astype(np.int64)
        self._active.write(self._active_host)

    def fixation(self) -> np.ndarray:
        return self._steps[self._turn]["fixation"].read()

    def _run_step(self, name: str) -> None:
        """One graph call on the current step's buffers; its results are the other set's, whose turn it is then."""
        self._cache.reserve(self._visual_length, self._text_length, 1)
        session = self.graph(name)
        key = (name, self._turn)
        rows = int(self._text_length.max()) + 1
        slots = min(-(-rows // SLOT_BUCKET) * SLOT_BUCKET, self._cache.rows["text"])
        if key not in self._bindings:
            self._bindings[key] = self._bind_step(name)
        binding = self._bindings[key]
        if self._bound_slots.get(key) != slots:
            binding.bind_ortvalue_input("text_slots", self._slots(slots).value)
            self._bound_slots[key] = slots
        session.run_with_iobinding(binding)
        self._text_length = self._text_length + self._active_host
        self._turn = 1 - self._turn

    def _bind_step(self, name: str) -> ort.IOBinding:
        binding = self._graphs[name].io_binding()
        now, after = self._steps[self._turn], self._steps[1 - self._turn]
        buffers = {**now, **self._visual, **self._fixations, "active": self._active}
        buffers["visual_embeds"] = self._visual_embeds
        self._bind_inputs(name, binding, buffers)
        targets = {f"next_{field}": after[field] for field in (*STEP_INPUTS, "fixation")}
        targets |= {"fixation": after["fixation"], "logits": self._logits}
        for output in self._outputs[name]:
            if output in targets:
                binding.bind_ortvalue_output(output, targets[output].value)
        return binding

    def _bind_inputs(self, name: str, binding: ort.IOBinding, buffers: dict[str, Buffer]) -> None:
        """Bind the graph's plain inputs, and each bank as both `past.*` and `present.*`."""
        for field in self._inputs[name]:
            if field in buffers:
                binding.bind_ortvalue_input(field, buffers[field].value)
        outputs = set(self._outputs[name])
        for bank, value in self._cache.items():
            binding.bind_ortvalue_input(f"past.{bank}", value)
            if f"present.{bank}" in outputs:
                binding.bind_ortvalue_output(f"present.{bank}", value)

    def _slots(self, rows: int) -> Buffer:
        return self.device.put(self._arange[: max(1, rows)])


def choose_provider(providers: Sequence[str], dtype: str) -> str:
    """The first of `providers` that ONNX Runtime has here; EngineError where there is none, or it lacks the dtype."""
    if not isinstance(providers, (list, tuple)) or not providers or any(p not in PROVIDERS for p in providers):
        raise EngineError(f"providers is {providers!r}; it must be a list of one or more of {sorted(PROVIDERS)}")
    available = ort.get_available_providers()
    chosen = next((p for p in providers if PROVIDERS[p] in available), None)
    if chosen is None:
        raise EngineError(
            f"provider {providers[0]!r} needs {PROVIDERS[providers[0]]}, which this onnxruntime lacks (it has "
            f"{', '.join(available)}); install onnxruntime-gpu in its place, or use provider 'cpu'"
        )
    if chosen == "cpu" and dtype == "bf16":
        raise EngineError(
            "the engine is bf16, which ONNX Runtime's CPU kernels do not compute; export with --dtype fp32 for the "
            "CPU, or run it with provider 'cuda'"
        )
    return chosen


def _check_graph(name: str, session: ort.InferenceSession, manifest: Manifest, path: Path) -> None:
    """Raise EngineError where the graph is not the one that the manifest describes."""
    decoder, vision = manifest.decoder, manifest.vision
    number = {"fp32": "tensor(float)", "fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}[manifest.dtype]
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    wanted: dict[str, tuple[str, int, int]] = {}  # name -> type, axis, size there
    if name == "vision":
        wanted["pixel_values"] = ("tensor(float)", 1, width)
        wanted["visual_embeds"] = (number, 1, decoder.hidden_size)
    else:
        last = f"{decoder.num_layers - 1}.text_key"
        wanted[f"past.{last}"] = (number, 1, decoder.num_key_value_heads)
        wanted[f"present.{last}"] = (number, 3, decoder.head_dim)
        wanted["logits"] = ("tensor(float)", 1, decoder.vocab_size)
        if f"past.{decoder.num_layers}.text_key" in {i.name for i in session.get_inputs()}:
            raise EngineError(f"{path} has more layers than the manifest's {decoder.num_layers}; {REBUILD}")
    found = {v.name: v for v in (*session.get_inputs(), *session.get_outputs())}
    for value, (kind, axis, size) in wanted.items():
        if value not in found:
            raise EngineError(f"{path} has no {value}: it is not the {name} graph of this manifest; {REBUILD}")
        shape = found[value].shape
        if found[value].type != kind or axis >= len(shape) or shape[axis] != size:
            raise EngineError(
                f"{path} has {value} as {found[value].type} {shape}, and the manifest says {kind} with {size} in "
                f"place {axis}; {REBUILD}"
            )


def _shares(manifest: Manifest) -> bool:
    """Whether the graphs had better read the one mapped weights file than repack it, a copy each.

    Repacked weights help a batch, but double a large model's memory; a quantised matrix must be repacked, since ONNX
    Runtime computes with it a hundred times slower as it lies.
    """
    return manifest.weights is None and manifest.files["weights"].size > SHARED_ABOVE


def _options(threads: int | None, share_weights: bool, reuse: bool = True) -> ort.SessionOptions:
    """reuse: let a later tensor take an earlier one's memory, which is held until the last of them is done."""
    options = ort.SessionOptions()
    options.enable_mem_reuse = reuse
    if share_weights:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 3  # in-place banks draw a warning per call otherwise
    if threads is not None:
        options.intra_op_num_threads = threads
    # Shapes change every few steps and with every page: a plan kept per shape would grow without end.
    options.enable_mem_pattern = False
    return options


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
