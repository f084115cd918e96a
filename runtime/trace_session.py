"""An ONNX Runtime session that also tells how much each focal layer attended to every row of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from ..errors import EngineError
from ..manifest import Manifest
from .onnxruntime_session import OnnxRuntimeSession, choose_provider
from .trace_graph import attention_queries, with_outputs

FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"


class TracingSession(OnnxRuntimeSession):
    """As OnnxRuntimeSession, on graphs that give the focal layers' queries as further outputs.

    The scores are computed again on the host from these queries and the banks, which are in its memory on the CPU: so
    the whole page's mass is known, not only that of the fixation, and in dense mode too. traced_layers: the policy's
    focal layers.
    """

    def __init__(
        self, directory: Path, manifest: Manifest, threads: int | None = None, share_weights: bool | None = None
    ) -> None:
        super().__init__(directory, manifest, "cpu", threads, share_weights)
        self.traced_layers = manifest.policy.focal_layers
        self._scales: dict[int, float] = {}
        self._query_names: dict[str, list[str]] = {}

    def begin(self, visual_embeds: np.ndarray, num_fixations: np.ndarray) -> None:
        super().begin(visual_embeds, num_fixations)
        decoder, batch = self.manifest.decoder, len(num_fixations)
        shape = (batch, decoder.num_attention_heads, 1, decoder.head_dim)
        self._queries = [self.device.zeros(shape, self.manifest.dtype) for _ in self.traced_layers]

    def focal_masses(self) -> list[np.ndarray]:
        """Per page [F,KV,rows] float32: what each traced layer's softmax over all keys gave the page's visual rows at
        the last `step` or `finish_prefill`, mean over the query heads of a KV head. Its sum over rows is at most 1.

        Pages that were not active in that call are empty: [F,KV,0].
        """
        decoder = self.manifest.decoder
        kv_heads, layers = decoder.num_key_value_heads, len(self.traced_layers)
        pages = []
        for b, active in enumerate(self._called):
            visual, text = int(self._visual_length[b]) * active, int(self._text_length[b])
            masses = np.empty((layers, kv_heads, visual), np.float32)
            for i, layer in enumerate(self.traced_layers if active else ()):
                query = self._queries[i].array[b].reshape(kv_heads, -1, decoder.head_dim).astype(np.float32)
                banks = [
                    self._cache.array(layer, bank)[b, :, :rows].astype(np.float32, copy=False)
                    for bank, rows in (("visual_key", visual), ("text_key", text))
                ]
                scores = np.concatenate([query @ bank.transpose(0, 2, 1) for bank in banks], axis=2)
                scores *= self._scales[layer]
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                weights[..., :visual].mean(1, out=masses[i])
            pages.append(masses)
        return pages

    def _run_step(self, name: str) -> None:
        self._called = self._active_host.copy()
        super()._run_step(name)

    def _create(self, name: str, path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
        if name == "vision":
            return super()._create(name, path, options)
        model = path.read_bytes()
        queries = {query.layer: query for query in attention_queries(model)}
        missing = sorted(set(self.traced_layers) - set(queries))
        if missing:
            raise ValueError(f"the graph has no attention op of the focal layers {missing}")
        chosen = [queries[layer] for layer in self.traced_layers]
        self._query_names[name] = [query.name for query in chosen]
        self._scales = {query.layer: query.scale for query in chosen}
        options.add_session_config_entry(FOLDER_OF_WEIGHTS, str(path.parent))
        traced = with_outputs(model, self._query_names[name], self.manifest.dtype)
        return ort.InferenceSession(traced, options, providers=[self._provider])

    def _bind_step(self, name: str) -> ort.IOBinding:
        binding = super()._bind_step(name)
        for query, buffer in zip(self._query_names[name], self._queries, strict=True):
            binding.bind_ortvalue_output(query, buffer.value)
        return binding


def open_traced(
    directory: Path,
    manifest: Manifest,
    providers: Sequence[str],
    threads: int | None,
    share_weights: bool | None,
    backend: str,
) -> TracingSession:
    """A session that traces, all graphs loaded. EngineError where what is asked for has no traces."""
    if backend not in ("auto", "onnxruntime"):
        raise EngineError(f"backend {backend!r} gives no traces; read with `onnxruntime` where you want one")
    if choose_provider(providers, manifest.dtype) != "cpu":
        raise EngineError("a trace is recorded on the CPU only; use provider 'cpu' where you want one")
    session = TracingSession(directory, manifest, threads, share_weights)
    for graph in ("vision", "dense", "fast"):
        session.graph(graph)
    return session
