"""Writes the measured tables of README.md and docs/methods.md from the JSON files in bench/results.

A section lies between the comments `<!-- NAME:begin … -->` and `<!-- NAME:end -->`:
  demo      demo.json, what `scripts/demo --json` wrote
  quality   DATE-eval-kl-MODEL-4k.json, what `oscar eval kl --json` wrote; the last date of each
  cuda      DATE-cuda-decode-DEVICE.json and DATE-cuda-loop-DEVICE.json, of `scripts/gpu_check`
  methods   DATE-eval-methods-MODEL-*.json, what `oscar eval kl --kv all --json` wrote, in pieces

Usage: update_readme.py            rewrites both
       update_readme.py --check    exits 1 when one of them and the figures disagree
"""

import json
import pathlib
import sys
from collections.abc import Callable

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "bench" / "results"
MAX_ANSWER = 60  # characters shown

QUALITY_MODELS = {
    "smollm2-135m": "SmolLM2-135M",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B",
    "gemma-3-270m": "Gemma-3-270M",
}
QUALITY_ROWS = {
    "f16": "`f16`: perplexity",
    "f16:fa-off": "`f16`, flash attention off: the floor",
    "quarot": "`quarot`",
    "oscar": "`oscar`",
    "oscar-plus": "`oscar-plus`",
    "oscar-plus:trellis": "`oscar-plus:trellis`",
    "oscar-plus:k3v2": "`oscar-plus:k3v2`",
    "quarot:k4v4": "`quarot:k4v4`, for comparison",
    "oscar:no-hadamard": "`oscar:no-hadamard`",
    "oscar:sink=0,recent=0": "`oscar:sink=0,recent=0`",
}


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def kv_name(result: dict) -> str:
    """The method in place of the artefact's file, with its options."""
    options = result["kv"].rpartition(".safetensors")[2] if ".safetensors" in result["kv"] else ""
    return result["method"] + options if ".safetensors" in result["kv"] else result["kv"]


def demo() -> str:
    report = read(RESULTS / "demo.json")
    exact = next(row for row in report["results"] if row["kv"] == "f16")
    lines = [
        "| KV cache | answer | bits | KV memory | prefill tok/s | decode tok/s | perplexity | KL |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["results"]:
        answer = row["answer"]
        text = " ".join(answer["answer"].split()).replace("|", "\\|")
        if len(text) > MAX_ANSWER:
            text = text[: MAX_ANSWER - 1] + "…"
        name = pathlib.PurePath(row["kv"]).name.removesuffix(".safetensors")
        ratio = exact["answer"]["kv_bytes"] / answer["kv_bytes"]
        cells = (
            f"`{name}`",
            f"{text} ({'right' if answer['right'] else 'wrong'})",
            f"{answer['bits']:.2f}",
            f"{size(answer['kv_bytes'])} (÷ {ratio:.1f})",
            f"{answer['prefill_tokens_per_s']:.0f}",
            f"{answer['decode_tokens_per_s']:.1f}",
            f"{row['ppl']:.2f}",
            f"{row['kl']['mean']:.4f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    floor = report["floor"]["kl"]["mean"]
    prompt = exact["answer"]["prompt_tokens"]
    model = pathlib.PurePath(str(report["model"])).name
    lines += [
        "",
        f"{model}, one question about a text of {prompt:,} tokens; bits and memory with the exact",
        "copies, at the end of the answer. Perplexity and KL (nats a token against f16) are over",
        f"the last half of the text's first {report['floor']['ctx']:,} tokens; the same model with",
        f"flash attention off and on differs by {floor:.4f}. On 2 cores of an {report['host']}.",
    ]
    return "\n".join(lines)


def small(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def quality() -> str:
    """KL of every KV cache on every model that was measured."""
    cells: dict[str, dict[str, str]] = {name: {} for name in QUALITY_ROWS}
    sources = []
    for model in QUALITY_MODELS:
        path = max(RESULTS.glob(f"*-eval-kl-{model}-4k.json"))
        sources.append(path.name)
        for result in read(path)["results"]:
            name, perplexity = kv_name(result), f"{result['ppl']:.2f}"
            if result["ppl"] >= 100:
                perplexity = f"{result['ppl']:.0f}"
            text = perplexity
            if name != "f16":
                kl = result["kl"]
                text = f"{small(kl['mean'])} ({small(kl['trimmed10'])}) · {perplexity}"
            if name in cells:
                cells[name][model] = text
    lines = [
        "| KV cache | " + " | ".join(QUALITY_MODELS.values()) + " |",
        "| --- |" + " --- |" * len(QUALITY_MODELS),
    ]
    for name, label in QUALITY_ROWS.items():
        row = [cells[name].get(model, "") for model in QUALITY_MODELS]
        lines.append(f"| {label} | " + " | ".join(row) + " |")
    lines += ["", "From `bench/results/`: " + ", ".join(f"`{name}`" for name in sources) + "."]
    return "\n".join(lines)


def cuda_us(results: list[dict], kernels: tuple[str, ...], heads: int, size: tuple) -> float:
    """Shortest sustained time of a launch; ours with K2 V2 affine and exact copies."""
    return min(
        result["us"]["median"]
        for result in results
        if result["kernel"] in kernels
        and "burst" not in result["variant"]
        and (result["kernel"] != "oscar" or "affine window" in result["variant"])
        and not result["shape"]["mean_term"]
        and result["shape"]["num_q_heads"] == heads
        and result["shape"]["head_dim"] == 128
        and (result["shape"]["batch"], result["shape"]["context"]) == size
    )


def cuda() -> str:
    """Decode attention against the faster BF16 kernel of the same run, and whole decode steps."""
    decode = max(RESULTS.glob("*-cuda-decode-*.json"))
    loop = max(RESULTS.glob("*-cuda-loop-*.json"))
    results = read(decode)["results"]
    sizes = [(1, 30000), (1, 100000), (8, 30000), (8, 100000), (32, 30000), (32, 100000)]
    titles = [f"batch {batch}, {context // 1000}k" for batch, context in sizes]
    lines = ["| attention, µs | " + " | ".join(titles) + " |", "| --- |" + " --- |" * len(sizes)]
    for heads in (32, 64):
        ours = [cuda_us(results, ("oscar",), heads, size) for size in sizes]
        theirs = [cuda_us(results, ("flashinfer", "fa3"), heads, size) for size in sizes]
        cells = [f"{a:.1f} / {b:.0f} (÷ {b / a:.1f})" for a, b in zip(ours, theirs, strict=True)]
        lines.append(f"| {heads} query, 8 KV heads of 128 | " + " | ".join(cells) + " |")
    steps = {(r["model"], r["batch"], r["context"]): r for r in read(loop)["results"]}
    for model, label in (("qwen3-8b", "Qwen3-8B"), ("qwen3-4b", "Qwen3-4B")):
        rows = [steps[(model, *size)] for size in sizes]
        rivals = [r[f"{r.get('rival', 'fa3')}_ms"] for r in rows]
        cells = [
            f"{r['oscar_ms']:.1f} / {rival:.1f} ms (÷ {rival / r['oscar_ms']:.1f})"
            for r, rival in zip(rows, rivals, strict=True)
        ]
        lines.append(f"| a decode step of {label}'s shape | " + " | ".join(cells) + " |")
    report = read(decode)
    lines += [
        "",
        f"{report['device']}, CUDA {report['cuda']}, commit {report['commit']}, {report['date']}; "
        "sustained load, layers rotated past the L2.",
        f"From `bench/results/{decode.name}` and `{loop.name}`.",
    ]
    return "\n".join(lines)


# Context, then model, then KV cache: its result.
MethodResults = dict[int, dict[str, dict[str, dict]]]


def method_results() -> tuple[MethodResults, list[str]]:
    """Results by context; of two files that have the same cache the later. And the files."""
    found: MethodResults = {}
    sources = []
    for model in QUALITY_MODELS:
        for path in sorted(RESULTS.glob(f"*-eval-methods-{model}-*.json")):
            sources.append(path.name)
            for result in read(path)["results"]:
                models = found.setdefault(result["ctx"], {})
                models.setdefault(model, {})[kv_name(result)] = result
    return found, sources


def methods_table(found: dict[str, dict[str, dict]]) -> list[str]:
    """Bits and KL of every method on every model, ascending on the first."""
    names = {name for results in found.values() for name in results} - {"f16"}

    def order(name: str) -> tuple[float, ...]:
        return tuple(found[m][name]["kl"]["mean"] if name in found[m] else 1e9 for m in found)

    lines = [
        "| KV cache | " + " | ".join(QUALITY_MODELS[model] for model in found) + " |",
        "| --- |" + " --- |" * len(found),
    ]
    for name in sorted(names, key=order):
        row = []
        for results in found.values():
            if name not in results:
                row.append("")
                continue
            kl, bits = results[name]["kl"], results[name].get("code_bits", results[name]["bits"])
            row.append(f"{small(kl['mean'])} ({small(kl['median'])}) · {bits:.2f}")
        lines.append(f"| `{name}` | " + " | ".join(row) + " |")
    return lines


def methods() -> str:
    """A table for each context that was measured, the longest first."""
    found, sources = method_results()
    if not found:
        return "Nothing was measured yet."
    lines = []
    for ctx in sorted(found, reverse=True):
        lines += [f"Over the last half of {ctx:,} tokens:", "", *methods_table(found[ctx]), ""]
    lines += [
        "KL in nats a token against f16 on held-out text, mean (median), and stored bits a value",
        "without exact copies. `f16:fa-off` is the floor.",
        f"From `bench/results/`: {', '.join(f'`{name}`' for name in sources)}.",
    ]
    return "\n".join(lines)


SECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"demo": demo, "quality": quality, "cuda": cuda},
    "docs/methods.md": {"methods": methods},
}


def rewritten(text: str, sections: dict[str, Callable[[], str]]) -> str:
    for name, section in sections.items():
        begin = text.index("\n", text.index(f"<!-- {name}:begin")) + 1
        end = text.index(f"<!-- {name}:end -->")
        text = text[:begin] + section() + "\n" + text[end:]
    return text


def main() -> int:
    agrees = True
    for name, sections in SECTIONS.items():
        page = REPOSITORY / name
        text = page.read_text(encoding="utf-8")
        new = rewritten(text, sections)
        if new == text:
            continue
        agrees = False
        if "--check" in sys.argv[1:]:
            print(f"{name} and bench/results disagree; run scripts/update_readme.py")
        else:
            page.write_text(new, encoding="utf-8")
    return 0 if agrees or "--check" not in sys.argv[1:] else 1


if __name__ == "__main__":
    sys.exit(main())
