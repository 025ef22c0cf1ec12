#!/usr/bin/env python3
"""FlashAttention 3 (PyPI wheel fa3-fwd 0.0.3) on the shapes of decode_bench: BF16, contiguous.

Usage: fa3_bench.py JSON_FILE [COMMIT]. Graphs of many launches, layers rotated past the L2, as
decode_bench does.
"""

import json
import statistics
import sys
import time

import fa3_fwd_interface as fa3
import torch

KV_HEADS, HEAD_DIM = 8, 128
SIZES = [(1, 30000), (1, 60000), (1, 100000), (8, 30000), (8, 100000), (32, 30000), (32, 100000)]


def replay_us(graph, launches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / launches


def time_launches(launch, launches, burst):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(launches):
            launch(i)
    if burst:
        time.sleep(0.3)
        replay_us(graph, launches)
    else:
        start = time.time()
        while time.time() - start < 0.03:
            replay_us(graph, launches)
    times = sorted(replay_us(graph, launches) for _ in range(3 if burst else 15))
    return {
        "median": statistics.median(times),
        "p10": times[len(times) // 10],
        "p90": times[len(times) * 9 // 10],
    }


def main():
    results = []
    for batch, context in SIZES:
        layer_bytes = batch * context * KV_HEADS * 4 * HEAD_DIM
        layers = 1 if layer_bytes > 6e9 else max(2, -(-1200000000 // layer_bytes))
        kv = torch.empty(
            layers, 2, batch, context, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16
        )
        for layer in range(layers):
            for side in range(2):
                for sequence in range(batch):
                    kv[layer, side, sequence].normal_()
        launches = max(4, min(40, int(2e10 / layer_bytes)))
        for q_heads in (32, 64):
            q = torch.randn(batch, 1, q_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)

            def launch(i, q=q, kv=kv, layers=layers):
                fa3.flash_attn_with_kvcache(
                    q, kv[i % layers, 0], kv[i % layers, 1], num_splits=0, pack_gqa=True
                )

            for burst in (False, True):
                us = time_launches(launch, launches, burst)
                gbps = layer_bytes / us["median"] * 1e-3
                results.append(
                    {
                        "kernel": "fa3",
                        "variant": "contiguous" + (" burst" if burst else ""),
                        "shape": {
                            "num_q_heads": q_heads,
                            "num_kv_heads": KV_HEADS,
                            "head_dim": HEAD_DIM,
                            "batch": batch,
                            "context": context,
                            "k_bits": 16,
                            "v_bits": 16,
                            "mean_term": False,
                        },
                        "us": us,
                        "gbps": gbps,
                        "rel_err": None,
                    }
                )
                print(
                    f"fa3 {results[-1]['variant']} {q_heads}/8 bs{batch} {context}: "
                    f"{us['median']:.2f} us {gbps:.0f} GB/s",
                    flush=True,
                )
        del kv
    version = torch.version.cuda
    with open(sys.argv[1], "w") as file:
        json.dump(
            {
                "device": torch.cuda.get_device_name(),
                "cuda": version,
                "commit": sys.argv[2] if len(sys.argv) > 2 else "unknown",
                "results": results,
            },
            file,
        )


if __name__ == "__main__":
    main()
