"""Drive dense.onnx and fast.onnx by hand, chunk by chunk, without the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort


def open_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class DecoderRunner:
    """One page in an engine's decoder. Banks have `rows` rows each; they are replaced, not written in place."""

    def __init__(self, directory: Path, visual_embeds: np.ndarray, rows: int = 64):
        self.sessions = {name: open_session(directory / f"{name}.onnx") for name in ("dense", "fast")}
        self.visual_embeds = visual_embeds
        self.length = {"visual": 0, "text": 0}
        self.banks = {
            put.name: np.zeros((1, put.shape[1], rows, put.shape[3]), np.float32)
            for put in self.sessions["dense"].get_inputs()
            if put.name.startswith("past.")
        }

    def copy(self) -> DecoderRunner:
        other = object.__new__(DecoderRunner)
        other.sessions, other.visual_embeds = self.sessions, self.visual_embeds
        other.length, other.banks = dict(self.length), dict(self.banks)
        return other

    def feed(self, graph: str, ids: np.ndarray, positions: np.ndarray, count: int = 1, fixation=None) -> dict:
        """Feed a chunk of one kind: ids [n], positions [3,n]; count: rows of a fixation. Gives outputs by name."""
        n, kind = len(ids), "visual" if ids[0] < 0 else "text"
        steps = np.arange(1, n + 1)
        valid = {bank: self.length[bank] + (steps if bank == kind else 0 * steps) for bank in self.length}
        feeds = {
            "input_ids": ids[None],
            "visual_embeds": self.visual_embeds,
            "position_ids": positions[:, None],
            "num_fixations": np.array([count]),
            "fixation_slots": np.arange(count),
            "active": np.array([1]),
            "fixation": fixation,
            **self.banks,
        }
        for bank in self.length:
            feeds[f"{bank}_length"] = np.array([self.length[bank]])
            feeds[f"{bank}_valid"] = valid[bank][None]
            feeds[f"{bank}_slots"] = np.arange(max(1, valid[bank][-1]))
        session = self.sessions[graph]
        names = [put.name for put in session.get_outputs()]
        feeds = {put.name: np.ascontiguousarray(feeds[put.name]) for put in session.get_inputs()}
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        for name in names:
            if name.startswith("present."):
                self.banks[name.replace("present", "past")] = outputs.pop(name)
        self.length[kind] += n
        return outputs
