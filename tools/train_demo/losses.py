"""What the reader is asked for: the next character; what is printed under each visual token; where things are; where to
look.

All but the first are help during training, and their heads are not part of the reader. The last, attention guidance,
asks chosen layers to look at the visual token of the next character (and, in prefill, starts of lines at the start of
the line before), and is why their focus is partly trained: say so wherever their sparsity is shown.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastocr_trt.demo.pages import SIZES

from .characters import BLANK, END, NEWLINE
from .data import IGNORED, SLOTS, Batch


class CharacterHead(nn.Module):
    """Guesses the characters under a visual token: [B,N,width] -> [B,N,SLOTS,BLANK + 1]."""

    def __init__(self, width: int):
        super().__init__()
        self.guess = nn.Linear(width, SLOTS * (BLANK + 1))
        nn.init.normal_(self.guess.weight, std=0.02)
        nn.init.zeros_(self.guess.bias)

    def forward(self, visual: Tensor) -> Tensor:
        return self.guess(visual).unflatten(-1, (SLOTS, BLANK + 1))


class PlaceHeads(nn.Module):
    """One for each guided layer: guesses, from what the layer is given, the row and the column of a visual token, and
    for text those of the visual token to look at next. A reader that has to find the next line must know where on the
    page a visual token lies; nothing else in its training asks for that."""

    ROWS, COLUMNS = (max(sides) for sides in zip(*((rows, columns) for columns, rows in SIZES.values()), strict=True))

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.visual = nn.ModuleList(nn.Linear(width, self.ROWS + self.COLUMNS) for _ in range(layers))
        self.text = nn.ModuleList(nn.Linear(width, self.ROWS + self.COLUMNS) for _ in range(layers))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class Weights(NamedTuple):
    """How much each answer counts. text, places [B,T]: what is asked, and where to look for it; 0 where nothing is.
    A large page is lost at the ends and starts of its lines and at its own end, not within lines, where most characters
    are, so these count many times. under [B,N,SLOTS]: blanks count less, being most."""

    text: Tensor
    places: Tensor
    under: Tensor


def weigh(batch: Batch) -> Weights:
    asked = (batch.labels != IGNORED).float()
    line_end, page_end = (batch.labels == NEWLINE).float(), (batch.labels == END).float()
    line_start = (batch.input_ids == NEWLINE).float() * asked
    text = asked + 4 * line_end + 19 * page_end + 9 * line_start
    places = asked + 3 * line_end + 7 * page_end + 5 * line_start
    return Weights(text, places, torch.where(batch.under == BLANK, 0.15, 1.0))


class Answer(NamedTuple):
    """loss: summed over the batch, weighted. correct, asked: counts."""

    loss: Tensor
    correct: int = 0
    asked: int = 0


def text_loss(logits: Tensor, batch: Batch, weights: Weights) -> Answer:
    """Cross-entropy of the next character; logits [B,T,vocabulary]."""
    each = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="none")
    correct = (logits.detach().argmax(-1) == batch.labels).sum()
    return Answer((each * weights.text.flatten()).sum(), int(correct), int((batch.labels != IGNORED).sum()))


def under_loss(guesses: Tensor, batch: Batch, weights: Weights) -> Answer:
    """Cross-entropy of the characters under each visual token; guesses as CharacterHead gives them."""
    each = F.cross_entropy(guesses.flatten(0, 2), batch.under.flatten(), reduction="none")
    printed = batch.under != BLANK
    correct = (guesses.detach().argmax(-1) == batch.under) & printed
    return Answer((each * weights.under.flatten()).sum(), int(correct.sum()), int(printed.sum()))


def place_loss(heads: PlaceHeads, before: list[tuple[Tensor, Tensor]], batch: Batch, weights: Weights) -> Tensor:
    """Cross-entropy of rows and columns, mean over layers: of the visual tokens, mean over a page, summed over pages,
    times the text's share of the step (`weights.places`), plus that of the text, weighted and summed."""
    tokens = torch.arange(batch.rows * batch.columns).expand(len(batch.pages), -1)
    loss = torch.zeros(())
    for visual, text, (given_visual, given_text) in zip(heads.visual, heads.text, before, strict=True):
        of_visual = _place(visual(_even(given_visual)), tokens, batch.columns).mean(1) * weights.places.sum(1)
        of_text = _place(text(_even(given_text)), batch.places[..., 1], batch.columns) * weights.places
        loss = loss + (of_visual.sum() + of_text.sum()) / len(before)
    return loss


def _even(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _place(guesses: Tensor, tokens: Tensor, columns: int) -> Tensor:
    """Cross-entropy [B,n] of the row and the column of `tokens` [B,n], which count visual tokens row by row."""
    rows, across = guesses.float().split((PlaceHeads.ROWS, PlaceHeads.COLUMNS), -1)
    of_row = F.cross_entropy(rows.transpose(1, 2), tokens // columns, reduction="none")
    return of_row + F.cross_entropy(across.transpose(1, 2), tokens % columns, reduction="none")


def line_links(batch: Batch) -> Tensor:
    """[B,K,2] visual tokens: the start of a line, and the start of the line before it where that lies before it in the
    rows of the page; (0, 0) where a page has fewer."""
    pages = []
    for labels, places in zip(batch.labels, batch.places, strict=True):
        ends = places[labels == NEWLINE].flip(-1)
        pages.append(ends[ends[:, 0] > ends[:, 1]])
    return torch.nn.utils.rnn.pad_sequence(pages, batch_first=True)


def link_loss(shares: list[Tensor], links: Tensor, weights: Weights) -> Tensor:
    """Minus the log of the share that the start of a line has on the start of the line before it: the share a mean over
    heads (one that looks there is enough), the log a mean over layers and the page's lines, times the page's part of
    the step. What a line's start knows of the line before it is how the end of that line can find it."""
    real = (links[..., 0] > 0).float()
    each = -sum(share.exp().mean(1).clamp(min=1e-12).log() for share in shares) / len(shares) * real
    return (each.sum(1) / real.sum(1).clamp(min=1) * weights.places.sum(1)).sum()


def guidance_loss(attention: list[Tensor], batch: Batch, weights: Weights) -> Answer:
    """Minus the log share of attention, among visual tokens, on the two places of the label, mean over heads and
    layers; attention as twin.Reading has it."""
    loss = torch.zeros(())
    for shares in attention:
        loss = loss - (on_places(shares, batch).mean(1) * weights.places).sum() / len(attention)
    return Answer(loss)


def on_places(shares: Tensor, batch: Batch) -> Tensor:
    """Log shares [B,heads,T] on the label's two places together; shares: of one layer, as twin.Reading has them."""
    here, there = batch.places.unbind(-1)
    found = shares.gather(3, batch.places[:, None].expand(-1, shares.shape[1], -1, -1))
    # One place named twice is one place.
    second = found[..., 1].masked_fill((here == there)[:, None], float("-inf"))
    return torch.logaddexp(found[..., 0], second)
