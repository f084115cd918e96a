"""SnapKV-style eviction at prefill, as a baseline: keep what the prompt attended most, drop the rest of the page.

After prefill the last `window` prompt rows (the text after the image) vote: per layer and KV head, the k visual rows
with the largest softmax mass, summed over those rows and the heads of the group, max-pooled along the page's raster
order as SnapKV does. Only these rows stay in the visual bank; decoding is dense over them. Keys carry their positions,
so that rows can be moved.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from fastocr_trt.manifest import Manifest
from fastocr_trt.runtime.onnxruntime_session import OnnxRuntimeSession

WINDOW = 32
POOL = 7


class EvictingSession(OnnxRuntimeSession):
    """A session that keeps, of each page, num_fixations visual rows a layer and KV head, chosen once."""

    def __init__(
        self, directory: Path, manifest: Manifest, threads: int | None = None, window: int = WINDOW, pool: int = POOL
    ) -> None:
        super().__init__(directory, manifest, "cpu", threads)
        self.window, self.pool = window, pool
        self._observer, self._query_names, self._scale = _observer(directory / manifest.files["dense"].file, threads)

    def begin(self, visual_embeds: np.ndarray, num_fixations: np.ndarray) -> None:
        if len(num_fixations) != 1:
            raise ValueError("eviction reads one page at a time")
        super().begin(visual_embeds, num_fixations)
        self._kept = max(1, int(num_fixations[0]))
        self._tail: list[tuple[np.ndarray, np.ndarray]] = []

    def prefill(self, kind: str, input_ids: np.ndarray, position_ids: np.ndarray, counts: np.ndarray) -> None:
        super().prefill(kind, input_ids, position_ids, counts)
        self._tail = [*self._tail, (input_ids, position_ids)] if kind == "text" else []

    def finish_prefill(self, input_ids: np.ndarray, position_ids: np.ndarray) -> None:
        super().finish_prefill(input_ids, position_ids)
        self._tail.append((input_ids, position_ids))
        ids = np.concatenate([ids for ids, _ in self._tail], axis=1)[:, -self.window :]
        positions = np.concatenate([p for _, p in self._tail], axis=2)[:, :, -self.window :]
        self._evict(self._observe(ids, positions))

    def _observe(self, ids: np.ndarray, positions: np.ndarray) -> list[np.ndarray]:
        """Queries [H,n,D] of the window's rows, per layer: its rows once more, over the finished prompt."""
        rows = ids.shape[1]
        start = self._text_length - rows
        feeds = {
            "input_ids": ids,
            "position_ids": positions,
            "visual_embeds": self._visual_embeds.array,
            "visual_length": self._visual_length,
            "text_length": start,
            "visual_valid": np.repeat(self._visual_length[:, None], rows, 1),
            "text_valid": start[:, None] + np.arange(1, rows + 1)[None],
            "visual_slots": np.arange(self._visual_length[0]),
            "text_slots": np.arange(self._text_length[0]),
            "num_fixations": np.zeros(1, np.int64),
            "fixation_slots": np.arange(1),
            "active": np.zeros(1, np.int64),
        }
        feeds |= {f"past.{bank}": value.numpy() for bank, value in self._cache.items()}
        wanted = {node.name for node in self._observer.get_inputs()}
        queries = self._observer.run(self._query_names, {k: v for k, v in feeds.items() if k in wanted})
        return [query[0] for query in queries]

    def _evict(self, queries: list[np.ndarray]) -> None:
        visual, text = int(self._visual_length[0]), int(self._text_length[0])
        kept = min(self._kept, visual)
        banks = {name: value.numpy()[0] for name, value in self._cache.items()}
        for layer, query in enumerate(queries):
            keys = [banks[f"{layer}.visual_key"][:, :visual], banks[f"{layer}.text_key"][:, :text]]
            votes = visual_votes(query, *keys, self._scale)
            chosen = np.sort(np.argsort(-_max_pool(votes, self.pool), axis=1, kind="stable")[:, :kept])
            for bank in (banks[f"{layer}.visual_key"], banks[f"{layer}.visual_value"]):
                bank[:, :kept] = np.take_along_axis(bank, chosen[:, :, None], axis=1)
        self._visual_length = np.array([kept])
        self._visual = {
            "visual_length": self.device.put(self._visual_length),
            "visual_valid": self.device.put(self._visual_length[:, None].copy()),
            "visual_slots": self._slots(kept),
        }
        self._bindings.clear()
        self._bound_slots.clear()


def visual_votes(query: np.ndarray, visual_key: np.ndarray, text_key: np.ndarray, scale: float) -> np.ndarray:
    """[KV,visual rows]: softmax mass of the query rows, which are the last rows of the text, summed by KV head.

    query [H,n,D]; visual_key [KV,Nv,D]; text_key [KV,Nt,D], the query rows' own keys last.
    """
    kv_heads, visual = visual_key.shape[:2]
    rows, text = query.shape[1], text_key.shape[1]
    grouped = query.reshape(kv_heads, -1, rows, query.shape[2])
    keys = np.concatenate([visual_key, text_key], axis=1)
    scores = np.einsum("ghnd,gsd->ghns", grouped, keys) * scale
    seen = np.arange(visual + text)[None] < visual + text - rows + 1 + np.arange(rows)[:, None]
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights[..., :visual].sum((1, 2))


def _max_pool(votes: np.ndarray, size: int) -> np.ndarray:
    """Largest of the `size` neighbours of each entry along axis 1; ties are settled by the entry's own vote."""
    if size <= 1:
        return votes
    padded = np.pad(votes, ((0, 0), (size // 2, size // 2)), constant_values=-np.inf)
    pooled = np.lib.stride_tricks.sliding_window_view(padded, size, axis=1).max(-1)
    return pooled + 1e-6 * votes


def _observer(path: Path, threads: int | None) -> tuple[ort.InferenceSession, list[str], float]:
    """The dense graph with each layer's queries as further outputs; their names; the attention's scale."""
    model = onnx.load(path, load_external_data=False)
    ops = [node for node in model.graph.node if node.domain == "fastocr"]
    if not ops:
        raise ValueError(f"{path} has no fastocr ops: it was exported with its functions inlined")
    names = [node.input[0] for node in ops]
    element = next(i.type.tensor_type.elem_type for i in model.graph.input if i.name.startswith("past."))
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, element, None) for name in names)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    for name, content in _external_files(model, path.parent).items():
        options.add_external_initializers_from_files_in_memory([name], [content], [len(content)])
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    scale = next(a.f for a in ops[0].attribute if a.name == "scale")
    return session, names, scale


def _external_files(model: onnx.ModelProto, directory: Path) -> dict[str, bytes]:
    """Content of the weight files that the model's initializers lie in, by name."""
    places = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    names = {entry.value for entry in places if entry.key == "location"}
    return {name: (directory / name).read_bytes() for name in names}
