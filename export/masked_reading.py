"""Pages read by the Hugging Face model itself while a method says, layer by layer, which keys a decode step may see.

Made for accuracy, not speed: every key is scored, and what a method leaves out is masked. So a dozen lines make a
method (`Method`), whatever it keeps, and all of them run on the same model, pages and prompt, before any export.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from ..errors import FastOCRError
from .attention import IMPLEMENTATION, TwoBankCache
from .transformers_reader import TransformersReader


@dataclass(frozen=True)
class Batch:
    """Pages read together.

    Columns (keys) are prompt text, the pages' visual tokens padded to the longest page's, prompt text, then what is
    written. visual: the visual columns; visual_length [B]; prompt: columns before the first token that is written.
    """

    num_layers: int
    visual: slice
    visual_length: Tensor
    prompt: int

    def visual_valid(self) -> Tensor:
        """[B,Nv] bool: real visual columns."""
        rows = torch.arange(self.visual.stop - self.visual.start, device=self.visual_length.device)
        return rows < self.visual_length[:, None]


class View:
    """One layer's attention at a decode step, before anything is masked; column c is the last one there is.

    query [B,KV,G,D]; keys [B,KV,c+1,D]; valid [B,c+1] bool.
    """

    def __init__(self, batch: Batch, query: Tensor, keys: Tensor, valid: Tensor, scale: float) -> None:
        self.batch = batch
        self.valid = valid
        self._query, self._keys, self._scale = query, keys, scale
        self._weights: Tensor | None = None
        self._scores: Tensor | None = None

    def scores(self) -> Tensor:
        """[B,KV,G,c+1] float32, -inf where a column is none."""
        if self._scores is None:
            scores = torch.einsum("bkgd,bksd->bkgs", self._query.float(), self._keys.float()) * self._scale
            self._scores = scores.masked_fill(~self.valid[:, None, None], float("-inf"))
        return self._scores

    def weights(self) -> Tensor:
        """[B,KV,G,c+1]: softmax over all columns, as dense attention has it."""
        if self._weights is None:
            self._weights = self.scores().softmax(-1)
        return self._weights

    def visual_mass(self) -> Tensor:
        """[B,KV,Nv]: softmax mass on the visual columns, summed over the query heads of the KV head."""
        return self.weights()[..., self.batch.visual].sum(2)

    def columns(self, visual: Tensor) -> Tensor:
        """[B,KV,c+1] bool: all text, and of the page what visual [B,KV,Nv] says."""
        batch, kv_heads = self._keys.shape[:2]
        mask = self.valid[:, None].repeat(1, kv_heads, 1)
        mask[..., self.batch.visual] &= visual.expand(batch, kv_heads, -1)
        return mask


class Method(Protocol):
    """What a decode step may see. `window`: how many of the last prompt rows `prefill` wants the attention of."""

    name: str
    window: int
    passes: int

    def begin(self, batch: Batch) -> None:
        """New pages."""
        ...

    def prefill(self, layer: int, weights: Tensor) -> None:
        """weights [B,KV,G,window,columns]: softmax of the last prompt rows; called where window is above 0."""
        ...

    def columns(self, layer: int, view: View) -> Tensor | None:
        """[B,KV,c+1] bool: the columns that the layer sees; None is all of them. Called once per layer and pass."""
        ...


class Dense:
    """Everything is seen."""

    name = "dense"
    window = 0
    passes = 1

    def begin(self, batch: Batch) -> None: ...

    def prefill(self, layer: int, weights: Tensor) -> None: ...

    def columns(self, layer: int, view: View) -> Tensor | None:
        return None


@dataclass
class Reading:
    """What was written of one page, without the stop token.

    mean_visual_reads: share of its visual columns that a decode step saw, mean over layers and steps.
    """

    text: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    mean_visual_reads: float = 1.0
    visual_tokens: int = 0


class _State:
    """Stands in for `attention.State`: keeps keys and values of all columns, and asks the method at every layer."""

    def __init__(self, method: Method, batch: Batch, valid: Tensor, room: int) -> None:
        self.method, self.batch = method, batch
        self.valid = torch.nn.functional.pad(valid, (0, room), value=True)
        self.column = 0  # where the next rows go
        self.watch: Callable[[int, View], None] | None = None
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.seen = torch.zeros(len(valid), dtype=torch.float64, device=valid.device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        pages, heads, rows, dim = query.shape
        kv_heads, end = key.shape[1], self.column + rows
        for store, new in ((self.keys, key), (self.values, value)):
            if layer not in store:
                store[layer] = new.new_zeros(pages, kv_heads, self.valid.shape[1], dim)
            store[layer][:, :, self.column : end] = new
        keys, values = self.keys[layer][:, :, :end], self.values[layer][:, :, :end]
        valid = self.valid[:, :end]
        if rows > 1:
            return self._prefill(layer, query, keys, values, valid, scale)
        grouped = query.view(pages, kv_heads, heads // kv_heads, dim)
        view = View(self.batch, grouped, keys, valid, scale)
        if self.watch:
            self.watch(layer, view)
        columns = self.method.columns(layer, view)
        if columns is None:
            weights, read = view.weights(), self.batch.visual_length.double()
        else:
            columns = columns & valid[:, None]
            weights = view.scores().masked_fill(~columns[:, :, None], float("-inf")).softmax(-1)
            read = columns[..., self.batch.visual].sum((1, 2)) / kv_heads
        self.seen += read / self.batch.visual_length.clamp(min=1)
        return torch.einsum("bkgs,bksd->bkgd", weights, values.float()).to(query.dtype).view(query.shape)

    def _prefill(self, layer, query, keys, values, valid, scale) -> Tensor:
        pages, _, rows, dim = query.shape
        causal = torch.ones(rows, rows, dtype=torch.bool, device=query.device).tril()
        mask = causal & valid[:, None]
        mask |= torch.eye(rows, dtype=torch.bool, device=query.device)  # a padding row sees itself: no NaN
        if window := min(self.method.window, rows):
            last = query[:, :, -window:].view(pages, keys.shape[1], -1, window, dim)
            scores = torch.einsum("bkgnd,bksd->bkgns", last.float(), keys.float()) * scale
            scores = scores.masked_fill(~mask[:, None, None, -window:], float("-inf"))
            self.method.prefill(layer, scores.softmax(-1))
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(query, keys, values, attn_mask=mask[:, None], scale=scale, enable_gqa=True)


class MaskedReader:
    """A Qwen2.5-VL- or Qwen2-VL-architecture checkpoint, read greedily under any `Method`.

    reader: its model (moved to `device`, its decoder's attention replaced), processors and template.
    """

    def __init__(self, reader: TransformersReader, device: str = "cpu") -> None:
        self.reader = reader
        self.device = torch.device(device)
        self.model = reader.model.to(self.device)
        self.language_model = self.model.model.language_model
        self.language_model.config._attn_implementation = IMPLEMENTATION

    @property
    def num_layers(self) -> int:
        return len(self.language_model.layers)

    @torch.inference_mode()
    def read(
        self,
        images: Sequence[Image.Image],
        prompt: str,
        method: Method,
        max_new_tokens: int,
        watch: Callable[[int, View], None] | None = None,
        advance: Callable[[Tensor], None] | None = None,
    ) -> list[Reading]:
        """Read pages (RGB) together, each up to max_new_tokens tokens.

        watch(layer, view) sees every layer of every decode step before the method does; advance(active [B] bool) is
        called after each step. Raises FastOCRError for pages that cannot be read together.
        """
        inputs = [self.reader.inputs(image, prompt) for image in images]
        batch, valid, embeds, positions = self._prompt(inputs)
        state = _State(method, batch, valid, max_new_tokens)
        method.begin(batch)
        logits = self._call(state, embeds, positions)
        state.watch = watch
        stops = torch.tensor(self.reader.stop_token_ids, device=self.device)
        position = positions.amax((0, 2)) + 1
        active = torch.ones(len(images), dtype=torch.bool, device=self.device)
        readings = [Reading("", visual_tokens=int(n)) for n in batch.visual_length]
        steps = torch.zeros(len(images), device=self.device)
        seen = torch.zeros_like(state.seen)
        embed = self.model.get_input_embeddings()
        for count in range(1, max_new_tokens + 1):
            tokens = logits.argmax(-1)
            stopped = torch.isin(tokens, stops)
            for b in active.nonzero()[:, 0].tolist():
                if stopped[b]:
                    readings[b].finish_reason = "stop"
                else:
                    readings[b].token_ids.append(int(tokens[b]))
            active &= ~stopped
            if not active.any() or count == max_new_tokens:
                break
            state.seen.zero_()
            for _ in range(method.passes):
                state.column = batch.prompt + count - 1
                logits = self._call(state, embed(tokens[:, None]), position.view(1, -1, 1).expand(3, -1, 1))
            seen += torch.where(active, state.seen / (method.passes * self.num_layers), 0.0)
            steps += active
            position = position + 1
            if advance:
                advance(active)
        for reading, share, count in zip(readings, seen.tolist(), steps.tolist(), strict=True):
            reading.text = self.reader.tokenizer.decode(reading.token_ids, skip_special_tokens=True)
            reading.mean_visual_reads = share / count if count else 1.0
        return readings

    def _call(self, state: _State, embeds: Tensor, positions: Tensor) -> Tensor:
        """One forward of the decoder; logits [B,vocab] of the last row, float32."""
        hidden = self.language_model(
            inputs_embeds=embeds,
            position_ids=positions,
            cache=TwoBankCache(state),
            use_cache=True,
            fastocr_state=state,
        ).last_hidden_state
        state.column += embeds.shape[1]
        return self.model.lm_head(hidden[:, -1]).float()

    def _prompt(self, inputs: Sequence[dict]) -> tuple[Batch, Tensor, Tensor, Tensor]:
        """The batch, valid [B,columns], embeds [B,columns,hidden], positions [3,B,columns] of the prompts."""
        marks = [i["mm_token_type_ids"][0].bool() for i in inputs]
        if not all(mark.any() for mark in marks):
            raise FastOCRError("a prompt without visual tokens has nothing to select from; give pages with an image")
        starts = [int(mark.nonzero()[0]) for mark in marks]
        counts = [int(mark.sum()) for mark in marks]
        tails = [len(m) - s - c for m, s, c in zip(marks, starts, counts, strict=True)]
        if len(set(starts)) > 1 or len(set(tails)) > 1:
            raise FastOCRError("pages that are read together must have one prompt")
        start, widest, tail = starts[0], max(counts), tails[0]
        columns = start + widest + tail
        hidden = self.language_model.config.hidden_size
        embeds = torch.zeros(len(inputs), columns, hidden, dtype=self.model.dtype, device=self.device)
        positions = torch.zeros(3, len(inputs), columns, dtype=torch.long, device=self.device)
        valid = torch.zeros(len(inputs), columns, dtype=torch.bool, device=self.device)
        for b, (data, count) in enumerate(zip(inputs, counts, strict=True)):
            data = {name: value.to(self.device) for name, value in data.items()}
            place = torch.cat([torch.arange(start + count), torch.arange(start + widest, columns)]).to(self.device)
            row = self.model.get_input_embeddings()(data["input_ids"])[0]
            features = self.model.model.get_image_features(data["pixel_values"], data["image_grid_thw"])
            row[start : start + count] = torch.cat(list(features.pooler_output)).to(row.dtype)
            index, _ = self.model.model.get_rope_index(
                data["input_ids"], data["mm_token_type_ids"], data["image_grid_thw"]
            )
            embeds[b, place], positions[:, b, place], valid[b, place] = row, index[:, 0], True
        length = torch.tensor(counts, device=self.device)
        batch = Batch(self.num_layers, slice(start, start + widest), length, columns)
        return batch, valid, embeds, positions
