"""The report of a calibration: one HTML file with its plots inside, nothing to fetch."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from ..atomic import whole_file
from ..calibration import Array, Choice, pareto, sources
from ..counts import plural
from ..fixation import FixationPolicy
from .calibrate_result import Calibration

BLUE, GREY, INK = "#2463a6", "#9aa3ad", "#1c2530"
ORANGE = "#d9730d"  # the choice, in every plot
STYLE = {
    "svg.fonttype": "none",  # text stays text: to search, to copy
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "axes.axisbelow": True,
}
CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2530; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
figure { margin: 1.5rem 0; overflow-x: auto } figcaption, .note { color: #55606c; font-size: .9rem; max-width: 46rem }
svg { max-width: 100%; height: auto } h2 { margin-top: 2.5rem; font-size: 1.2rem }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #e4e7eb; text-align: left; white-space: nowrap }
tr.chosen { font-weight: 600 } .verdict { font-size: 1.1rem } .wide { overflow-x: auto }
.conditions td { white-space: normal; overflow-wrap: anywhere } .conditions th { font-weight: 400; color: #55606c }
"""


def write_report(path: Path, calibration: Calibration) -> None:
    """Write the report, whole. Needs matplotlib, which the extra `plots` brings."""
    with whole_file(path) as part:
        part.write_text(report(calibration), encoding="utf-8")


def report(calibration: Calibration) -> str:
    """The report as HTML."""
    with matplotlib.rc_context(STYLE):
        return _report(calibration)


def _report(calibration: Calibration) -> str:
    source = escape(str(calibration.loaded.model["source"]))
    figures = [
        (
            "Attention on the page, by layer",
            _mass(calibration),
            "Share of a layer's attention that falls on visual tokens at a decode step of dense reading, and the part "
            "of it on the layer's own largest selection. Where the two bars are far apart, the layer looks at the page "
            "diffusely, and no selection replaces the whole page.",
        ),
        (
            "How much of a fixation stays from one step to the next",
            _overlap(calibration),
            "Share of a layer's selection that it had selected one step earlier too. Gathered layers before the first "
            "focal layer live on the step before.",
        ),
        (
            "What one layer's selection recovers of another's attention",
            _recovered(calibration),
            "Row: the layer that selects; column: the layer that reads the selection; 100% is as much attention as the "
            "reading layer's own selection holds. The choice rests on the outlined cells: each gathered layer with the "
            f"focal layer whose selection it reads{_carried(calibration)}. They need not all be bright: a layer counts "
            "by its importance times its attention on the page, and one that hardly looks there loses little.",
        ),
        (
            "The frontier",
            _frontier(calibration),
            "Each dot is the best set of focal layers of its kind: 1 to 5 of them, layer 0 dense or not, one fixation "
            "per KV head or a shared one. The numbered rings are the candidates above, the orange one is the choice; "
            "the line joins the best for their reads.",
        ),
        (
            "Accuracy of the candidates",
            _accuracy(calibration),
            f"{'Retention of dense accuracy' if calibration.chosen.retention else 'Accuracy against dense output'}"
            f"{', with 95% bootstrap intervals over pages' if calibration.chosen.by_bound else ''}, by number; the "
            "dashed line is the target, orange the choice.",
        ),
    ]
    body = "\n".join(
        f"<h2>{title}</h2>\n<figure>{_svg(figure, title)}<figcaption>{escape(caption)}</figcaption></figure>"
        for title, figure, caption in figures
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Calibration of {source}</title><style>{CSS}</style></head>\n<body><h1>Calibration of {source}</h1>\n"
        f"{_verdict(calibration)}\n<h2>Candidates</h2>\n{_table(calibration)}\n{body}\n"
        f"<h2>Conditions</h2>\n{_conditions(calibration)}\n</body></html>\n"
    )


def _mass(calibration: Calibration) -> Figure:
    first, *_ = calibration.masses.values()
    own = {f"own selection, keep {keep:.3g}": mass.own for keep, mass in calibration.masses.items()}
    return _bars(calibration, {"whole page": first.visual} | own, "share of attention", greys=1)


def _overlap(calibration: Calibration) -> Figure:
    overlaps = {f"keep {keep:.3g}": mass.overlap for keep, mass in calibration.masses.items()}
    figure = _bars(calibration, overlaps, "overlap with the step before")
    figure.axes[0].set_ylim(0, 1.02)
    return figure


def _bars(calibration: Calibration, values: dict[str, Array], label: str, greys: int = 0) -> Figure:
    """Bars side by side for each layer, one of each of `values` ([L], 0 to 1), by name; the first `greys` are grey."""
    figure, axes = _axes(calibration)
    width = 0.8 / max(2, len(values))
    left = -width * (len(values) - 1) / 2
    for number, (name, heights) in enumerate(values.items()):
        places = [layer + left + width * number for layer in range(len(heights))]
        colour = GREY if number < greys else _shade(number - greys + 1, len(values) - greys)
        axes.bar(places, heights, width, color=colour, label=name)
    _layer_axis(axes, calibration)
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    return figure


def _recovered(calibration: Calibration) -> Figure:
    policy = calibration.chosen.choice.policy
    mass = calibration.masses[policy.keep]
    side = max(4.0, min(9.0, 0.32 * mass.num_layers + 1.5))
    figure = Figure((side + 1.2, side), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(False)
    image = axes.imshow(1 - mass.loss(mass.same), vmin=0, vmax=1, cmap="viridis")
    figure.colorbar(image, ax=axes, format=PercentFormatter(1), shrink=0.8)
    axes.set_xlabel("layer that reads")
    axes.set_ylabel("layer that selects")
    labels = _layer_labels(policy, mass.num_layers)
    axes.set_yticks(range(mass.num_layers), labels)
    axes.set_xticks(range(mass.num_layers), [str(i) for i in range(mass.num_layers)])
    for layer, (source, at_once) in sources(policy, mass.num_layers).items():
        place = (layer - 0.44, source - 0.44)
        style = {"fill": False, "linewidth": 2, "linestyle": "-" if at_once else ":"}
        around = [withStroke(linewidth=4, foreground="white")]  # to stand out from dark and bright cells
        axes.add_patch(Rectangle(place, 0.88, 0.88, edgecolor=ORANGE, path_effects=around, **style))
    return figure


def _carried(calibration: Calibration) -> str:
    """What the caption says of layers that read a selection of the step before."""
    policy = calibration.chosen.choice.policy
    layers = next(iter(calibration.masses.values())).num_layers
    carried = any(not at_once for _, at_once in sources(policy, layers).values())
    return (
        " (dotted where that is the selection of the step before, while the cell shows the same step)"
        if carried
        else ""
    )


def _frontier(calibration: Calibration) -> Figure:
    figure, axes = _axes(calibration)
    for per_head in (True, False):
        some = [c for c in calibration.choices if c.policy.per_kv_head is per_head]
        if per_head:  # a dot within a square where both lie in one place
            axes.scatter(*_places(some), s=22, color=BLUE, label="per KV head")
        else:
            axes.scatter(*_places(some), s=70, marker="s", facecolors="none", edgecolors=BLUE, label="shared")
    axes.plot(*_places(pareto(calibration.choices)), color=GREY, zorder=0)
    for number, verification in enumerate(calibration.verified, 1):
        choice, chosen = verification.choice, verification is calibration.chosen
        colour = ORANGE if chosen else INK
        label = "the choice" if chosen else None
        axes.scatter(*_places([choice]), s=230, facecolors="none", edgecolors=colour, lw=2, label=label)
        _number(axes, number, (choice.reads, choice.recovered))
    _percent(axes, "mean visual reads", "attention recovered")
    axes.legend(frameon=False, loc="lower right")
    return figure


def _accuracy(calibration: Calibration) -> Figure:
    figure, axes = _axes(calibration)
    axes.axhline(calibration.options.target, color=GREY, linestyle="--")
    for number, verification in enumerate(calibration.verified, 1):
        judged, colour = verification.judged, ORANGE if verification is calibration.chosen else BLUE
        around = [[max(0.0, judged.value - judged.low)], [max(0.0, judged.high - judged.value)]]
        around = around if verification.by_bound else None
        axes.errorbar(verification.reads, judged.value, around, fmt="o", color=colour, capsize=4)
        _number(axes, number, (verification.reads, judged.value))
    _percent(axes, "mean visual reads", "retention" if calibration.chosen.retention else "accuracy against dense")
    return figure


def _number(axes: Axes, number: int, place: tuple[float, float]) -> None:
    """The candidate's number in the table, beside its dot."""
    axes.annotate(str(number), place, textcoords="offset points", xytext=(10, 8), fontweight="bold")


def _axes(calibration: Calibration) -> tuple[Figure, Axes]:
    layers = len(next(iter(calibration.masses.values())).visual)
    figure = Figure((max(7.5, min(14.0, 0.42 * layers)), 3.8), layout="constrained")
    return figure, figure.add_subplot()


def _layer_axis(axes: Axes, calibration: Calibration) -> None:
    layers = len(next(iter(calibration.masses.values())).visual)
    axes.set_xticks(range(layers), _layer_labels(calibration.chosen.choice.policy, layers, "\n"))
    axes.set_xlabel("layer")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _layer_labels(policy: FixationPolicy, layers: int, between: str = " ") -> list[str]:
    kinds = [policy.kind(i) for i in range(layers)]
    return [f"{i}{between}{kind}" if kind != "gathered" else str(i) for i, kind in enumerate(kinds)]


def _percent(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.margins(x=0.2, y=0.15)


def _places(choices: list[Choice]) -> tuple[list[float], list[float]]:
    return [c.reads for c in choices], [c.recovered for c in choices]


def _shade(number: int, of: int) -> str:
    """The number-th of `of` shades of blue, from 1, the last the darkest."""
    share = number / of
    return to_hex([1 - share * (1 - c) for c in to_rgb(BLUE)])


def _layers(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers)) or "none"


def _svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element that a screen reader can name. The title salts the ids, which a page shares."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _verdict(calibration: Calibration) -> str:
    policy, chosen = calibration.chosen.choice.policy, calibration.chosen
    warnings = "".join(f"<li>{escape(text)}</li>" for text in calibration.warnings)
    return (
        f'<p class="verdict">Focal layers <b>{_layers(policy.focal_layers)}</b>, dense layers '
        f"<b>{_layers(policy.dense_layers)}</b>, {policy.keep:.1%} of the page elsewhere: a step reads "
        f'{chosen.reads:.1%} of the page.</p>\n<p class="verdict">{escape(_sentence(calibration.tell()))}</p>'
        + (f"\n<p>Warnings:</p><ul>{warnings}</ul>" if warnings else "")
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _table(calibration: Calibration) -> str:
    head = ("", "focal", "dense", "fixation", "keep", "reads", "recovered", "against dense", "retention", "equal")
    rows = []
    for number, v in enumerate(calibration.verified, 1):
        policy = v.choice.policy
        cells = [
            str(number),
            _layers(policy.focal_layers),
            _layers(policy.dense_layers),
            "per KV head" if policy.per_kv_head else "shared",
            f"{policy.keep:.3g}",
            f"{v.reads:.1%}",
            f"{v.choice.recovered:.2%}",
            v.tell_against_dense(),
            v.tell_retention(),
            f"{v.equal_pages} of {v.pages}",
        ]
        mark = ' class="chosen"' if v is calibration.chosen else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    names = "".join(f"<th>{name}</th>" for name in head)
    table = f"<table><tr>{names}</tr>{''.join(rows)}</table>"
    return f'<div class="wide">{table}</div>\n<p class="note">Bold is the choice.</p>'


def _conditions(calibration: Calibration) -> str:
    pages, options = calibration.pages, calibration.options
    first = next(iter(calibration.masses.values()))
    facts = {
        "pages": f"{pages['count']} ({pages['source']}), {pages['with_text']} with text, "
        f"{first.visual_tokens:.0f} visual tokens on average",
        "decode steps": f"{first.steps:,}, at most {plural(options.max_new_tokens, 'token')} a page",
        "dense accuracy": "no texts" if calibration.dense_accuracy is None else f"{calibration.dense_accuracy:.1%}",
        "prompt": options.prompt,
        **{name.replace("_", " "): str(value) for name, value in calibration.loaded.environment.items()},
    }
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return f'<table class="conditions">{rows}</table>'
