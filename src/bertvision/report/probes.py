"""The section on probes: what each layer knows, alone and with all below it, and the expected layer."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bertvision.evaluate.probing import expected_layer, gains_of_layers
from bertvision.report.figures import INK, _canvas, _columns, looks, styled
from bertvision.report.grid import Grid, grid_of, numbers
from bertvision.report.reading import Study
from bertvision.report.render import Album, Block, notes, pictures
from bertvision.report.rows import Metric, main_metric, main_rows
from bertvision.train.bank import unique_names

ALONE, UP_TO = "the layer alone", "the layers up to it"
Scores = dict[int, float]  # by layer


def probe_blocks(study: Study, album: Album) -> list[Block]:
    """Scores of the `probe` heads of every checkpoint by layer, a figure each; nothing without such heads."""
    rows = [row for row in main_rows(study.rows) if row.role == "head"]
    if (metric := main_metric(rows)) is None:
        return []
    blocks: list[Block] = []
    for epoch in dict.fromkeys(row.epoch for row in rows):
        here = [row for row in rows if row.epoch == epoch and metric.key in row.scores]
        if found := _by_layer(study, {row.name: row.scores[metric.key].mean for row in here}):
            blocks += _checkpoint(found, metric, epoch, album)
    return blocks


@styled
def probe_figure(curves: Mapping[str, Mapping[int, float]], ylabel: str, expected: float | None = None) -> Figure:
    """Scores of probes against the layer they read. curves: name -> layer -> score. expected: a vertical line."""
    figure, axes = _canvas(3.2, curves)
    for found, (colour, marker) in zip(curves.values(), looks(len(curves))):
        axes.plot(list(found), list(found.values()), "-", color=colour, marker=marker, markersize=4.5, linewidth=1.4)
    if expected is not None:
        axes.axvline(expected, color=INK, linewidth=1, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="layer (0: embedding output)", ylabel=ylabel)
    axes.grid(axis="y")
    figure.legend(axes.get_lines()[: len(curves)], list(curves), loc="outside lower left", ncols=_columns(curves))
    return figure


def _by_layer(study: Study, scores: dict[str, float]) -> dict[str, Scores]:
    entries = study.recipe.get("heads", [])
    found: dict[str, Scores] = {}
    for name, entry in zip(unique_names(entries), entries):
        if entry.get("kind") == "probe" and name in scores:
            kind = UP_TO if entry.get("cumulative") else ALONE
            found.setdefault(kind, {})[int(entry.get("layer", 0))] = scores[name]
    return {kind: dict(sorted(found[kind].items())) for kind in (ALONE, UP_TO) if kind in found}


def _checkpoint(found: dict[str, Scores], metric: Metric, epoch: float, album: Album) -> list[Block]:
    upto = found.get(UP_TO, {})
    whole = len(upto) > 1 and list(upto) == list(range(len(upto)))  # differences need every layer
    expected = expected_layer(list(upto.values())) if whole else None
    grid = _grid(found, gains_of_layers(list(upto.values())) if whole else [], metric)
    text = f"Expected layer, weighted by what each layer adds to those below: {expected:.2f}." if expected else ""
    figure = probe_figure(found, metric.label, expected)
    caption = f"{metric.label} of probes by layer at epoch {epoch:g}"
    picture = album.draw(f"probe {epoch:g}", caption, figure)
    return [Block("table", grid, caption), *notes(*([text] if text else [])), *pictures(picture)]


def _grid(found: dict[str, Scores], gains: list[float], metric: Metric) -> Grid:
    layers = sorted({layer for scores in found.values() for layer in scores})
    form = f".{metric.digits}f"
    columns = [(f"{metric.label}, {kind}", numbers(map(one.get, layers), form)) for kind, one in found.items()]
    added = [("Added by the layer", numbers(map(dict(enumerate(gains, 1)).get, layers), f"+{form}"))] if gains else []
    return grid_of(("Layer", numbers(layers, "d")), *columns, *added)
