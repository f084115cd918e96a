"""Draw docs/img/method.svg: what one decode step reads, layer by layer.

Run from the repository root: python tools/draw_method.py
"""

from __future__ import annotations

from pathlib import Path

COLUMNS, ROWS, CELL = 10, 12, 9  # a page of 120 visual tokens, drawn small
PITCH, LEFT, TOP = 150, 40, 92
INK, FAINT, READ, SELECT, TEXT = "#1f2933", "#e4e7eb", "#9fb3c8", "#d64545", "#3f8f5f"
LAYERS = ["dense", "gathered", "focal", "gathered", "gathered", "focal"]
PREVIOUS = {(3, 4), (3, 5), (3, 6), (4, 0), (3, 7), (0, 0)}
FIRST = {(3, 5), (3, 6), (3, 7), (3, 8), (4, 0), (4, 1)}
SECOND = {(3, 6), (3, 7), (3, 8), (3, 9), (4, 0), (4, 1)}
FIXATIONS = [set(), PREVIOUS, FIRST, FIRST, FIRST, SECOND]
NOTES = [
    ("reads every", "visual token"),
    ("the fixation that", "the last step left"),
    ("reads all, selects", "the next fixation"),
    ("only the fixation", ""),
    ("only the fixation", ""),
    ("reads all, selects;", "kept for next step"),
]


def page(x: int, kind: str, fixation: set[tuple[int, int]]) -> list[str]:
    """One layer's view of the page: grey cells are read, red ones are the fixation."""
    cells = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            fill = READ if kind != "gathered" else FAINT
            if (row, column) in fixation:
                fill = SELECT
            cells.append(
                f'<rect x="{x + column * CELL}" y="{TOP + row * CELL}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="{fill}"/>'
            )
    return cells


def label(x: float, y: float, text: str, size: int = 12, weight: str = "normal", anchor: str = "middle") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{INK}">'
        f"{text}</text>"
    )


def arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{SELECT}" stroke-width="1.6" marker-end="url(#head)"/>'


def draw() -> str:
    """The whole figure as SVG."""
    width, height = LEFT * 2 + PITCH * (len(LAYERS) - 1) + COLUMNS * CELL, 330
    middle = COLUMNS * CELL / 2
    bottom = TOP + ROWS * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" role="img" '
        'aria-label="One decode step: dense and focal layers read the whole page, gathered layers only the fixation">',
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{SELECT}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        label(LEFT, 26, "One decode step of a six-layer reader (policy of the demo)", 15, "bold", "start"),
    ]
    for number, (kind, fixation, note) in enumerate(zip(LAYERS, FIXATIONS, NOTES, strict=True)):
        x = LEFT + number * PITCH
        parts += page(x, kind, fixation)
        parts.append(label(x + middle, TOP - 14, f"layer {number}: {kind}", 13, "bold"))
        parts.append(f'<rect x="{x}" y="{bottom + 8}" width="{COLUMNS * CELL - 1}" height="8" fill="{TEXT}" rx="2"/>')
        parts += [label(x + middle, bottom + 34 + 15 * i, line) for i, line in enumerate(note)]
    reading = TOP + 3.5 * CELL
    for source, target in ((2, 3), (3, 4)):
        parts.append(arrow(f"M{LEFT + source * PITCH + COLUMNS * CELL + 4},{reading} H{LEFT + target * PITCH - 4}"))
    end, start = LEFT + 5 * PITCH + middle, LEFT + PITCH + middle
    parts.append(arrow(f"M{end},{TOP - 32} C{end - 80},{TOP - 56} {start + 80},{TOP - 56} {start},{TOP - 30}"))
    parts.append(label((end + start) / 2, TOP - 36, "the fixation is carried to the next step"))
    legend = [
        (READ, "visual token, read"),
        (FAINT, "visual token, not read at this layer (never evicted)"),
        (SELECT, "fixation: the visual tokens with the most attention"),
        (TEXT, "prompt and output: always read"),
    ]
    for number, (colour, text) in enumerate(legend):
        x, y = LEFT + number % 2 * 3 * PITCH, height - 44 + number // 2 * 24
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(label(x + 18, y + 10, text, 12, "normal", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    target = Path("docs/img/method.svg")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(), encoding="utf-8")
