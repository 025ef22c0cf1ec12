#!/usr/bin/env python3
"""Draws what decode attention reaches of the memory's rate: GB/s of the bytes that a launch must
read, against those bytes. Needs matplotlib.

Usage: roofline.py DECODE_JSON SVG_FILE
"""

import json
import sys

import matplotlib.pyplot as plt

SERIES = {
    "OSCAR K2 V2, 32/8 heads": ("oscar", 32, "o", "tab:blue"),
    "OSCAR K2 V2, 64/8 heads": ("oscar", 64, "s", "tab:cyan"),
    "FlashInfer BF16, 32/8": ("flashinfer", 32, "^", "tab:orange"),
    "FlashAttention 3 BF16, 32/8": ("fa3", 32, "v", "tab:red"),
}


def points(results, kernel, heads):
    """(megabytes, GB/s) of the fastest sustained variant of every size."""
    best = {}
    for r in results:
        shape = r["shape"]
        if any(word in r["variant"] for word in ("burst", "chunk")):
            continue
        if r["kernel"] != kernel or shape["head_dim"] != 128:
            continue
        if shape["num_q_heads"] != heads or shape["mean_term"] or shape["context"] > 100000:
            continue
        if kernel == "oscar" and "affine window" not in r["variant"]:
            continue
        size = (shape["batch"], shape["context"])
        us = r["us"]["median"]
        if size not in best or us < best[size][0]:
            best[size] = (us, r["gbps"])
    return sorted((us * gbps * 1e-3, gbps) for us, gbps in best.values())


def main():
    with open(sys.argv[1]) as file:
        report = json.load(file)
    plt.switch_backend("Agg")
    plt.rcParams["svg.hashsalt"] = "oscar"
    figure, axes = plt.subplots(figsize=(7, 4))
    ceiling = sorted(
        (r["us"]["median"] * r["gbps"] * 1e-3, r["gbps"])
        for r in report["results"]
        if r["kernel"] == "read"
    )
    axes.plot(*zip(*ceiling, strict=True), "k--", label="reading alone")
    for label, (kernel, heads, marker, colour) in SERIES.items():
        xy = points(report["results"], kernel, heads)
        if not xy:  # not in this run
            continue
        axes.plot(*zip(*xy, strict=True), marker=marker, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("megabytes a launch reads")
    axes.set_ylabel("GB/s")
    axes.set_ylim(0, 5000)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"Decode attention, {report['device']}, {report['commit']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
