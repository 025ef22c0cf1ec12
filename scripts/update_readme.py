"""Writes the table of README.md from bench/results/demo.json, what `scripts/demo --json` wrote.

Usage: update_readme.py            rewrites README.md
       update_readme.py --check    exits 1 when README.md and the figures disagree
"""

import json
import pathlib
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- demo:begin", "<!-- demo:end -->"
MAX_ANSWER = 60  # characters shown


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


def table(report: dict) -> str:
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
        "copies, at the end of the answer. KL: nats a token against f16, over the last half of the",
        f"text; the same model with flash attention off and on differs by {floor:.4f}.",
    ]
    return "\n".join(lines)


def main() -> int:
    readme = REPOSITORY / "README.md"
    results = REPOSITORY / "bench" / "results" / "demo.json"
    text = readme.read_text(encoding="utf-8")
    begin = text.index("\n", text.index(BEGIN)) + 1
    new = text[:begin]
    if results.is_file():
        new += table(json.loads(results.read_text(encoding="utf-8"))) + "\n"
    new += text[text.index(END) :]
    if "--check" in sys.argv[1:]:
        if new != text:
            print("README.md and bench/results/demo.json disagree; run scripts/update_readme.py")
            return 1
    else:
        readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
