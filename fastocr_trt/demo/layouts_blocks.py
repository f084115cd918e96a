"""The blocks a column of a page is made of: paragraphs, headings, lists, tables, each written below the last."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from . import layouts_text as text
from .layouts_fonts import Family, Sheet, sheet
from .layouts_ink import Ink, Run


@dataclass
class Column:
    """A column being filled. left, right, bottom: its edges in pixels; top: where the next line goes."""

    source: Random
    ink: Ink
    family: Family
    size: int
    pitch: float
    left: int
    right: int
    top: float
    bottom: int

    @property
    def body(self) -> Sheet:
        return sheet(self.family.regular, self.size)

    def room_for(self, face: Sheet) -> bool:
        return self.top + face.height <= self.bottom

    def write(self, runs: list[Run], face: Sheet, pitch: float | None = None) -> bool:
        """One line, and down by a pitch (pixels; the body's by default); False where column or page is full."""
        if not self.room_for(face) or not self.ink.line(runs, round(self.top), face):
            return False
        self.top += pitch or self.pitch
        return True


def wrap(words: list[str], face: Sheet, width: float) -> list[str]:
    """Lines of at most `width` pixels; a word that is wider is cut."""
    lines: list[str] = []
    line = ""
    for word in words:
        longer = f"{line} {word}" if line else word
        if face.width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while len(word) > 1 and face.width(word) > width:
            word = word[:-1]
        line = word
    return [*lines, line] if line else lines


def paragraph(column: Column) -> bool:
    """A few lines of sentences, the first one indented at times."""
    source, face = column.source, column.body
    stream = text.prose(source)
    words = [next(stream) for _ in range(source.randint(3, 40))]
    indent = face.size * 1.5 if source.random() < 0.15 else 0
    left = column.left + (source.randint(0, 10) if source.random() < 0.3 else 0)
    lines = wrap(words, face, column.right - left - indent)
    for number, line in enumerate(lines):
        if not column.write([Run(line, left + (indent if number == 0 else 0))], face):
            return False
    return True


def heading(column: Column) -> bool:
    """One bold line: `# ` where its letters are much larger than the body's, `## ` where they are a little larger."""
    source = column.source
    large = source.random() < 0.5
    size = round(column.size * (source.uniform(1.4, 1.7) if large else source.uniform(1.1, 1.22)))
    face = sheet(column.family.bold, size)
    line = wrap(text.title(source), face, column.right - column.left)[0]
    left = column.left
    if source.random() < 0.2:
        left += max(0, (column.right - column.left - face.width(line)) / 2)
    column.top += column.size * source.uniform(0, 0.6)
    runs = [Run("# " if large else "## ", left, drawn=False), Run(line, left)]
    return column.write(runs, face, max(face.height, column.pitch * size / column.size))


def bullets(column: Column) -> bool:
    """List items: a dot, a dash or a star on the page, `- ` in the text; a longer item runs on without a sign."""
    source, face = column.source, column.body
    dot = source.choice("\u2022\u2022\u2022-*")
    stream = text.prose(source)
    left = column.left + source.randint(0, column.size)
    hang = left + face.size * source.uniform(0.7, 1.3)
    for _ in range(source.randint(2, 6)):
        words = [next(stream) for _ in range(source.randint(1, 8))]
        for number, line in enumerate(wrap(words, face, column.right - hang)):
            top = round(column.top)
            signs = [Run("- ", left, drawn=False)] if number == 0 else []
            if not column.write([*signs, Run(line, hang)], face):
                return False
            if number == 0:
                column.ink.stamp(face.glyph(dot), round(left), top)
    return True


def numbered(column: Column) -> bool:
    """List items with numbers, printed as they are in the text."""
    source, face = column.source, column.body
    stream = text.prose(source)
    first = source.randint(1, 3) if source.random() < 0.8 else source.randint(4, 60)
    left = column.left + source.randint(0, column.size)
    for item in range(first, first + source.randint(2, 6)):
        words = [f"{item}.", *(next(stream) for _ in range(source.randint(1, 8)))]
        for number, line in enumerate(wrap(words, face, column.right - left - face.size)):
            if not column.write([Run(line, left + (face.size if number else 0))], face):
                return False
    return True


def fields(column: Column) -> bool:
    """Lines of a form: a name, a colon, a value."""
    source, face = column.source, column.body
    for _ in range(source.randint(2, 6)):
        value = text.number(source) if source.random() < 0.6 else " ".join(text.title(source))
        words = f"{source.choice(text.words()).capitalize()}: {value}".split()
        if not column.write([Run(wrap(words, face, column.right - column.left)[0], column.left)], face):
            return False
    return True


def table(column: Column) -> bool:
    """Rows of cells, a bold header first; with rules, or with room between the columns only."""
    source, body, bold = column.source, column.body, sheet(column.family.bold, column.size)
    width = column.right - column.left
    most = max(2, min(4, int(width / (body.size * 4))))
    count = source.randint(2, most)
    edges = [column.left + round(width * i / count) for i in range(count + 1)]
    margin = max(4, body.size // 2)
    numeric = [i > 0 and source.random() < 0.6 for i in range(count)]
    rules = source.choice(("none", "rows", "grid"))
    pitch = max(column.pitch, body.height + 4)
    first = round(column.top)
    bottom = first
    going = True
    for row in range(source.randint(3, 9)):
        face = bold if row == 0 else body
        cells = [
            _fitting(source, numeric[i] and row > 0, face, edges[i + 1] - edges[i] - 2 * margin) for i in range(count)
        ]
        runs: list[Run] = []
        for i, written in enumerate(cells):
            x = edges[i] + margin
            if numeric[i]:
                x = edges[i + 1] - margin - face.width(written)
            runs += [Run("| " if i == 0 else " | ", x, drawn=False), Run(written, x)]
        runs.append(Run(" |", runs[-1].x + face.width(cells[-1]) - face.size / 2, drawn=False))
        top = column.top
        # The header and its rule are one piece: a page must not end between them.
        going = column.ink.room >= 2 * sum(len(run.text) for run in runs) + 40 and column.write(runs, face, pitch)
        if not going:
            break
        bottom = round(top + pitch)
        if row == 0:
            column.ink.line([Run("|" + "---|" * count, runs[0].x, drawn=False)], round(top), face)
    if bottom > first:
        _rule(column, rules, edges, first, bottom, pitch)
    return going


def _fitting(source: Random, numeric: bool, face: Sheet, width: float) -> str:
    for _ in range(8):
        written = text.cell(source, numeric)
        if face.width(written) <= width:
            return written
    while len(written) > 1 and face.width(written) > width:
        written = written[:-1]
    return written


def _rule(column: Column, rules: str, edges: list[int], first: int, bottom: int, pitch: float) -> None:
    if rules == "none":
        return
    thick = column.source.randint(1, 2)
    ink, lift = column.ink, -2
    for row in range(round((bottom - first) / pitch) + 1):
        y = round(first + row * pitch) + lift
        ink.fill(edges[0], y, edges[-1], y + thick)
    if rules == "grid":
        for x in edges:
            ink.fill(x - thick, first + lift, x, bottom + lift)
