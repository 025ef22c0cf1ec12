#!/usr/bin/env python3
"""A decode step end to end: all layers of a Qwen3-8B and a Qwen3-4B shape with random weights, one
CUDA graph; matrices by cuBLAS (through torch), attention by OSCAR over its codes, through the C
interface of liboscar_cuda.so, or over BF16 by FlashAttention 3 (contiguous) and, where its library
is given, by FlashInfer (paged).

Usage: decode_loop.py LIBOSCAR_CUDA JSON_FILE [COMMIT [LIBOSCAR_CUDA_FLASHINFER_LOOP]]

A layer: query, key and value projection; the query's transform; encoding of the new token with its
exact copies; attention; output projection (the inverse of the values' transform is absorbed there);
the two matrices of the feed-forward network. Norms, RoPE and activations, the same on both sides,
are left out. Caches of large batches are shared by the layers (a model's would not fit the card);
every launch still reads far more than the L2 holds.

Printed and written: milliseconds a step; the same without attention; what the kernels' own times
predict, and the limit that free attention would set. Speedups are over the faster of the two.
"""

import ctypes
import datetime
import json
import pathlib
import runpy
import statistics
import sys
import types

import torch
from bf16_caches import (
    HEAD_DIM,
    MOST_CACHE_BYTES,
    Bf16Cache,
    FlashInferCache,
    pointer,
    stream_pointer,
)

# The package's, by path: the package itself needs liboscar, which is not built here.
STRUCTS = pathlib.Path(__file__).parents[2] / "python" / "oscar_kv" / "serving" / "cuda_structs.py"
structs = types.SimpleNamespace(**runpy.run_path(str(STRUCTS)))
SINKS, RECENT = 64, 256
MODELS = {
    "qwen3-8b": {"layers": 36, "hidden": 4096, "q_heads": 32, "kv_heads": 8, "ffn": 12288},
    "qwen3-4b": {"layers": 36, "hidden": 2560, "q_heads": 32, "kv_heads": 8, "ffn": 9728},
}
VOCABULARY = 151936
SIZES = [(b, c) for b in (1, 8, 32) for c in (30000, 60000, 100000)]


class Library:
    """Calls that raise with the library's own sentence."""

    def __init__(self, path):
        self.dll = ctypes.CDLL(path)
        self.dll.oscar_cuda_last_error.restype = ctypes.c_char_p
        self.dll.oscar_cuda_transform_image_bytes.restype = ctypes.c_uint64
        version = self.dll.oscar_cuda_abi_version()
        if version != structs.ABI_VERSION:
            raise RuntimeError(f"{path} has ABI version {version}; right: {structs.ABI_VERSION}")

    def __call__(self, name, *args):
        if getattr(self.dll, name)(*args) != 0:
            raise RuntimeError(f"{name}: {self.dll.oscar_cuda_last_error().decode()}")


class OscarCache:
    """Pages, copies and transforms of all layers of one batch; K2 V2 affine."""

    def __init__(self, library, model, batch, context):
        self.library, self.model, self.batch = library, model, batch
        heads = model["kv_heads"]
        quant = structs.Quant(2, HEAD_DIM, 1, 0)
        shape = structs.Shape(batch, 1, model["q_heads"], heads, HEAD_DIM, quant, quant, context)
        shape.sink_tokens, shape.recent_tokens, shape.has_copies = SINKS, RECENT, 1
        self.plan, info = ctypes.c_void_p(), structs.PlanInfo()
        library("oscar_cuda_plan_create", ctypes.byref(shape), 0, ctypes.byref(self.plan))
        library("oscar_cuda_plan_describe", self.plan, ctypes.byref(info))
        self.kernel = info.kernel.decode()
        self.run_bytes = info.key_plane_bytes + info.value_plane_bytes
        self.key_bytes = info.key_plane_bytes
        pages_per_seq = -(-context // 64)
        pages = batch * pages_per_seq
        layer_bytes = pages * heads * self.run_bytes
        self.buffers = max(1, min(model["layers"], int(MOST_CACHE_BYTES / layer_bytes)))
        self.pages = torch.randint(
            0, 256, (self.buffers, pages, heads, self.run_bytes), dtype=torch.uint8, device="cuda"
        )
        # Scales of .75, zero points of 1.5: pairs of BF16 behind the codes of either plane.
        pair = torch.tensor([0x3F40, 0x3FC0], dtype=torch.int16, device="cuda").view(torch.uint8)
        for end in (self.key_bytes, self.run_bytes):
            self.pages[..., end - 256 : end] = pair.repeat(64)
        order = torch.randperm(pages, dtype=torch.int32, device="cuda")
        self.table = order.view(batch, pages_per_seq).contiguous()
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
        last = self.table[:, (context - 1) // 64].long() * 64 + (context - 1) % 64
        self.slots = last.contiguous()
        rows = SINKS + RECENT
        self.copies = torch.randn(
            self.buffers, batch, heads, 2, rows, HEAD_DIM, dtype=torch.bfloat16, device="cuda"
        )
        self.blocks = torch.arange(batch, dtype=torch.int32, device="cuda")
        self.copy_slots = torch.arange(batch, device="cuda") * rows + SINKS + (context - 1) % RECENT
        basis = torch.linalg.qr(torch.randn(2 * heads, HEAD_DIM, HEAD_DIM, device="cuda"))[0]
        matrices = basis.view(2, heads, HEAD_DIM, HEAD_DIM).contiguous()
        size = library.dll.oscar_cuda_transform_image_bytes(heads, HEAD_DIM)
        self.images = torch.empty(2, size, dtype=torch.uint8, device="cuda")
        for side in range(2):
            library(
                "oscar_cuda_transform_image",
                pointer(matrices[side]),
                heads,
                HEAD_DIM,
                pointer(self.images[side]),
                stream_pointer(),
            )
        self.clip = torch.full((heads,), 0.94, device="cuda")
        self.workspace = torch.empty(info.workspace_bytes, dtype=torch.uint8, device="cuda")
        library(
            "oscar_cuda_prepare",
            self.plan,
            pointer(self.workspace),
            ctypes.c_uint64(info.workspace_bytes),
            stream_pointer(),
        )
        self.rotated = torch.empty(
            batch, model["q_heads"] * HEAD_DIM, dtype=torch.bfloat16, device="cuda"
        )
        torch.cuda.synchronize()

    def attend(self, layer, qkv, out):
        model, heads = self.model, self.model["kv_heads"]
        q_width, width = model["q_heads"] * HEAD_DIM, qkv.shape[1]
        layer %= self.buffers
        self.library(
            "oscar_cuda_transform_rows",
            pointer(qkv),
            pointer(self.rotated),
            ctypes.c_int64(width),
            ctypes.c_int64(q_width),
            pointer(self.images[0]),
            ctypes.c_int64(self.batch),
            heads,
            model["q_heads"] // heads,
            HEAD_DIM,
            stream_pointer(),
        )
        encode = structs.EncodeArgs()
        for side, first in ((encode.key, q_width), (encode.value, q_width + heads * HEAD_DIM)):
            side.rows = qkv.data_ptr() + 2 * first
            side.token_stride, side.head_stride = width, HEAD_DIM
            side.clip_ratio = self.clip.data_ptr()
            side.quant = structs.Quant(2, HEAD_DIM, 1, 0)
        encode.key.transform_image = self.images[0].data_ptr()
        encode.value.transform_image = self.images[1].data_ptr()
        encode.num_tokens, encode.num_kv_heads, encode.head_dim = self.batch, heads, HEAD_DIM
        encode.pages = self.pages[layer].data_ptr()
        encode.head_stride_bytes = self.run_bytes
        encode.page_stride_bytes = self.run_bytes * heads
        encode.slots = self.slots.data_ptr()
        encode.copies = self.copies[layer].data_ptr()
        encode.copy_slots = self.copy_slots.data_ptr()
        encode.rows_per_block = SINKS + RECENT
        self.library("oscar_cuda_encode", ctypes.byref(encode), stream_pointer())
        args = structs.AttendArgs()
        args.pages = encode.pages
        args.page_stride_bytes = encode.page_stride_bytes
        args.head_stride_bytes = encode.head_stride_bytes
        args.num_pages = self.pages.shape[1]
        args.block_table = self.table.data_ptr()
        args.block_table_stride = self.table.shape[1]
        args.seq_lens = self.lengths.data_ptr()
        args.q, args.out = self.rotated.data_ptr(), out.data_ptr()
        args.q_token_stride = args.out_token_stride = q_width
        args.copies, args.copy_blocks = encode.copies, self.blocks.data_ptr()
        args.ring_rows, args.scale = RECENT, HEAD_DIM**-0.5
        self.library(
            "oscar_cuda_attend",
            self.plan,
            ctypes.byref(args),
            pointer(self.workspace),
            ctypes.c_uint64(self.workspace.numel()),
            stream_pointer(),
        )


class Step:
    """The matrices of a model, and one decode step over them."""

    def __init__(self, model):
        self.model = model
        hidden, ffn = model["hidden"], model["ffn"]
        q_width = model["q_heads"] * HEAD_DIM
        kv_width = model["kv_heads"] * HEAD_DIM

        def matrix(rows, columns):
            return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda") * rows**-0.5

        self.layers = [
            (
                matrix(hidden, q_width + 2 * kv_width),
                matrix(q_width, hidden),
                matrix(hidden, 2 * ffn),
                matrix(ffn, hidden),
            )
            for _ in range(model["layers"])
        ]
        self.head = matrix(hidden, VOCABULARY)

    def run(self, x, attend):
        model = self.model
        q_width = model["q_heads"] * HEAD_DIM
        out = torch.zeros(x.shape[0], q_width, dtype=torch.bfloat16, device="cuda")
        for layer, (qkv, output, up, down) in enumerate(self.layers):
            rows = x @ qkv
            if attend is not None:
                attend(layer, rows, out)
            x = out @ output
            x = (x @ up)[:, : model["ffn"]] @ down
        return x @ self.head

    def milliseconds(self, batch, attend):
        x = torch.randn(batch, self.model["hidden"], dtype=torch.bfloat16, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.run(x, attend)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.run(x, attend)
        return replay_ms(graph)


def replay_ms(graph, warm=2, repeats=5):
    times = []
    for i in range(warm + repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= warm:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def attention_ms(step, batch, attend):
    """Attention alone, of all layers, in one graph: what the kernels' own times predict."""
    model = step.model
    width = (model["q_heads"] + 2 * model["kv_heads"]) * HEAD_DIM
    rows = torch.randn(batch, width, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(batch, model["q_heads"] * HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend(0, rows, out)
    torch.cuda.synchronize()
    if not torch.isfinite(out).all():
        raise RuntimeError("attention gave NaN or Inf")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for layer in range(model["layers"]):
            attend(layer, rows, out)
    return replay_ms(graph)


def main():
    library = Library(sys.argv[1])
    flashinfer = ctypes.CDLL(sys.argv[4]) if len(sys.argv) > 4 else None
    makers = {
        "oscar": lambda *shape: OscarCache(library, *shape),
        "fa3": Bf16Cache,
    }
    if flashinfer is not None:
        makers["flashinfer"] = lambda *shape: FlashInferCache(flashinfer, *shape)
    results = []
    for name, model in MODELS.items():
        step = Step(model)
        for batch, context in SIZES:
            row = {"model": name, "batch": batch, "context": context}
            matrices = step.milliseconds(batch, None)
            row["matrices_ms"] = matrices
            for kind, make in makers.items():
                cache = make(model, batch, context)
                row[f"{kind}_ms"] = step.milliseconds(batch, cache.attend)
                row[f"{kind}_attention_ms"] = attention_ms(step, batch, cache.attend)
                row[f"{kind}_predicted_ms"] = matrices + row[f"{kind}_attention_ms"]
                del cache
                torch.cuda.empty_cache()
            rivals = [kind for kind in makers if kind != "oscar"]
            rival = min(rivals, key=lambda kind: row[f"{kind}_ms"])
            row["rival"] = rival
            row["speedup"] = row[f"{rival}_ms"] / row["oscar_ms"]
            row["predicted_speedup"] = row[f"{rival}_predicted_ms"] / row["oscar_predicted_ms"]
            row["limit"] = row[f"{rival}_ms"] / matrices
            results.append(row)
            print(
                f"{name} bs{batch} {context}: oscar {row['oscar_ms']:.2f} ms (predicted "
                f"{row['oscar_predicted_ms']:.2f}), "
                + "".join(f"{kind} {row[f'{kind}_ms']:.2f}, " for kind in rivals)
                + f"matrices {matrices:.2f}; {row['speedup']:.2f} times {rival}, predicted "
                f"{row['predicted_speedup']:.2f}, limit {row['limit']:.2f}",
                flush=True,
            )
        del step
        torch.cuda.empty_cache()
    with open(sys.argv[2], "w") as file:
        report = {
            "device": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "commit": sys.argv[3] if len(sys.argv) > 3 else "unknown",
            "date": datetime.date.today().isoformat(),
            "results": results,
        }
        head = json.dumps({k: v for k, v in report.items() if k != "results"})
        lines = ",\n".join("  " + json.dumps(r) for r in results)
        file.write(head[:-1] + ', "results": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
