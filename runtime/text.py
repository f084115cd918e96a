"""The engine's tokenizer, and token ids to text while they come."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EngineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_NAME = "tokenizer.json"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_WAIT = 32  # tokens; a character is at most four


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of an engine directory or a `tokenizer.json`, without truncation or padding.

    Raises EngineError where it is missing or unreadable.
    """
    from tokenizers import Tokenizer

    path = Path(path)
    if path.is_dir():
        path = path / TOKENIZER_NAME
    if not path.is_file():
        raise EngineError(f"there is no tokenizer at {path}: export the engine again")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise EngineError(f"{path} is not a readable tokenizer ({error}): export the engine again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the special tokens, which never show in decoded text."""
    return frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)


class Detokenizer:
    """Token ids of one page to text, in pieces that never hold half a character.

    The pieces of `push` and the one of `finish`, joined, are `tokenizer.decode(ids, skip_special_tokens=True)`.
    A piece costs a decode of a few tokens, however long the text is.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._ids: list[int] = []  # without the special ones
        self._context = 0  # decoding starts here: some decoders treat the first token in a way of its own
        self._emitted = 0  # ids before this one are out
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What has come out so far."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes: often a word, "" for a special token or part of a character."""
        if token_id in self._special:
            return ""
        self._ids.append(int(token_id))
        piece = self._pending()
        if piece.endswith(_REPLACEMENT):
            if len(self._ids) - self._emitted <= _LONGEST_WAIT:
                return ""  # perhaps the first bytes of a character
            return self._emit_settled()
        return self._emit(len(self._ids), piece)

    def extend(self, token_ids: Iterable[int]) -> str:
        """`push` of each, joined."""
        return "".join([self.push(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """What was held back: a character cut short by the end comes out as U+FFFD. Call it once, at the end."""
        return self._emit(len(self._ids), self._pending())

    def _pending(self, stop: int | None = None) -> str:
        before = self._decode(self._context, self._emitted)
        return self._decode(self._context, stop)[len(before) :]

    def _decode(self, start: int, stop: int | None) -> str:
        return self._tokenizer.decode(self._ids[start:stop], skip_special_tokens=True)

    def _emit(self, stop: int, piece: str) -> str:
        if stop > self._emitted:
            self._context, self._emitted = self._emitted, stop
        if piece:
            self._pieces.append(piece)
        return piece

    def _emit_settled(self) -> str:
        """Of a long run of bytes that are no text, all but the few last tokens, so that no run is decoded whole."""
        whole = self._pending()
        for stop in range(len(self._ids) - 1, len(self._ids) - 5, -1):
            piece = self._pending(stop)
            if piece + self._decode(stop, None) == whole:
                return self._emit(stop, piece)
        return self._emit(len(self._ids), whole)
