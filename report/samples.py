"""Result files as the program writes them, with numbers that are made up: for tests."""

import json

KVS = {"quarot": (3.75, 0.37), "oscar": (3.75, 0.047), "oscar-plus": (3.5, 0.025)}


def header(measure, letters="0123456789abcdef", **more):
    return {
        "version": "0.1.0",
        "host": "made-up host",
        "threads": 2,
        "llama_cpp": "0.5.0",
        "model": "tiny.gguf",
        "model_hash": letters,
        "command": f"oscar eval {measure} -m tiny.gguf",
        "measure": measure,
        "text": "text <1>.txt",
        "seed": 1,
        **more,
    }


def kl_row(kv, bits, kl, ctx=4096):
    parts, start = [], 0
    while start < ctx:
        end = max(64, 2 * start)
        mean = kl * (0.2 + end / ctx)
        parts.append(
            {"from": start, "to": end, "tokens": 64, "mean": mean, "ci95": [mean * 0.8, mean * 1.3]}
        )
        start = end
    return {
        "kv": kv,
        "method": kv.split(":")[0],
        "bits": bits,
        "kv_bytes": int(bits * 1e6),
        "ctx": ctx,
        "tokens": ctx // 2 - 1,
        "ppl": 14.9 + kl,
        "ppl_ci95": [14.0 + kl, 15.7 + kl],
        "kl": {"mean": kl, "median": kl * 0.6, "trimmed10": kl * 0.7, "p99": kl * 9},
        "kl_ci95": [kl * 0.9, kl * 1.15],
        "top1": 1 - kl / 2,
        "top1_ci95": [0.95 - kl / 2, min(1, 1.01 - kl / 2)],
        "kl_by_position": parts,
        "decode_seconds": 1.0,
    }


def kl(ctx=4096):
    rows = [kl_row("f16", 16.0, 0, ctx), kl_row("f16:fa-off", 16.0, 0.003, ctx)]
    rows += [kl_row(kv, bits, kl, ctx) for kv, (bits, kl) in KVS.items()]
    return header("kl", results=rows)


def sweep():
    rows = [kl_row("f16", 16.0, 0), kl_row("f16:fa-off", 16.0, 0.003)]
    for i, window in enumerate(("0,recent=0", "16,recent=64", "64,recent=256", "256,recent=1024")):
        rows.append(kl_row(f"oscar-plus:sink={window}", 2.25 + i * i * 0.5, 0.2 / (1 + i * i)))
    return header("kl", sweep="windows", base="oscar-plus", results=rows)


def niah():
    rows = []
    for place, kv in enumerate(("f16", *KVS)):
        cells = [
            {
                "form": form,
                "ctx": length,
                "depth": depth,
                "asked": 4,
                "right": share,
                "right_ci95": [max(0, share - 0.2), min(1, share + 0.2)],
                "share": share,
            }
            for form in ("passkey", "sentence")
            for length in (1024, 2048, 4096)
            for depth in (0, 0.25, 0.5, 0.75, 1)
            for share in [max(0, 1 - 0.12 * place - length / 20000 - 0.3 * depth * (1 - depth))]
        ]
        rows.append(retrieval_row(kv, 0.9 - 0.1 * place, (1024, 2048, 4096), cells=cells))
    return header("niah", needles="together", results=rows)


def retrieval_row(kv, right, lengths, **more):
    part = {"asked": 20, "right": right, "right_ci95": [right - 0.1, right + 0.1], "share": right}
    return {
        "kv": kv,
        "method": kv,
        "bits": 3.0,
        "kv_bytes": 1000000,
        **part,
        "by_ctx": [{"ctx": length, **part} for length in lengths],
        **more,
        "answers": [],
    }


def qa():
    rows = [retrieval_row(kv, 0.8 - 0.1 * i, (2048, 4096)) for i, kv in enumerate(("f16", *KVS))]
    return header("qa", results=rows)


def generate():
    rows = [
        {
            "kv": kv,
            "method": kv,
            "bits": 3.0,
            "kv_bytes": 1000000,
            "common_prefix": 1 - 0.2 * i,
            "common_prefix_ci95": [0.9 - 0.2 * i, 1 - 0.2 * i],
            "overlap": {"1": 1 - 0.1 * i, "4": 1 - 0.2 * i},
            "repeated4": 0.1,
            "foreign": 0,
            "loops": i,
            "same": 0,
            "texts": [{}] * 4,
        }
        for i, kv in enumerate(("f16", *KVS))
    ]
    return header("generate", prompt_tokens=512, new_tokens=128, results=rows)


def layers():
    names = ("k_mse", "v_mse", "k_relative", "v_relative", "logit_mse", "weights_kl")
    names += ("output_relative", "output_keys", "output_values")
    heads = [
        {"layer": i, "kv_head": h, **{n: 0.01 * (1 + i % 7) * (1 + h) for n in names}}
        for i in range(30)
        for h in range(3)
    ]
    side = {"raw": [64.0 / (1 + j) for j in range(64)], "coded": [1.2 - j / 100 for j in range(64)]}
    channels = [{"layer": i, "k": side, "v": side} for i in range(30)]
    mean = {name: 0.04 for name in names}
    row = {"kv": "oscar-plus", "mean": mean, "heads": heads, "channels": channels}
    return header("layers", ctx=1024, results=[row])


def compare():
    rows = []
    for i, (kv, (bits, kl)) in enumerate(KVS.items()):
        speeds = {"prefill_tokens_per_s": 240 - i, "decode_tokens_per_s": 15.0 + 60 * (i > 0)}
        rows.append({**kl_row(kv, bits, kl, 2048), "answer": {"answer": "x", **speeds}})
    document = header("compare", results=rows)
    del document["measure"]
    return document


ALL = {
    "kl.json": kl,
    "sweep-windows.json": sweep,
    "niah.json": niah,
    "qa.json": qa,
    "generate.json": generate,
    "layers.json": layers,
    "compare.json": compare,
}


def write_all(folder):
    for name, make in ALL.items():
        (folder / name).write_text(json.dumps(make()))
