"""The plugin's layer on this GPU, without vLLM: the self-test of several methods, steps in CUDA
graphs, attention that writes raw rows against a launch that transforms them, and what a step costs.

Needs OSCAR_LIBRARY and OSCAR_CUDA_LIBRARY, or a package with both.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import oscar_kv
import torch
from oscar_kv.artefact import ModelShape
from oscar_kv.serving import Copies, CopyBook, open_method
from oscar_kv.serving.cuda_layer import CudaLayer, CudaStep, Plans, Prefill
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.serving.cuda_selftest import check_cuda_layer
from oscar_kv.serving.decode_book import decode_step
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.windows import Windows

METHODS = ("quarot", "quarot:k3v2", "quarot:k4v4", "quarot:sink=0,recent=0", "naive")
SHAPE = ModelShape(1, 32, 8, 128, 128)  # one layer of a Qwen3-8B


def dense(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, out) -> None:
    ratio = q.shape[1] // keys.shape[1]
    q, keys, values = (x.transpose(0, 1).float() for x in (q, keys, values))
    keys, values = (x.repeat_interleave(ratio, 0) for x in (keys, values))
    hidden = torch.ones(q.shape[1], keys.shape[1], dtype=torch.bool, device="cuda")
    hidden = hidden.triu(keys.shape[1] - q.shape[1] + 1)
    logits = (q @ keys.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
    out.copy_((logits.softmax(-1) @ values).transpose(0, 1))


class Decoding:
    """A batch that decodes one token after the other over pages in random order."""

    def __init__(
        self,
        library: Any,
        num_seqs: int,
        length: int,
        kv: str = "quarot",
        shape: ModelShape = SHAPE,
    ) -> None:
        served = open_method(kv, "qwen3", shape)
        windows, codec = Windows.of(64, 256), served.codec(0, length + 99)
        plans = Plans(library, [codec], windows, 0)
        heads, head_dim = shape.num_kv_heads, shape.head_dim_k
        pool = torch.zeros(
            (num_seqs, heads, 2, windows.rows_per_block, head_dim),
            dtype=torch.bfloat16,
            device="cuda",
        )
        self.not_finite = NotFinite([0], "cuda")
        prefill = Prefill(shape, 256, dense)
        self.layer = CudaLayer(codec, windows, plans, prefill, pool, self.not_finite.flags)
        per_seq = -(-(length + 99) // 64)
        order = torch.randperm(num_seqs * per_seq, dtype=torch.int32, device="cuda")
        self.table = order.view(num_seqs, per_seq)
        self.cache = torch.zeros(
            (num_seqs * per_seq, codec.page_bytes), dtype=torch.uint8, device="cuda"
        )
        sizes = (windows.sink_tokens, windows.recent_tokens, windows.ring_tokens)
        self.book = CopyBook(num_seqs, *sizes, num_seqs * per_seq, "cuda")
        self.rows = torch.arange(num_seqs, device="cuda")
        self.starts = torch.arange(num_seqs + 1, device="cuda", dtype=torch.int32)
        self.lengths = torch.full((num_seqs,), length, dtype=torch.int32, device="cuda")
        self.slots = torch.zeros(num_seqs, dtype=torch.int64, device="cuda")
        self.positions = torch.zeros(num_seqs, dtype=torch.int32, device="cuda")
        self.copies = Copies(
            torch.empty_like(self.slots), torch.empty_like(self.lengths), *(None, None, None, None)
        )
        self.q, self.k = (
            torch.randn(num_seqs, count, head_dim, dtype=torch.bfloat16, device="cuda")
            for count in (shape.num_q_heads, heads)
        )
        self.out = torch.empty_like(self.q)
        self._fill(64 * len(self.cache))

    def _fill(self, num_tokens: int) -> None:
        """Random rows in every page, whatever their tokens; no copies of them."""
        for begin in range(0, num_tokens, 1 << 16):
            slots = torch.arange(begin, min(begin + (1 << 16), num_tokens), device="cuda")
            rows = torch.randn((len(slots), *self.k.shape[1:]), dtype=torch.bfloat16, device="cuda")
            nowhere = Copies(torch.full_like(slots, -1), *[None] * 5)
            places = (slots, (slots % 64).int(), None, nowhere)
            step = CudaStep(len(slots), None, None, *places, None, None)
            self.layer.write(rows, rows, step, self.cache)

    def plan(self) -> CudaStep:
        last = self.lengths.long() - 1
        page = self.table.gather(1, (last // 64)[:, None])[:, 0].long()
        self.slots.copy_(page * 64 + last % 64)
        self.positions.copy_(last)
        arguments = (self.rows, self.starts, self.lengths, self.table, self.slots)
        decode_step(self.book, self.copies, *arguments)
        return CudaStep(
            len(self.slots),
            *(self.lengths, self.table, self.slots, self.positions, self.rows, self.copies),
            *(None, None),
        )

    def run(self, step: CudaStep) -> None:
        self.layer.write(self.k, self.k, step, self.cache)
        self.layer.attend(self.q, self.k, self.k, step, self.cache, self.out, scale=0.09)


def check_graphs(library: CudaLibrary) -> None:
    """A captured step, replayed at other lengths, gives what an eager one gives."""
    torch.manual_seed(1)
    decoding = Decoding(library, 3, 700)
    for _ in range(2):
        decoding.run(decoding.plan())
        decoding.lengths += 1
    step = decoding.plan()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoding.run(step)
    for _ in range(5):
        decoding.lengths += 1
        decoding.plan()
        decoding.k.normal_()
        decoding.q.normal_()
        graph.replay()
        replayed, cache = decoding.out.clone(), decoding.cache.clone()
        decoding.run(step)
        torch.cuda.synchronize()
        assert torch.equal(cache, decoding.cache), "a replay writes other bytes"
        assert torch.equal(replayed, decoding.out), "a replay attends otherwise"
    print("graph replays equal eager steps")


class Apart:
    """A library whose attention leaves rows rotated and waits for all before it; a launch of its
    own turns them back."""

    def __init__(self, library: CudaLibrary, shape: ModelShape, num_seqs: int) -> None:
        self._library, self._shape, self._num_seqs = library, shape, num_seqs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def __call__(self, name: str, *arguments: Any) -> None:
        if name != "oscar_cuda_attend":
            self._library(name, *arguments)
            return
        args, shape = arguments[1]._obj, self._shape
        assert args.out_image and args.overlap_previous
        image, args.out_image, args.overlap_previous = args.out_image, None, 0
        self._library(name, *arguments)
        self._library(
            "oscar_cuda_transform_rows",
            *(args.out, args.out, args.out_token_stride, args.out_token_stride, image),
            *(self._num_seqs, shape.num_kv_heads, shape.num_q_heads // shape.num_kv_heads),
            *(shape.head_dim_k, arguments[4]),
        )


def check_epilogue(library: CudaLibrary, path_with_means: str) -> None:
    """Raw rows from attention, launched while the kernel before it ends, against two launches.

    Both multiply the same rounded rows; sums in another order may round to a neighbour in BF16, a
    part of 2^-7 at most.
    """
    rows, other = 0, 0
    for num_q_heads, num_kv_heads, head_dim in ((32, 8, 128), (16, 2, 128), (8, 2, 64)):
        shape = ModelShape(1, num_q_heads, num_kv_heads, head_dim, head_dim)
        methods = ["quarot", "quarot:k3v2"]
        for kv in methods if head_dim == 128 else [*methods, path_with_means]:
            for num_seqs, length in ((1, 90), (1, 9000), (3, 700), (40, 1500)):
                torch.manual_seed(num_seqs + length)
                decoding = Decoding(library, num_seqs, length, kv, shape)
                decoding.layer._output_mean = None  # added to either afterwards
                for _ in range(2):
                    step = decoding.plan()
                    decoding.run(step)
                    decoding.lengths += 1
                step = decoding.plan()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(4):  # one after the other, as layers are
                        decoding.run(step)
                graph.replay()
                fused = decoding.out.float()
                decoding.layer._library = Apart(library, shape, num_seqs)
                decoding.run(step)
                torch.cuda.synchronize()
                two = decoding.out.float()
                allowed = 2.0**-7 * two.abs() + 2.0**-14 * two.abs().amax(-1, keepdim=True)
                assert two.isfinite().all()
                assert two.abs().amax(-1).min() > 0
                assert ((fused - two).abs() <= allowed).all(), f"{shape}, {kv}, {num_seqs}"
                rows += two[..., 0].numel()
                other += int((fused != two).any(-1).sum())
    print(f"raw rows of attention equal those of two launches, {other} of {rows} but for rounding")


def check_not_finite(library: CudaLibrary) -> None:
    """A NaN is counted, from a graph too, and only where there was one."""
    decoding = Decoding(library, 2, 500)
    step = decoding.plan()
    decoding.run(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoding.run(step)
    counted = []
    for value in (0.0, torch.nan, 0.0, -torch.inf):
        decoding.k[1, 3, 5] = value
        graph.replay()
        torch.cuda.synchronize()
        decoding.not_finite.check()
        counted.append(decoding.not_finite.num_steps)
    assert counted == [0, 1, 1, 2], counted
    assert decoding.out[0].isfinite().all()  # the other sequence
    print("rows with NaN or Inf are counted")


def time_steps(library: CudaLibrary) -> None:
    for num_seqs, length in ((1, 30000), (32, 30000)):
        decoding = Decoding(library, num_seqs, length)
        decoding.plan()
        step = decoding.plan()
        print(f"{num_seqs} x {length}: book of copies {time_of(decoding.plan):.0f} us, ", end="")
        print(f"a layer's step {time_of(functools.partial(decoding.run, step)):.0f} us (eager)")


def time_graphs(library: CudaLibrary) -> None:
    """What 36 layers take in a graph, each: encoding, of rows with NaN too, and a step of decoding
    with attention's epilogue and without."""

    def time_graph(action: Callable[[], object]) -> float:
        action()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(36):
                action()
        return time_of(graph.replay) / 36

    for length in (1024, 100000):
        decoding = Decoding(library, 1, length)
        decoding.plan()
        step = decoding.plan()
        one = time_graph(functools.partial(decoding.run, step))
        decoding.layer._library = Apart(library, SHAPE, 1)
        two = time_graph(functools.partial(decoding.run, step))
        decoding.layer._library = library
        print(f"a layer's step at 1 x {length} in a graph: {one:.1f} us, apart {two:.1f} us")
    for name, value in (("numbers", 1.0), ("NaN", torch.nan)):
        decoding.k[0, :, 5] = value
        arguments = (decoding.k, decoding.k, step, decoding.cache)
        encode = time_graph(functools.partial(decoding.layer.write, *arguments))
        print(f"encoding a token of {name} in a graph: {encode:.1f} us")


def time_of(action: Callable[[], object], repeats: int = 100) -> float:
    """Microseconds."""
    for _ in range(3):
        action()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        action()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats * 1e6


def artefact_with_means(shape: ModelShape) -> oscar_kv.Artefact:
    """Fitted to random rows about large means, of keys before RoPE and of values."""
    size, random = shape.head_dim_k, np.random.default_rng(1)
    rope = oscar_kv.Rope((1e6 ** (-np.arange(size // 2) / (size // 2))).astype(np.float32))
    collector = oscar_kv.Collector()
    for layer in range(shape.num_layers):
        heads = {"queries": 8, "keys": 2, "values": 2, "outputs": 8}
        rows = {
            name: random.standard_normal((600, count, size), np.float32) + np.linspace(-2, 2, size)
            for name, count in heads.items()
        }
        collector.add(layer, positions=np.arange(600), scale=size**-0.5, rope=rope, **rows)
    artefact = collector.fit("oscar-plus", architecture="qwen3")
    mean = np.linspace(-1, 1, size, dtype=np.float32)
    means = {f"layers.{i}.v_mean": np.stack([mean, -mean]) for i in range(shape.num_layers)}
    return oscar_kv.Artefact(artefact.tensors | means, artefact.metadata)


def main() -> None:
    library = CudaLibrary()
    with tempfile.TemporaryDirectory() as folder:
        for head_dim in (128, 64):
            shape = ModelShape(2, 8, 2, head_dim, head_dim)
            prefill = Prefill(shape, 512, dense)
            path = f"{folder}/means.oscar.safetensors"
            artefact_with_means(shape).save(path)
            for kv in (*METHODS, path, f"{path}:trellis"):
                served = open_method(kv, "qwen3", shape)
                torch.set_default_dtype(torch.bfloat16)  # as while an engine loads a model
                error = check_cuda_layer(served, library, prefill)
                torch.set_default_dtype(torch.float32)
                print(f"head size {head_dim}, {served}: off by {error:.2g} of its size")
        artefact_with_means(ModelShape(1, 8, 2, 64, 64)).save(path)
        check_epilogue(library, path)
    check_graphs(library)
    check_not_finite(library)
    time_steps(library)
    time_graphs(library)


if __name__ == "__main__":
    sys.exit(main())
