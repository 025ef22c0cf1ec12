#!/usr/bin/env python3
"""Merges the JSON files of the decode benchmarks and prints the table: ratio to the faster of
FlashInfer and FA3, same run.

Usage: table.py MERGED_JSON FILE...
"""

import datetime
import json
import sys

SIZES = [(1, 30000), (1, 60000), (1, 100000), (8, 30000), (8, 100000), (32, 30000), (32, 100000)]


def best(results, kernels, q_heads, size, accept):
    times = [
        r["us"]["median"]
        for r in results
        if r["kernel"] in kernels
        and r["shape"]["num_q_heads"] == q_heads
        and r["shape"]["head_dim"] == 128
        and (r["shape"]["batch"], r["shape"]["context"]) == size
        and accept(r)
    ]
    return min(times) if times else None


def is_sustained(result):
    return "burst" not in result["variant"]


def main():
    merged = None
    for path in sys.argv[2:]:
        with open(path) as file:
            report = json.load(file)
        if merged is None:
            merged = report
        else:
            merged["results"] += report["results"]
    with open(sys.argv[1], "w") as file:
        head = {k: v for k, v in merged.items() if k != "results"}
        head["date"] = datetime.date.today().isoformat()
        lines = ",\n".join("  " + json.dumps(r) for r in merged["results"])
        file.write(json.dumps(head)[:-1] + ', "results": [\n' + lines + "\n]}\n")
    results = merged["results"]
    print(
        f"{merged['device']}, CUDA {merged['cuda']}; K2 V2 affine, windows 64 + 256; sustained; "
        "(p) programmatic launch"
    )
    print("| heads | " + " | ".join(f"bs{b} {c // 1000}k" for b, c in SIZES) + " |")
    print("| --- " * (len(SIZES) + 1) + "|")
    for q_heads in (32, 64):
        rows = {
            "oscar us": [],
            "oscar us (p)": [],
            "FlashInfer us": [],
            "FA3 us": [],
            "ratio": [],
            "ratio (p)": [],
        }
        for size in SIZES:

            def affine22(r):
                return is_sustained(r) and "affine" in r["variant"] and r["shape"]["k_bits"] == 2

            plain = best(
                results,
                ["oscar"],
                q_heads,
                size,
                lambda r: affine22(r) and "programmatic" not in r["variant"],
            )
            early = best(
                results,
                ["oscar"],
                q_heads,
                size,
                lambda r: affine22(r) and "programmatic" in r["variant"],
            )
            flashinfer = best(results, ["flashinfer"], q_heads, size, is_sustained)
            fa3 = best(results, ["fa3"], q_heads, size, is_sustained)
            rivals = [t for t in (flashinfer, fa3) if t]
            rival = min(rivals) if rivals else None
            for name, value in (
                ("oscar us", plain),
                ("oscar us (p)", early),
                ("FlashInfer us", flashinfer),
                ("FA3 us", fa3),
            ):
                rows[name].append("–" if value is None else f"{value:.1f}")
            rows["ratio"].append("–" if not (plain and rival) else f"{rival / plain:.2f}")
            rows["ratio (p)"].append("–" if not (early and rival) else f"{rival / early:.2f}")
        for name, cells in rows.items():
            print(f"| {q_heads}/8 {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
