"""A KV connector that says that all of a prompt but its last token is in the cache.

Long contexts then cost no prefill, and decoding is measured alone. The cache is filled with random
bytes once, so that its pages hold finite numbers in every format.
"""

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import DecodeBenchConnector

# Whether prompts are pretended; a benchmark of prefill turns it off.
pretending = True


def fill(cache: torch.Tensor) -> None:
    if cache.is_floating_point() and cache.element_size() > 1:
        cache.normal_()
        return
    # Exponents in the middle: finite as FP8, as BF16 scales and zero points, and as codes.
    for part in cache.view(torch.uint8).split(4096):
        part.random_(0, 256).bitwise_and_(0xBF)


class PretendedPrompts(DecodeBenchConnector):
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        for cache in kv_caches.values():
            for tensor in cache if isinstance(cache, list | tuple) else [cache]:
                fill(tensor)

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Nothing to load."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if not pretending:
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)
