"""Result files of one folder: which there are, and whether they belong together."""

import dataclasses
import json
import pathlib
import re
import string


class ReportError(Exception):
    """One line for the user: the thing, what it holds, what would be right."""


# What a result file has to hold: field -> kind and range. Fields that the report does not read are
# not listed. A name that ends with "?" may be missing.

MAX_SHOWN = 60  # characters of a wrong value in a message


def wrong(path, value, expected):
    shown = json.dumps(value)
    if len(shown) > MAX_SHOWN:
        shown = shown[:MAX_SHOWN] + "…"
    return ReportError(f"{path} is {shown}; {expected} was expected")


@dataclasses.dataclass(frozen=True)
class Number:
    low: float
    high: float
    whole: bool = False

    def check(self, value, path):
        kind = "a whole number" if self.whole else "a number"
        wanted = int if self.whole else int | float
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise wrong(path, value, kind)
        if not self.low <= value <= self.high:  # NaN is in no range
            raise wrong(path, value, f"{kind} from {self.low:g} to {self.high:g}")


@dataclasses.dataclass(frozen=True)
class Text:
    pattern: str = r"(?s).*"
    expected: str = "text"

    def check(self, value, path):
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise wrong(path, value, self.expected)
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise wrong(path, value, "text of whole Unicode characters")


@dataclasses.dataclass(frozen=True)
class Items:
    item: object
    least: int = 1
    most: int | None = None

    def check(self, value, path):
        count = f"{self.least}" if self.most == self.least else f"at least {self.least}"
        if not isinstance(value, list):
            raise wrong(path, value, "a list")
        if len(value) < self.least or (self.most is not None and len(value) > self.most):
            raise wrong(path, value, f"a list of {count}")
        for i, one in enumerate(value):
            check(one, self.item, f"{path}[{i}]")


def check(value, schema, path=""):
    """Throws ReportError, with the path of the first value that is not as `schema` says."""
    if not isinstance(schema, dict):
        schema.check(value, path)
        return
    if not isinstance(value, dict):
        raise wrong(path, value, "an object")
    for key, part in schema.items():
        name = key.removesuffix("?")
        inner = f"{path}.{name}" if path else name
        if name in value:
            check(value[name], part, inner)
        elif name == key:
            raise ReportError(f"has no {inner}: it is of another version of oscar")


def both_ends(number):
    return Items(number, 2, 2)


COUNT = Number(0, 2**48, whole=True)
SHARE = Number(0, 1)
# A bootstrap's interval may lie beyond the range of what it is an interval of.
SHARE_ENDS = both_ends(Number(-1, 2))
KL = Number(-1, 1e6)
PERPLEXITY = Number(0, 1e100)
ERROR = Number(-1e30, 1e30)
RATE = Number(0, 1e15)

CACHE = {"kv": Text(r"(?s).+", "the name of a cache"), "ctx?": COUNT}
STORED = {"bits": Number(0, 64), "kv_bytes": COUNT}
PREDICTION = {
    **CACHE,
    **STORED,
    "ppl": PERPLEXITY,
    "ppl_ci95?": both_ends(PERPLEXITY),
    "kl_ci95?": both_ends(KL),
    "top1?": SHARE,
    "top1_ci95?": SHARE_ENDS,
    "kl?": {"mean": KL, "median": KL, "trimmed10": KL, "p99": KL},
    "kl_by_position?": Items(
        {"to": Number(1, 2**48, whole=True), "mean": KL, "ci95": both_ends(KL)}, least=0
    ),
}
SPEEDS = {"prefill_tokens_per_s": RATE, "decode_tokens_per_s": RATE}
SCORE = {"asked": COUNT, "right": SHARE, "right_ci95?": SHARE_ENDS}
RETRIEVAL = {
    **CACHE,
    **{f"{key}?": part for key, part in STORED.items()},  # a server does not say
    **SCORE,
    "by_ctx": Items({"ctx": COUNT, **SCORE}),
}
CELL = {"form": Text(), "ctx": COUNT, "depth": SHARE, "asked": COUNT, "share": SHARE}
HEAD_ERRORS = ("output_relative", "weights_kl", "k_relative", "v_relative")
ENERGIES = {kind: Items(Number(0, 1e30)) for kind in ("raw", "coded")}
ROWS = {
    "kl": {key.replace("kl?", "kl").replace("top1?", "top1"): p for key, p in PREDICTION.items()},
    "ppl": PREDICTION,
    "compare": {**PREDICTION, "answer": SPEEDS},
    "run": {**CACHE, **SPEEDS},
    "niah": {**RETRIEVAL, "cells": Items(CELL)},
    "qa": RETRIEVAL,
    "generate": {
        **CACHE,
        **STORED,
        "common_prefix": SHARE,
        "common_prefix_ci95?": SHARE_ENDS,
        "overlap": {"1": SHARE, "4": SHARE},
        "repeated4": SHARE,
        "foreign": SHARE,
        "loops": COUNT,
        "texts": Items({}, least=0),
    },
    "layers": {
        **CACHE,
        "heads": Items({"layer": COUNT, **{name: ERROR for name in HEAD_ERRORS}}),
        "channels?": Items({"k": ENERGIES, "v": ENERGIES}, least=0),
    },
}
# Of every file with a version, also of those that hold no measurements.
ANY_FILE = {
    "version": Text(r"[0-9A-Za-z.+-]{1,40}", 'a version like "0.1.0"'),
    "measure?": Text("|".join(ROWS), "one of " + ", ".join(ROWS)),
    "results?": Items({}, least=0),
}
HEADER = {
    **{
        f"{name}?": Text()
        for name in ("model", "model_hash", "llama_cpp", "host", "server", "command", "text")
    },
    "ctx?": COUNT,
    "threads?": COUNT,
    "sweep?": Text(),
    "base?": Text(),
    "needles?": Text("alone|together", '"alone" or "together"'),
}
GENERATE_HEADER = {"prompt_tokens": COUNT, "new_tokens": COUNT}


def check_document(document):
    check(document, ANY_FILE)
    measure = measure_of(document)
    if measure is None:
        return
    more = GENERATE_HEADER if measure == "generate" else {}
    if "sweep" in document:
        more = {**more, "base": Text()}
    check(document, {**HEADER, **more, "results": Items(ROWS[measure])})


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


def refuse_constant(name):
    raise ValueError(f"{name} is no number of JSON")


def parse(path):
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ReportError("is no regular file")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except OSError as error:
        raise ReportError(f"cannot read: {error.strerror}") from error
    except RecursionError as error:
        raise ReportError("is no result of oscar: it is nested too deeply") from error
    except ValueError as error:
        raise ReportError(f"is no JSON: {error}") from error


def read(path):
    """A document that is as the schema says; the error names the file."""
    try:
        document = parse(path)
        if not isinstance(document, dict) or "version" not in document:
            raise ReportError("is no result of oscar: it has no version; move it elsewhere")
        check_document(document)
    except ReportError as error:
        raise ReportError(f"{path}: {error}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ReportError(f"{path}: is no result of oscar: {type(error).__name__}") from error
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
    if not str(folder):
        raise ReportError("the folder's name is empty; give the one that --json files are in")
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
    if "top1" in row:
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
                if "kv_bytes" in row:
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
