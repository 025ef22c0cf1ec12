"""The book of copies on a GPU: a step of decoding is some seventy small kernels, so a CUDA graph.

A graph is captured for each batch, by the addresses of its arguments, which engines keep.
"""

import torch
from torch import Tensor

from oscar_kv.serving.copies import Copies, CopyBook


class GraphedBook:
    def __init__(self, book: CopyBook) -> None:
        self.book = book
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, Copies]] = {}
        self._warm = False

    def step(self, *arguments: Tensor, graphed: bool) -> Copies:
        """CopyBook.step; the result of a graph is overwritten by its next replay."""
        if not graphed or torch.cuda.is_current_stream_capturing():
            return self.book.step(*arguments)
        if not self._warm:  # libraries initialise themselves outside of a capture
            self._warm = True
            return self.book.step(*arguments)
        key = tuple((x.data_ptr(), *x.shape, *x.stride()) for x in arguments)
        if key not in self._graphs:
            self._graphs[key] = self._capture(arguments)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def _capture(self, arguments: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, Copies]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = self.book.step(*arguments)
        return graph, result
