"""What a terminal shows while pages are read: how many are done, and how far the one at hand is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.status import Status
from rich.text import Text

from ..counts import plural
from ._common import printable


class PageProgress:
    """A bar over the pages; where text streams to the same terminal, only a line until the text begins.

    Nothing is shown where `console` is no terminal or `shown` is False. total: pages, None where not known.
    label: what stands before the bar.
    """

    def __init__(self, console: Console, total: int | None, shown: bool, streams: bool, label: str = "pages") -> None:
        visible = shown and console.is_terminal
        self._status = Status("", console=console) if visible and streams else None
        self._bar = Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=console,
            transient=True,
            disable=not visible or streams,
        )
        self._task = self._bar.add_task("pages", total=total, detail="")

    def __enter__(self) -> PageProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.text_begins()
        self._bar.stop()

    def page_begins(self, name: str) -> None:
        """A page is looked at; its prompt comes next."""
        self._detail(f"{name}: looking at the page")
        if self._status:
            self._status.start()

    def prompt(self, done: int, total: int) -> None:
        """Prompt tokens fed so far."""
        self._detail(f"prompt {done / total:.0%} of {plural(total, 'token')}")

    def tokens(self, count: int) -> None:
        """Tokens written so far."""
        if self._status is None:
            self._detail(f"{plural(count, 'token')} written")

    def text_begins(self) -> None:
        """The page's text goes to the terminal from here on: make way."""
        if self._status:
            self._status.stop()

    def advance(self, count: int) -> None:
        """So many more pages are done."""
        self._bar.update(self._task, advance=count, detail="")

    def _detail(self, text: str) -> None:
        text = printable(text)
        if self._status:
            self._status.update(Text(text))  # a page's name is no markup
        else:
            self._bar.update(self._task, detail=text)
