"""Token ids to text while they come: the same text as at once, and never half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_level_tokenizer import byte_level_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

import fastocr_trt.demo
from fastocr_trt.errors import EngineError
from fastocr_trt.runtime.text import Detokenizer, load_tokenizer, special_ids

BYTES = byte_level_tokenizer()
DEMO = load_tokenizer(Path(fastocr_trt.demo.__file__).parent)
HALF = "\N{REPLACEMENT CHARACTER}"


def byte_ids(data: bytes) -> list[int]:
    """One token a byte, valid UTF-8 or not."""
    letters = "".join(chr(b) for b in data).encode("latin-1")
    table = _byte_table()
    return [BYTES.token_to_id(table[b]) for b in letters]


def _byte_table() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    letters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [letters[b] for b in range(256)]


def stream(tokenizer, ids) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(i) for i in ids]
    pieces.append(detokenizer.finish())
    assert detokenizer.text == "".join(pieces)
    return pieces


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=60))
def test_any_tokens_give_the_text_of_decoding_them_at_once(ids):
    assert "".join(stream(BYTES, ids)) == BYTES.decode(ids, skip_special_tokens=True)


@given(st.binary(max_size=200))
def test_any_bytes_one_token_each(data):
    ids = byte_ids(data)
    assert "".join(stream(BYTES, ids)) == BYTES.decode(ids) == data.decode("utf-8", "replace")


@given(st.text(max_size=60))
def test_no_piece_holds_half_a_character(text):
    ids = BYTES.encode(text, add_special_tokens=False).ids
    pieces = stream(BYTES, ids)
    assert "".join(pieces) == BYTES.decode(ids) == text
    if HALF not in text:
        assert not any(HALF in piece for piece in pieces)
    single = stream(BYTES, byte_ids(text.encode()))
    assert "".join(single) == text and all(len(piece) <= 1 or HALF in text for piece in single)


def test_pieces_come_as_soon_as_they_are_whole():
    pieces = stream(BYTES, byte_ids("aé中🙂".encode()))
    assert pieces == ["a", "", "é", "", "", "中", "", "", "", "🙂", ""]


def test_character_cut_off_by_the_end():
    assert stream(BYTES, byte_ids("a中".encode()[:3])) == ["a", "", "", HALF]


def test_special_tokens_do_not_show_and_do_not_split_characters():
    end = BYTES.token_to_id("<|im_end|>")
    euro = byte_ids("€".encode())
    assert "".join(stream(BYTES, [end, euro[0], euro[1], end, euro[2], end])) == "€"
    assert BYTES.token_to_id("<tool_call>") not in special_ids(BYTES)
    assert "".join(stream(BYTES, [BYTES.token_to_id("<tool_call>")])) == "<tool_call>"


@given(st.lists(st.integers(0, DEMO.get_vocab_size() - 1), max_size=60))
def test_demo_tokenizer(ids):
    assert "".join(stream(DEMO, ids)) == DEMO.decode(ids, skip_special_tokens=True)


def test_decoder_that_treats_the_first_token_in_a_way_of_its_own():
    words = {"\u2581one": 0, "\u2581two": 1, "s": 2, "[UNK]": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.decoder = decoders.Metaspace()
    assert stream(tokenizer, [0, 2, 1, 1, 2]) == ["one", "s", " two", " two", "s", ""]


def test_work_of_a_piece_does_not_grow_with_the_text():
    decoded = []

    class Counting:
        def __getattr__(self, name):
            return getattr(BYTES, name)

        def decode(self, ids, **options):
            decoded.append(len(ids))
            return BYTES.decode(ids, **options)

    ids = BYTES.encode("the quick brown fox 中文 " * 200, add_special_tokens=False).ids
    assert "".join(stream(Counting(), ids)) == BYTES.decode(ids)
    assert max(decoded) < 12
    decoded.clear()
    broken = byte_ids(b"\xe4" * 3000)
    assert "".join(stream(Counting(), broken)) == HALF * 3000
    assert max(decoded) < 80, "bytes that never make a character are not decoded over and over"


def test_tokenizer_that_cannot_be_loaded(tmp_path):
    with pytest.raises(EngineError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(EngineError, match="not a readable tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_loaded_tokenizer_neither_truncates_nor_pads(tmp_path):
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    text = "the quick brown fox"
    assert loaded.encode(text).ids == BYTES.encode(text).ids and loaded.decode(loaded.encode(text).ids) == text
