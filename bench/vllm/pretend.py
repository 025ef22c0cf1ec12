"""A KV connector that says that all of a prompt but its last token is in the cache.

Long contexts then cost no prefill, and decoding is measured alone. The cache is filled once: vLLM's
own with random numbers, ours with pages of random rows that the layer itself encoded, again and
again. Random bytes are no pages: attention overflows on negative scales, and the next layers' NaN
rows are encoded on a slow path.
"""

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import DecodeBenchConnector

# Whether prompts are pretended; a benchmark of prefill turns it off.
pretending = True


ENCODED_PAGES = 256  # of each layer, and then the same again


def fill(cache: torch.Tensor) -> None:
    """A cache of BF16, or of FP8 as bytes with exponents in the middle."""
    if cache.is_floating_point() and cache.element_size() > 1:
        cache.normal_()
        return
    for part in cache.view(torch.uint8).split(4096):
        part.random_(0, 256).bitwise_and_(0xBF)


def fill_pages(layer: Any, pages: torch.Tensor) -> None:
    """A cache of ours: CudaLayer, and its pages."""
    from oscar_kv.codec import PAGE_TOKENS
    from oscar_kv.serving import Copies
    from oscar_kv.serving.cuda_plans import CudaStep

    count = min(len(pages), ENCODED_PAGES)
    tokens = torch.arange(count * PAGE_TOKENS, device=pages.device)
    shape = (len(tokens), *layer.row_shape)
    keys, values = (torch.randn(shape, dtype=torch.bfloat16, device=pages.device) for _ in "kv")
    nowhere = Copies(torch.full_like(tokens, -1), *[None] * 5)
    positions = (tokens % PAGE_TOKENS).int()
    step = CudaStep(len(tokens), None, None, tokens, positions, None, nowhere, None, None)
    layer.write(keys, values, step, pages)
    for part in pages[count:].split(count):
        part.copy_(pages[: len(part)])


def our_layers() -> dict[str, Any]:
    from oscar_kv.vllm import worker

    return {} if worker._worker is None else worker._worker.layers


class PretendedPrompts(DecodeBenchConnector):
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        layers = our_layers()
        for name, cache in kv_caches.items():
            for tensor in cache if isinstance(cache, list | tuple) else [cache]:
                if name in layers:
                    fill_pages(layers[name], layers[name].pages_of(tensor))
                else:
                    fill(tensor)

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Nothing to load."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if not pretending:
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)
