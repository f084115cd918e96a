"""Engine: load an engine directory, read pages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..counts import check_count
from ..errors import EngineError, FastOCRError
from ..manifest import Manifest
from .batch import BatchRun
from .options import MAX_THREADS, Reading
from .results import ParseResult
from .session import Mode, Session
from .text import Detokenizer, load_tokenizer
from .turn import Turn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .batch import PageImages

HASHED_ON_LOAD = 64 * 2**20  # files up to this size are hashed at every load; larger ones with verify=True


class Engine:
    """An engine directory, loaded. Reads one batch at a time; calls from several threads wait for each other.

    A stream that was begun holds the engine until it is taken to its end, closed or dropped, by whichever thread. Until
    then the thread that took its last piece gets a FastOCRError for other calls, and the others wait for the stream;
    one that nobody reads on for a minute gives them a FastOCRError, too.
    """

    def __init__(self, manifest: Manifest, session: Session, tokenizer: Tokenizer) -> None:
        self.manifest = manifest
        self.session = session
        self.tokenizer = tokenizer
        self._turn = Turn()

    @classmethod
    def load(
        cls,
        directory: str | Path,
        providers: Sequence[str] = ("cpu",),
        threads: int | None = None,
        verify: bool = False,
        share_weights: bool | None = None,
        backend: str = "auto",
        trace: bool = False,
    ) -> Engine:
        """Load `directory`, written by `fastocr-export`.

        backend: `onnxruntime`, `tensorrt`, `tensorrt-rtx`, or `auto`: compiled engines where the directory has some
        that fit this machine's library and GPU, else ONNX Runtime. verify: hash large files too.
        Of ONNX Runtime alone: providers, the first one that it has here is used (`cpu`, `cuda`); threads of one graph
        call, None lets it choose; share_weights, keep one copy of the weights for all graphs (batches are slower), None
        does so for large unquantised models. trace: record what the model looks at, in every `ParseResult.trace`; on
        ONNX Runtime's CPU provider only. Raises EngineError with the way to rebuild.
        """
        from .backend import choose_backend, open_onnxruntime, open_tensorrt

        if not isinstance(directory, (str, Path)):
            raise EngineError(f"an engine is loaded from a path, not from a {type(directory).__name__}")
        if threads is not None:
            threads = check_count(threads, "threads", most=MAX_THREADS)
        directory = Path(directory)
        manifest = Manifest.read(directory)
        manifest.check_files(directory, hash_up_to=None if verify else HASHED_ON_LOAD)
        tokenizer = load_tokenizer(directory / manifest.files["tokenizer"].file)
        if trace:
            from .trace_session import open_traced

            session = open_traced(directory, manifest, providers, threads, share_weights, backend)
            return cls(manifest, session, tokenizer)
        chosen = choose_backend(directory, manifest, backend)
        if chosen == "onnxruntime":
            session = open_onnxruntime(directory, manifest, providers, threads, share_weights)
        else:
            session = open_tensorrt(directory, manifest, chosen, None if verify else HASHED_ON_LOAD)
        return cls(manifest, session, tokenizer)

    def close(self) -> None:
        """Give back what the session holds on a GPU; the engine is of no use afterwards. A `with` does so at its end.

        ONNX Runtime gives its memory back by itself, when the engine is no longer used.
        """
        if (close := getattr(self.session, "close", None)) is not None:
            close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def parse(self, page: PageImages, prompt: str | None = None, mode: Mode = "fast", **options) -> ParseResult:
        """Read one page: a PIL image, a path, or several of them as the images of ONE prompt.

        Options: keep, max_new_tokens, temperature, top_p, seed, resize_to_fit, loop_guard (see Reading).
        """
        return self.parse_batch([page], prompt, mode, **options)[0]

    def parse_batch(
        self, pages: Sequence[PageImages], prompt: str | None = None, mode: Mode = "fast", **options
    ) -> list[ParseResult]:
        """Read several pages, each as `parse` does, up to the engine's max_batch of them at a time.

        A page's result does not depend on the pages beside it.
        """
        if not isinstance(pages, (list, tuple)):
            raise FastOCRError(f"pages is a {type(pages).__name__}; it must be a list, of an image or a path per page")
        reading = Reading.of(prompt, mode, options)
        size = self.manifest.capacities.max_batch
        results: list[ParseResult] = []
        for start in range(0, len(pages), size):
            with self._turn:
                run = self._run(pages[start : start + size], reading, first_page=start)
                for _ in run.steps():
                    pass
            results += run.results()
        return results

    def stream(
        self,
        page: PageImages,
        prompt: str | None = None,
        mode: Mode = "fast",
        progress: Callable[[int, int], None] | None = None,
        **options,
    ) -> TextStream:
        """Read one page; iterate the result for pieces of text as they are written. progress: prompt tokens fed.

        Reading begins with the first piece. Threads may hand the stream on, but take pieces one after the other.
        """
        return TextStream(self._run([page], Reading.of(prompt, mode, options), progress=progress), self._turn)

    def _run(self, pages: Sequence[PageImages], reading: Reading, **more) -> BatchRun:
        return BatchRun(self.manifest, self.session, self.tokenizer, pages, reading, **more)


class TextStream:
    """Pieces of text; afterwards `result`. In a loop the last pieces are more than `result.text` keeps.

    A `for` that is left, `close` or the end of a `with` gives the engine free for other calls.
    """

    def __init__(self, run: BatchRun, turn: Turn) -> None:
        self._run = run
        self._turn = turn
        # Weak, so that a loop that is left drops the pieces, and with them the turn, while the stream is still there.
        self._pieces: Callable[[], Generator[str, None, None] | None] | None = None
        self._result: ParseResult | None = None

    def __iter__(self) -> Generator[str, None, None]:
        if self._pieces is not None:
            raise RuntimeError("a TextStream is read once; its text is in `result`")
        pieces = self._read()
        self._pieces = weakref.ref(pieces)
        return pieces

    def close(self) -> None:
        """Read no further. FastOCRError where another thread is taking a piece just now."""
        pieces, self._pieces = self._pieces and self._pieces(), self._pieces or _nothing
        if pieces is not None:
            try:
                pieces.close()
            except ValueError:  # Python's word for a generator that runs
                raise FastOCRError("another thread is taking a piece of this stream; close it there") from None

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def result(self) -> ParseResult:
        """The finished page. RuntimeError where the pieces were not taken to the end."""
        if self._result is None:
            raise RuntimeError("take the stream's pieces to the end before its result")
        return self._result

    def _read(self) -> Generator[str, None, None]:
        detokenizer = Detokenizer(self._run.tokenizer)
        sent = 0
        with self._turn:
            for _ in self._run.steps():
                tokens = self._run.pages[0].token_ids
                for token in tokens[sent:]:
                    if piece := detokenizer.push(token):
                        with self._turn.piece_given():
                            yield piece
                sent = max(sent, len(tokens))
        self._result = self._run.results()[0]
        if self._result.finish_reason != "loop" and (rest := detokenizer.finish()):
            yield rest


def _nothing() -> None:
    """The pieces of a stream that was closed before it began."""
