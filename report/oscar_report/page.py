"""The report as one HTML page, without anything from outside."""

import html
import importlib
import re

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


class Html(str):
    """What is HTML already: of markup(), or a literal of this program."""


def cleaned(value):
    """Text that every reader of HTML and of XML accepts."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(value))


def text(value):
    """The one place where a value becomes HTML: escaped, unless it is HTML."""
    return value if isinstance(value, Html) else Html(html.escape(cleaned(value)))


def markup(pattern, *values):
    """`pattern`, a literal, with the text of a value for each {}."""
    parts = pattern.split("{}")
    assert len(parts) == len(values) + 1, pattern
    filled = "".join(text(value) + part for value, part in zip(values, parts[1:], strict=True))
    return Html(parts[0] + filled)


def joined(values, separator=""):
    return Html(text(separator).join(text(value) for value in values))


def kv_html(kv, marks=":,/"):
    """A specification or a file's name, which may break where its parts end."""
    parts = re.split(f"(?<=[{re.escape(marks)}])", str(kv))
    return markup("<code>{}</code>", joined(parts, Html("<wbr>")))


def memory(num_bytes):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError("units end with GiB")


def table(head, rows, left=()):
    """Columns in `left` are aligned left; the first always is."""

    def line(cell, left_cell, cells):
        marked = (markup(left_cell if i in left else cell, one) for i, one in enumerate(cells))
        return markup("<tr>{}</tr>", joined(marked))

    return markup(
        '<div class="wide"><table><thead>{}</thead><tbody>{}</tbody></table></div>',
        line("<th>{}</th>", '<th class="left">{}</th>', head),
        joined(line("<td>{}</td>", '<td class="left">{}</td>', row) for row in rows),
    )


def figure(address, caption, description):
    return markup(
        '<figure><img src="{}" alt="{}"><figcaption>{}</figcaption></figure>',
        address,
        description,
        caption,
    )


def titled(address, title, description):
    return markup(
        '<figure><figcaption>{}</figcaption><img src="{}" alt="{}"></figure>',
        title,
        address,
        description,
    )


def section(heading, parts):
    return markup("<h2>{}</h2>{}", heading, joined(parts)) if parts else Html()


def with_letter(value, letter):
    return markup("{}<sup>{}</sup>", value, letter)


def cell_html(cell, pattern):
    if cell is None:
        return "–"
    value = memory(cell.value) if pattern == "{}" else pattern.format(cell.value)
    interval = ""
    if cell.interval and pattern != "{}":
        interval = markup("<small>{} … {}</small>", *(pattern.format(one) for one in cell.interval))
    return joined([with_letter(value, cell.source), interval])


def summary_html(sources):
    values = load.summary(sources)
    if not values:
        return Html()
    parts = []
    for group in (load.METRICS[: load.NUM_COST_METRICS], load.METRICS[load.NUM_COST_METRICS :]):
        metrics = [metric for metric in group if any(metric[0] in v for v in values.values())]
        rows = [
            [kv_html(kv)] + [cell_html(cells.get(key), pattern) for key, _, pattern in metrics]
            for kv, cells in values.items()
            if any(key in cells for key, _, _ in metrics)
        ]
        if metrics:
            parts.append(table(["KV cache"] + [heading for _, heading, _ in metrics], rows))
    note = Html(
        '<p class="note">Small: 95 % intervals. Letters: the file that a number is from, listed '
        "at the end with the command that gives it again. KL in nats a token against the f16 "
        "cache; <code>f16:fa-off</code> is the floor: f16 with flash attention off, against on. "
        "Bits and memory count everything stored, exact copies included, at the length of the "
        "file.</p>"
    )
    return section("Summary", [*parts, note])


def position_html(sources, figures):
    parts = []
    for source in load.of(sources, "kl"):
        address = None if "sweep" in source.document else figures.against_position(source)
        if address:
            caption = (
                f"{source.letter}: {source.text}. Bands: 95 % intervals of the means. "
                "Positions before the last half of the context are sampled."
            )
            parts.append(figure(address, caption, "mean KL against position"))
    return section("KL against position", parts)


def pareto_html(sources, figures):
    points = load.pareto_points(sources)
    if len(points) < 2:
        return Html()
    front = load.pareto_front(points)
    floor = load.floor_kl(sources)
    address = figures.pareto(points, front, floor)
    best = {id(point) for point in front}
    rows = [
        [
            str(i),
            kv_html(p[0]),
            f"{p[1]:.3f}",
            with_letter(f"{p[2]:.5f}", p[4]),
            "yes" if id(p) in best else "",
        ]
        for i, p in enumerate(points, 1)
    ]
    caption = "Filled: no other has both fewer bits and a lower KL. Upright lines: 95 % intervals."
    if floor:
        caption += " Dotted: the floor, f16 with flash attention off against on."
    head = ["no.", "KV cache", "bits", "KL mean", "on the front"]
    return section(
        "Bits against KL",
        [
            figure(address, caption, "stored bits against mean KL"),
            table(head, rows, left=(1,)),
        ],
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
        title = markup("<h3>{} of {}</h3>", source.document["sweep"], source.document["base"])
        head = "KV cache,bits,KV memory,perplexity,KL mean,median,10 % trimmed,same top".split(",")
        caption = f"{source.letter}: {source.text}, lines: 95 % intervals"
        address = figures.sweep(source)
        parts.append(title)
        if address:
            parts.append(figure(address, caption, "KL of a sweep"))
        parts.append(table(head, rows))
    return section("Sweeps", parts)


def needle_html(sources, figures):
    parts = []
    for source in load.of(sources, "niah"):
        together = source.document.get("needles") != "alone"
        for form in sorted({cell["form"] for row in source.rows for cell in row["cells"]}):
            maps = joined(
                titled(figures.needles(row, form), kv_html(row["kv"]), f"needles under {row['kv']}")
                for row in source.rows
                if any(cell["form"] == form for cell in row["cells"])
            )
            parts.append(
                markup("<h3>{} ({})</h3><div class='maps'>{}</div>", form, source.letter, maps)
            )
        parts.append(
            markup(
                '<p class="note">Dark: found. Mean share of the digits or words of an answer that '
                "are right, {} questions a cell; {}</p>",
                source.rows[0]["cells"][0]["asked"],
                "the needles of all depths are in one document and distract from each other."
                if together
                else "one needle a document.",
            )
        )
    return section("Needles", parts)


def retrieval_table(source):
    lengths = sorted({part["ctx"] for row in source.rows for part in row["by_ctx"]})
    head = ["KV cache", "questions", "right"] + [f"at {length} tokens" for length in lengths]
    rows = []
    for row in source.rows:
        right = load.Cell(row["right"], load.interval(row, "right_ci95"), source.letter)
        cells = [kv_html(row["kv"]), row["asked"], cell_html(right, "{:.0%}")]
        at = {part["ctx"]: part for part in row["by_ctx"]}
        cells += [
            markup("{} <small>of {}</small>", f"{at[length]['right']:.0%}", at[length]["asked"])
            if length in at
            else "–"
            for length in lengths
        ]
        rows.append(cells)
    return table(head, rows)


def qa_html(sources):
    return section(
        "Questions about a long document",
        [retrieval_table(source) for source in load.of(sources, "qa")],
    )


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
        note = markup(
            '<p class="note">Greedy, {} tokens behind {} of {}; the same: as with f16.</p>',
            source.document["new_tokens"],
            source.document["prompt_tokens"],
            source.text,
        )
        parts += [table(head, rows), note]
    return section("Long generations", parts)


def layers_html(sources, figures):
    parts = []
    for source in load.of(sources, "layers"):
        for row in source.rows:
            parts.append(markup("<h3>{} ({})</h3>", kv_html(row["kv"]), source.letter))
            parts.append(
                figure(
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
    return section("Layers", parts)


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
        return Html()
    hosts = {
        f"{s.document.get('host', '')}, {s.document.get('threads', '?')} threads"
        for s in load.of(sources, "compare", "run")
    }
    caption = "One run each on " + "; ".join(sorted(hosts))
    return section("Speed", [figure(figures.speed(rows), caption, "tokens per second")])


def sources_html(sources, unknown):
    rows = [
        [
            source.letter,
            kv_html(source.name, "-_."),
            "sweep" if "sweep" in source.document else source.measure,
            source.text,
            source.document.get("host") or source.document.get("server", ""),
            markup("<code>{}</code>", source.document.get("command", "not recorded")),
        ]
        for source in sources
    ]
    parts = [table(["", "file", "measure", "text", "host", "command"], rows, left=(1, 2, 3, 4, 5))]
    if unknown:
        parts.append(
            markup(
                '<p class="note">Not shown, as they hold no measurements: {}.</p>',
                ", ".join(unknown),
            )
        )
    return section("How to get each number again", parts)


# What render() begins a page with; a page that begins so is one of ours.
HEAD = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
GENERATOR = '<meta name="generator" content="oscar report {}">'


def render(sources, unknown):
    figures = importlib.import_module("figures")
    first = sources[0].document
    about = ["oscar " + first["version"]]
    versions = {s.document["llama_cpp"] for s in sources if "llama_cpp" in s.document}
    if versions:
        about.append("llama.cpp " + ", ".join(sorted(versions)))
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
    title = "KV caches of " + first.get("model", "")
    return joined(
        [
            Html(HEAD),
            markup(GENERATOR, first["version"]),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            markup("<title>{}</title><style>{}</style></head><body>", title, Html(STYLE)),
            markup("<h1>{}</h1><p class='note'>{}</p>", title, ", ".join(about)),
            joined([one for one in sections if one], "\n"),
            Html("</body></html>\n"),
        ]
    )
