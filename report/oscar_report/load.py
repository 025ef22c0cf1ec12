"""Result files of one folder: which there are, and whether they belong together."""

import dataclasses
import json
import pathlib
import string

GENERATOR = "oscar report"  # in the head of a page, and a comment at the end of a PDF


class ReportError(Exception):
    """One line for the user: the thing, what it holds, what would be right."""


@dataclasses.dataclass(frozen=True)
class Source:
    """One result file. `letter` stands for it beside every number that comes from it."""

    letter: str
    name: str
    measure: str
    document: dict

    @property
    def rows(self):
        return self.document["results"]

    @property
    def text(self):
        return self.document.get("text", "")


def measure_of(document):
    """Results from before files named their measure are told by what their rows hold."""
    if "measure" in document:
        return document["measure"]
    rows = document.get("results")
    if not isinstance(rows, list) or not rows:
        return None
    if isinstance(rows[0].get("answer"), dict):
        return "compare"
    if isinstance(rows[0].get("kl"), dict):
        return "kl"
    if "ppl" in rows[0]:
        return "ppl"
    if "decode_tokens_per_s" in rows[0]:
        return "run"
    return None


def letters(count):
    """A, B, …, Z, AA, AB, …"""
    names = []
    for i in range(count):
        name, rest = "", i + 1
        while rest:
            rest, digit = divmod(rest - 1, 26)
            name = string.ascii_uppercase[digit] + name
        names.append(name)
    return names


def read(path):
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path}: is no JSON: {error}") from error
    if not isinstance(document, dict) or "version" not in document:
        raise ReportError(f"{path}: is no result of oscar: it has no version; move it elsewhere")
    return document


def check_alike(documents, field, what):
    """All files that have the field have one value in it."""
    seen = {}
    for name, document in documents:
        if field in document:
            seen.setdefault(document[field], name)
    if len(seen) > 1:
        pairs = ", ".join(f"{value} ({name})" for value, name in seen.items())
        raise ReportError(f"the results are of different {what}: {pairs}; a report takes one")


def load(folder):
    """The sources of a folder in the order of their names; of one version and model."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise ReportError(f"{folder}: is no folder; give the one that --json files were written to")
    paths = sorted(folder.glob("*.json"))
    documents = [(path.name, read(path)) for path in paths]
    known = [(name, document) for name, document in documents if measure_of(document)]
    unknown = [name for name, document in documents if not measure_of(document)]
    if not known:
        raise ReportError(
            f"{folder}: holds no results of oscar; write some with `oscar eval … --json FILE`"
        )
    check_alike(known, "version", "versions")
    check_alike(known, "model_hash", "models (by the hash of their weights)")
    check_alike(known, "model", "models")
    names = letters(len(known))
    sources = [
        Source(letter, name, measure_of(document), document)
        for letter, (name, document) in zip(names, known, strict=True)
    ]
    return sources, unknown


def of(sources, *measures):
    return [source for source in sources if source.measure in measures]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number, the interval that it lies in, and the file that it is from."""

    value: float
    interval: tuple | None = None
    source: str = ""


# Key, heading, format; "{}" is for bytes. What a cache costs, then what a model does with it.
NUM_COST_METRICS = 7
METRICS = (
    ("bits", "bits", "{:.2f}"),
    ("memory", "KV memory", "{}"),
    ("ppl", "perplexity", "{:.3f}"),
    ("kl", "KL mean", "{:.4f}"),
    ("trimmed", "KL, 10 % trimmed", "{:.4f}"),
    ("p99", "KL, 99 %", "{:.3f}"),
    ("top1", "same top token", "{:.1%}"),
    ("niah", "needles", "{:.0%}"),
    ("qa", "questions", "{:.0%}"),
    ("generate", "same text from the start", "{:.0%}"),
)


def kl_cells(row, letter):
    cells = {"ppl": Cell(row["ppl"], interval(row, "ppl_ci95"), letter)}
    if "kl" in row:
        cells["kl"] = Cell(row["kl"]["mean"], interval(row, "kl_ci95"), letter)
        cells["trimmed"] = Cell(row["kl"]["trimmed10"], None, letter)
        cells["p99"] = Cell(row["kl"]["p99"], None, letter)
        cells["top1"] = Cell(row["top1"], interval(row, "top1_ci95"), letter)
    return cells


def interval(row, key):
    return tuple(row[key]) if key in row else None


def summary(sources):
    """{kv: {metric: Cell}}: for each metric the longest context that a file has, the first file of
    equal ones; results of sweeps stand in their own tables."""
    table, context = {}, {}

    def put(kv, metric, cell, ctx):
        if metric in table.setdefault(kv, {}) and ctx <= context[kv, metric]:
            return
        table[kv][metric] = cell
        context[kv, metric] = ctx

    for source in sources:
        if "sweep" in source.document:
            continue
        for row in source.rows:
            kv, letter, ctx = row["kv"], source.letter, row.get("ctx", 0)
            if source.measure in ("kl", "ppl", "compare"):
                for metric, cell in kl_cells(row, letter).items():
                    put(kv, metric, cell, ctx)
                put(kv, "bits", Cell(row["bits"], None, letter), ctx)
                put(kv, "memory", Cell(row["kv_bytes"], None, letter), ctx)
            elif source.measure in ("niah", "qa"):
                cell = Cell(row["right"], interval(row, "right_ci95"), letter)
                put(kv, source.measure, cell, ctx)
                if "bits" in row:
                    put(kv, "bits", Cell(row["bits"], None, letter), -1)
                    put(kv, "memory", Cell(row["kv_bytes"], None, letter), -1)
            elif source.measure == "generate":
                cell = Cell(row["common_prefix"], interval(row, "common_prefix_ci95"), letter)
                put(kv, "generate", cell, ctx)
                put(kv, "bits", Cell(row["bits"], None, letter), -1)
                put(kv, "memory", Cell(row["kv_bytes"], None, letter), -1)
    # llama.cpp's own cache first, and its floor; the others in the order of the files.
    return dict(sorted(table.items(), key=lambda item: not item[0].startswith("f16")))


def pareto_points(sources):
    """(kv, bits, KL mean, interval, letter) of every cache but llama.cpp's f16, once each: of the
    longest context, the first file of equal ones."""
    points = {}
    for source in of(sources, "kl", "compare"):
        for row in source.rows:
            if row["kv"].startswith("f16") or "kl" not in row or row["kl"]["mean"] <= 0:
                continue
            ctx, known = row.get("ctx", 0), points.get(row["kv"])
            if known and ctx <= known[0]:
                continue
            kl = row["kl"]["mean"]
            point = (row["kv"], row["bits"], kl, interval(row, "kl_ci95"), source.letter)
            points[row["kv"]] = (ctx, point)
    return [point for _, point in points.values()]


def floor_kl(sources):
    """KL of f16 with flash attention off, of the longest context; None where no file has it."""
    rows = [
        row
        for source in of(sources, "kl", "compare")
        for row in source.rows
        if row["kv"] == "f16:fa-off" and "kl" in row
    ]
    return max(rows, key=lambda row: row.get("ctx", 0))["kl"]["mean"] if rows else None


def pareto_front(points):
    """Those that no other point beats in bits and in KL, by ascending bits."""
    front, best = [], float("inf")
    for point in sorted(points, key=lambda point: (point[1], point[2])):
        if point[2] < best:
            front.append(point)
            best = point[2]
    return front
