"""Prefix hits that leave the last tokens of a prompt to be computed (vLLM 0.32 and later).

A hit has no exact copies of the tokens before its end, unless the block of whoever wrote them still
has. An answer that begins there attends to codes where a miss has a window of exact tokens. So the
last tokens of a prompt, as many as a window has, are computed in any case. vLLM asks the manager of
a cache's spec where a hit ends; ours is registered as vLLM provides for, in every process that
unpickles the spec.
"""

import dataclasses
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry


class WindowManager(FullAttentionManager):
    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Any,
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: Any,
        kv_cache_spec: "WindowSpec",
        **others: Any,
    ) -> Any:
        # max_length leaves the last token of the prompt out.
        allowed = max(0, max_length + 1 - max(1, kv_cache_spec.computed_tokens))
        return super().find_longest_cache_hit(
            block_hashes=block_hashes,
            max_length=allowed,
            kv_cache_group_ids=kv_cache_group_ids,
            block_pool=block_pool,
            kv_cache_spec=kv_cache_spec,
            **others,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowSpec(FullAttentionSpec):
    """computed_tokens: of a prompt, its last ones, that are computed though they are cached."""

    computed_tokens: int = 0

    @classmethod
    def merge(cls, specs: list["WindowSpec"]) -> "WindowSpec":
        merged = super().merge(specs)
        return dataclasses.replace(merged, computed_tokens=specs[0].computed_tokens)


def window_spec(spec: FullAttentionSpec, computed_tokens: int) -> WindowSpec:
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.init}
    return WindowSpec(**fields, computed_tokens=computed_tokens)


KVCacheSpecRegistry._ensure_registered()  # vLLM registers its own only where there are none yet
KVCacheSpecRegistry.register(WindowSpec, WindowManager, FullAttentionSpec)
