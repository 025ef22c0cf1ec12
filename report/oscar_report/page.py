"""The report as one HTML page, without anything from outside."""

import html
import importlib

import load

STYLE = """
@page { size: A4; margin: 16mm 14mm 16mm 14mm;
        @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif; } }
* { box-sizing: border-box; }
body { font: 10pt/1.45 "DejaVu Sans", Verdana, sans-serif; color: #1a1a1a; max-width: 52rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 17pt; margin: 0 0 .2rem; }
h2 { font-size: 12.5pt; margin: 2rem 0 .4rem; border-bottom: 1px solid #8a8a8a; }
h3 { font-size: 10.5pt; margin: 1.1rem 0 .3rem; }
p.note, figcaption { font-size: 8.5pt; color: #555; margin: .3rem 0; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 8pt; margin: .5rem 0; width: 100%; }
th, td { padding: .22rem .4rem; text-align: right; vertical-align: top;
         border-bottom: 1px solid #ddd; }
th { font-weight: bold; border-bottom: 1px solid #1a1a1a; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td.left, th.left { text-align: left; }
small { display: block; color: #666; font-size: 7pt; white-space: nowrap; }
sup { font-size: 6.5pt; color: #555; }
td.best { font-weight: bold; }
code { font: 8pt "DejaVu Sans Mono", monospace; overflow-wrap: break-word; }
td.left:last-child code { overflow-wrap: anywhere; }
figure { margin: .6rem 0; break-inside: avoid; }
figure img { max-width: 100%; }
div.maps { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; }
div.maps figure { margin: .2rem 0; }
div.maps figcaption { max-width: 16rem; }
h2, h3 { break-after: avoid; }
tr { break-inside: avoid; }
@media print { body { margin: 0; padding: 0; max-width: none; } }
"""


def text(value):
    return html.escape(str(value))


def kv_html(kv, marks=":,/"):
    """A specification or a file's name, which may break where its parts end."""
    broken = text(kv)
    for mark in marks:
        broken = broken.replace(mark, mark + "<wbr>")
    return f"<code>{broken}</code>"


def memory(num_bytes):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError("units end with GiB")


def table(head, rows, left=()):
    """`head` and cells are HTML. Columns in `left` are aligned left; the first always is."""

    def line(tag, cells):
        marked = (
            f'<{tag} class="left">{cell}</{tag}>' if i in left else f"<{tag}>{cell}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return "<tr>" + "".join(marked) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="wide"><table><thead>{line("th", head)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(address, caption, description):
    return (
        f'<figure><img src="{address}" alt="{text(description)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def titled(address, title, description):
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<img src="{address}" alt="{text(description)}"></figure>'
    )


def cell_html(cell, pattern):
    if cell is None:
        return "–"
    value = memory(cell.value) if pattern == "{}" else pattern.format(cell.value)
    interval = ""
    if cell.interval and pattern != "{}":
        low, high = (pattern.format(edge) for edge in cell.interval)
        interval = f"<small>{low} … {high}</small>"
    return f"{value}<sup>{cell.source}</sup>{interval}"


def summary_html(sources):
    values = load.summary(sources)
    if not values:
        return ""
    parts = []
    for group in (load.METRICS[: load.NUM_COST_METRICS], load.METRICS[load.NUM_COST_METRICS :]):
        metrics = [metric for metric in group if any(metric[0] in v for v in values.values())]
        rows = [
            [kv_html(kv)] + [cell_html(cells.get(key), pattern) for key, _, pattern in metrics]
            for kv, cells in values.items()
            if any(key in cells for key, _, _ in metrics)
        ]
        if metrics:
            parts.append(table(["KV cache"] + [text(heading) for _, heading, _ in metrics], rows))
    note = (
        '<p class="note">Small: 95 % intervals. Letters: the file that a number is from, listed '
        "at the end with the command that gives it again. KL in nats a token against the f16 "
        "cache; <code>f16:fa-off</code> is the floor: f16 with flash attention off, against on. "
        "Bits and memory count everything stored, exact copies included, at the length of the "
        "file.</p>"
    )
    return "<h2>Summary</h2>" + "".join(parts) + note


def position_html(sources, figures):
    parts = []
    for source in load.of(sources, "kl"):
        address = None if "sweep" in source.document else figures.against_position(source)
        if address:
            caption = (
                f"{source.letter}: {text(source.text)}. Bands: 95 % intervals of the means. "
                "Positions before the last half of the context are sampled."
            )
            parts.append(figure(address, caption, "mean KL against position"))
    return "<h2>KL against position</h2>" + "".join(parts) if parts else ""


def pareto_html(sources, figures):
    points = load.pareto_points(sources)
    if len(points) < 2:
        return ""
    front = load.pareto_front(points)
    floor = load.floor_kl(sources)
    address = figures.pareto(points, front, floor)
    best = {id(point) for point in front}
    rows = [
        [
            str(i),
            kv_html(p[0]),
            f"{p[1]:.3f}",
            f"{p[2]:.5f}<sup>{p[4]}</sup>",
            "yes" if id(p) in best else "",
        ]
        for i, p in enumerate(points, 1)
    ]
    caption = "Filled: no other has both fewer bits and a lower KL. Upright lines: 95 % intervals."
    if floor:
        caption += " Dotted: the floor, f16 with flash attention off against on."
    head = ["no.", "KV cache", "bits", "KL mean", "on the front"]
    return (
        "<h2>Bits against KL</h2>"
        + figure(address, caption, "stored bits against mean KL")
        + table(head, rows, left=(1,))
    )


def sweep_html(sources, figures):
    parts = []
    for source in load.of(sources, "kl"):
        if "sweep" not in source.document:
            continue
        rows = [
            [
                kv_html(row["kv"]),
                f"{row['bits']:.3f}",
                memory(row["kv_bytes"]),
                cell_html(load.Cell(row["ppl"], load.interval(row, "ppl_ci95")), "{:.3f}"),
                cell_html(load.Cell(row["kl"]["mean"], load.interval(row, "kl_ci95")), "{:.5f}"),
                f"{row['kl']['median']:.5f}",
                f"{row['kl']['trimmed10']:.5f}",
                f"{row['top1']:.1%}",
            ]
            for row in source.rows
        ]
        title = f"<h3>{text(source.document['sweep'])} of {text(source.document['base'])}</h3>"
        head = "KV cache,bits,KV memory,perplexity,KL mean,median,10 % trimmed,same top".split(",")
        caption = f"{source.letter}: {text(source.text)}, lines: 95 % intervals"
        parts.append(
            title + figure(figures.sweep(source), caption, "KL of a sweep") + table(head, rows)
        )
    return "<h2>Sweeps</h2>" + "".join(parts) if parts else ""


def needle_html(sources, figures):
    parts = []
    for source in load.of(sources, "niah"):
        together = source.document.get("needles") != "alone"
        for form in sorted({cell["form"] for row in source.rows for cell in row["cells"]}):
            maps = "".join(
                titled(figures.needles(row, form), kv_html(row["kv"]), f"needles under {row['kv']}")
                for row in source.rows
            )
            parts.append(f"<h3>{text(form)} ({source.letter})</h3><div class='maps'>{maps}</div>")
        asked = source.rows[0]["cells"][0]["asked"]
        parts.append(
            '<p class="note">Dark: found. Mean share of the digits or words of an answer that '
            f"are right, {asked} questions a cell; "
            + (
                "the needles of all depths are in one document and distract from each other."
                if together
                else "one needle a document."
            )
            + "</p>"
        )
    return "<h2>Needles</h2>" + "".join(parts) if parts else ""


def retrieval_table(source):
    lengths = [part["ctx"] for part in source.rows[0]["by_ctx"]]
    head = ["KV cache", "questions", "right"] + [f"at {length} tokens" for length in lengths]
    rows = [
        [
            kv_html(row["kv"]),
            str(row["asked"]),
            cell_html(
                load.Cell(row["right"], load.interval(row, "right_ci95"), source.letter), "{:.0%}"
            ),
        ]
        + [f"{part['right']:.0%} <small>of {part['asked']}</small>" for part in row["by_ctx"]]
        for row in source.rows
    ]
    return table(head, rows)


def qa_html(sources):
    parts = [retrieval_table(source) for source in load.of(sources, "qa")]
    return "<h2>Questions about a long document</h2>" + "".join(parts) if parts else ""


def generate_html(sources):
    parts = []
    for source in load.of(sources, "generate"):
        rows = [
            [
                kv_html(row["kv"]),
                cell_html(
                    load.Cell(
                        row["common_prefix"],
                        load.interval(row, "common_prefix_ci95"),
                        source.letter,
                    ),
                    "{:.1%}",
                ),
                f"{row['overlap']['1']:.1%}",
                f"{row['overlap']['4']:.1%}",
                f"{row['repeated4']:.1%}",
                f"{row['loops']} of {len(row['texts'])}",
                f"{row['foreign']:.1%}",
            ]
            for row in source.rows
        ]
        head = [
            "KV cache",
            "same from the start",
            "same words",
            "same 4-grams",
            "repeated 4-grams",
            "texts that loop",
            "foreign characters",
        ]
        document = source.document
        parts.append(
            table(head, rows) + f'<p class="note">Greedy, {document["new_tokens"]} tokens behind '
            f"{document['prompt_tokens']} of {text(source.text)}; the same: as with f16.</p>"
        )
    return "<h2>Long generations</h2>" + "".join(parts) if parts else ""


def layers_html(sources, figures):
    parts = []
    for source in load.of(sources, "layers"):
        for row in source.rows:
            kv = kv_html(row["kv"])
            parts.append(
                f"<h3>{kv} ({source.letter})</h3>"
                + figure(
                    figures.layers(row),
                    "Bars: mean over KV heads; lines: lowest and highest head. Output, keys, "
                    "values: squared error relative to the exact rows; weights: nats a query.",
                    f"errors per layer of {row['kv']}",
                )
            )
            if row.get("channels"):
                parts.append(
                    figure(
                        figures.spectra(row),
                        "Spectra: one line a layer, later layers darker.",
                        f"spectra of {row['kv']}",
                    )
                )
    return "<h2>Layers</h2>" + "".join(parts) if parts else ""


def speed_rows(sources):
    rows = []
    for source in load.of(sources, "compare", "run"):
        for row in source.rows:
            speeds = row["answer"] if source.measure == "compare" else row
            rows.append((f"{row['kv']} ({source.letter})", speeds))
    return rows


def speed_html(sources, figures):
    rows = speed_rows(sources)
    if not rows:
        return ""
    hosts = {
        f"{s.document.get('host', '')}, {s.document.get('threads', '?')} threads"
        for s in load.of(sources, "compare", "run")
    }
    caption = "One run each on " + text("; ".join(sorted(hosts)))
    return "<h2>Speed</h2>" + figure(figures.speed(rows), caption, "tokens per second")


def sources_html(sources, unknown):
    rows = [
        [
            source.letter,
            kv_html(source.name, "-_."),
            text(source.document.get("sweep", "") and "sweep" or source.measure),
            text(source.text),
            text(source.document.get("host") or source.document.get("server", "")),
            f"<code>{text(source.document.get('command', 'not recorded'))}</code>",
        ]
        for source in sources
    ]
    head = ["", "file", "measure", "text", "host", "command"]
    skipped = ""
    if unknown:
        skipped = '<p class="note">Not shown, as they hold no measurements: '
        skipped += text(", ".join(unknown)) + ".</p>"
    return (
        "<h2>How to get each number again</h2>" + table(head, rows, left=(1, 2, 3, 4, 5)) + skipped
    )


def render(sources, unknown):
    figures = importlib.import_module("figures")
    first = sources[0].document
    model = first.get("model", "")
    about = ["oscar " + first["version"]]
    if any("llama_cpp" in source.document for source in sources):
        about.append(
            "llama.cpp "
            + ", ".join(
                sorted({s.document["llama_cpp"] for s in sources if "llama_cpp" in s.document})
            )
        )
    about.append(f"{len(sources)} result files")
    sections = [
        summary_html(sources),
        pareto_html(sources, figures),
        position_html(sources, figures),
        sweep_html(sources, figures),
        needle_html(sources, figures),
        qa_html(sources),
        generate_html(sources),
        layers_html(sources, figures),
        speed_html(sources, figures),
        sources_html(sources, unknown),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="{load.GENERATOR}">'
        f"<title>KV caches of {text(model)}</title><style>{STYLE}</style></head><body>"
        f"<h1>KV caches of {text(model)}</h1><p class='note'>{text(', '.join(about))}</p>"
        + "\n".join(section for section in sections if section)
        + "</body></html>\n"
    )
