"""Figures as SVG. Readable in grey: lines differ in marker and dash, areas in lightness."""

import base64
import io
import itertools
import math

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

INK, SOFT = "#1a1a1a", "#8a8a8a"
# Dark to light, so that order survives a grey printer.
COLOURS = ("#10243f", "#8c2d19", "#1d6b5c", "#7a5195", "#b8860b", "#4a7fb5", "#c96f6f", "#777777")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": SOFT,
        "axes.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.6,
        "svg.hashsalt": "oscar",
        "svg.fonttype": "path",
        "legend.frameon": False,
        "text.parse_math": False,  # a "$" in a name is a dollar
    }
)


def styles():
    """Endless (colour, marker, dash); the first 8 differ in all three."""
    pairs = zip(itertools.cycle(COLOURS), itertools.cycle(MARKERS), itertools.cycle(DASHES))
    return ((colour, marker, dash) for colour, marker, dash in pairs)


def finish(figure):
    """The figure as a data address; the same bytes for the same data."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()


MAX_LABEL = 80  # characters


def label_of(name):
    """A name from a file as a label: one line, of characters that an SVG may hold. matplotlib
    hides labels that begin with "_"."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in name)
    line = " " + line if line.startswith("_") else line
    return line if len(line) <= MAX_LABEL else line[:MAX_LABEL] + "…"


def legend_below(axes, count):
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncol=2 if count > 3 else 1,
        fontsize=7.5,
        handlelength=4,
    )


def plain(value, _=None):
    return f"{value:g}"


def some_plain(value, _=None):
    """Labels between powers of ten: at 2 and 5 alone."""
    return plain(value) if f"{value:e}"[:4] in ("2.00", "5.00") else ""


def against_position(source):
    """Mean KL of each range of positions, one line a cache."""
    figure, axes = plt.subplots(figsize=(6.6, 3.3))
    lines, style = 0, styles()
    for row in source.rows:
        parts = [part for part in row.get("kl_by_position", []) if part["mean"] > 0]
        if row["kv"] == "f16" or not parts:
            continue
        x = [part["to"] for part in parts]
        y = [part["mean"] for part in parts]
        low = [max(part["ci95"][0], part["mean"] / 1e3) for part in parts]
        high = [part["ci95"][1] for part in parts]
        floor = row["kv"].startswith("f16")
        colour, marker, dash = (SOFT, ".", ":") if floor else next(style)
        axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
        label = label_of(row["kv"]) + (" (the floor)" if floor else "")
        axes.plot(
            x, y, color=colour, marker=marker, linestyle=dash, markersize=4, lw=1.3, label=label
        )
        lines += 1
    if lines == 0:
        plt.close(figure)
        return None
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("position in the context, up to (tokens)")
    axes.set_ylabel("KL, nats a token")
    legend_below(axes, lines)
    return finish(figure)


def pareto(points, front, floor):
    """Bits against KL. Points are numbered; the page lists the numbers."""
    figure, axes = plt.subplots(figsize=(6.6, 3.6))
    best = {id(point) for point in front}
    if floor:
        axes.axhline(floor, color=SOFT, lw=1, linestyle=":")
    axes.plot([p[1] for p in front], [p[2] for p in front], color=SOFT, lw=1, linestyle="--")
    for point in points:
        filled = id(point) in best
        if point[3]:
            low, high = max(point[3][0], point[2] / 1e3), point[3][1]
            axes.plot([point[1], point[1]], [low, high], color=SOFT, lw=0.8)
        axes.plot(
            point[1],
            point[2],
            marker="o",
            markersize=5,
            linestyle="none",
            color=INK,
            markerfacecolor=INK if filled else "white",
        )
    axes.set_yscale("log")
    axes.margins(x=0.08, y=0.14)
    place_numbers(figure, axes, points)
    axes.set_xlabel("stored bits a value, exact copies included")
    axes.set_ylabel("KL mean, nats a token")
    return finish(figure)


def place_numbers(figure, axes, points):
    """Each point's number beside it, where no other number or point is."""
    figure.canvas.draw()
    spots = [axes.transData.transform((p[1], p[2])) for p in points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots]
    offsets = [(9, 0), (-9, 0), (0, 10), (0, -10), (9, 9), (-9, 9), (9, -9), (-9, -9)]
    offsets += [(2 * dx, 2 * dy) for dx, dy in offsets] + [(3 * dx, 3 * dy) for dx, dy in offsets]
    for number, (x, y) in enumerate(spots, 1):

        def box(offset, x=x, y=y):
            return (x + offset[0] - 6, y + offset[1] - 5, x + offset[0] + 6, y + offset[1] + 5)

        def overlaps(offset, box=box):
            a = box(offset)
            return sum(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in taken)

        offset = min(offsets, key=lambda o: (overlaps(o), abs(o[0]) + abs(o[1])))
        taken.append(box(offset))
        scale = 72 / figure.dpi
        axes.annotate(
            str(number),
            (points[number - 1][1], points[number - 1][2]),
            xytext=(offset[0] * scale, offset[1] * scale),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            color=INK,
        )


def sweep(source):
    """KL of every variant with its interval, in the order of the sweep."""
    rows = [row for row in source.rows if row["kv"] != "f16" and row["kl"]["mean"] > 0]
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(6.6, 0.5 + 0.24 * len(rows)))
    for place, row in enumerate(rows):
        low, high = row.get("kl_ci95", [row["kl"]["mean"]] * 2)
        axes.plot([max(low, row["kl"]["mean"] / 1e3), high], [place, place], color=SOFT, lw=2.4)
        axes.plot(row["kl"]["mean"], place, "o", color=INK, markersize=4.5)
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels(
        [f"{label_of(row['kv'])}   {row['bits']:.2f} bits" for row in rows], fontsize=7.5
    )
    axes.invert_yaxis()
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.xaxis.set_minor_formatter(FuncFormatter(some_plain))
    axes.set_xlabel("KL mean, nats a token")
    return finish(figure)


def needles(row, form):
    """Depth against length; dark is found. Every cell has its share as a number."""
    cells = [cell for cell in row["cells"] if cell["form"] == form]
    lengths = sorted({cell["ctx"] for cell in cells})
    depths = sorted({cell["depth"] for cell in cells})
    figure, axes = plt.subplots(figsize=(0.9 + 0.56 * len(lengths), 0.7 + 0.32 * len(depths)))
    grid = [[math.nan] * len(lengths) for _ in depths]
    for cell in cells:
        grid[depths.index(cell["depth"])][lengths.index(cell["ctx"])] = cell["share"]
    axes.imshow(grid, cmap="Greys", vmin=-0.15, vmax=1.25, aspect="auto")
    for y, line in enumerate(grid):
        for x, share in enumerate(line):
            if math.isnan(share):
                continue
            colour = "white" if share > 0.6 else INK
            axes.text(x, y, f"{share:.0%}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(len(lengths)))
    axes.set_xticklabels([str(length) for length in lengths], fontsize=7)
    axes.set_yticks(range(len(depths)))
    axes.set_yticklabels([f"{depth:.0%}" for depth in depths], fontsize=7)
    axes.set_xlabel("context, tokens", fontsize=7)
    axes.set_ylabel("depth", fontsize=7)
    axes.grid(False)
    axes.tick_params(length=0)
    return finish(figure)


LAYER_ERRORS = (
    ("output_relative", "output"),
    ("weights_kl", "attention weights, KL"),
    ("k_relative", "keys"),
    ("v_relative", "values"),
)


def layers(row):
    """Per layer: the mean over heads as a bar, the heads' range as a line."""
    by_layer = {}
    for head in row["heads"]:
        by_layer.setdefault(head["layer"], []).append(head)
    places = sorted(by_layer)
    figure, grid = plt.subplots(2, 2, figsize=(6.6, 3.5), sharex=True, layout="constrained")
    for axes, (key, title) in zip(grid.flat, LAYER_ERRORS, strict=True):
        values = [[head[key] for head in by_layer[place]] for place in places]
        means = [sum(one) / len(one) for one in values]
        axes.bar(places, means, color="#9db2c8", edgecolor="#10243f", linewidth=0.5, width=0.75)
        for place, one in zip(places, values, strict=True):
            axes.plot([place, place], [min(one), max(one)], color=INK, lw=0.9)
        axes.set_title(title, fontsize=8, loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
        axes.tick_params(labelsize=7)
        axes.set_ylim(bottom=0)
    for axes in grid[1]:
        axes.set_xlabel("layer", fontsize=7.5)
    return finish(figure)


def spectra(row):
    """Energy of the channels, largest first, before and after the transform: one line a layer."""
    figure, grid = plt.subplots(1, 2, figsize=(6.6, 2.5), sharey=True, layout="constrained")
    for axes, side, title in zip(grid, ("k", "v"), ("keys", "values"), strict=True):
        shades = plt.get_cmap("Greys")
        for kind, dash in (("raw", ":"), ("coded", "-")):
            for place, layer in enumerate(row["channels"]):
                energies = layer[side][kind]
                total = sum(energies) or 1
                shade = shades(0.35 + 0.6 * place / max(len(row["channels"]) - 1, 1))
                axes.plot(
                    range(1, len(energies) + 1),
                    [energy / total * len(energies) for energy in energies],
                    color=shade,
                    linestyle=dash,
                    lw=0.7,
                )
        axes.set_yscale("log")
        axes.set_title(title, fontsize=8, loc="left")
        axes.set_xlabel("channel, largest first")
    grid[0].set_ylabel("energy, the mean is 1")
    grid[0].plot([], [], color=INK, linestyle=":", label="as the model makes them")
    grid[0].plot([], [], color=INK, linestyle="-", label="as they are coded")
    figure.legend(fontsize=7.5, loc="outside lower center", ncol=2)
    return finish(figure)


def speed(rows):
    """Tokens a second of prefill and of decoding."""
    figure, grid = plt.subplots(
        1, 2, figsize=(6.6, 0.6 + 0.26 * len(rows)), sharey=True, layout="constrained"
    )
    names = [name for name, _ in rows]
    for axes, key, title in zip(
        grid,
        ("prefill_tokens_per_s", "decode_tokens_per_s"),
        ("prefill, tokens/s", "decode, tokens/s"),
        strict=True,
    ):
        values = [speeds[key] for _, speeds in rows]
        axes.barh(range(len(rows)), values, color="#9db2c8", edgecolor="#10243f", linewidth=0.5)
        for place, value in enumerate(values):
            axes.text(value, place, f" {value:.0f}", va="center", fontsize=7)
        axes.margins(x=0.15)
        axes.set_title(title, fontsize=8, loc="left")
    grid[0].set_yticks(range(len(rows)))
    grid[0].set_yticklabels([label_of(name) for name in names], fontsize=7.5)
    grid[0].invert_yaxis()
    return finish(figure)
