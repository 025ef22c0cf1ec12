"""Sizes of the windows of exact copies."""

import dataclasses

from oscar_kv.artefact import ModelShape

# Tokens that a ring holds beyond the recent ones: drafts that are taken back, and several queries
# at a time.
SLACK = 8


@dataclasses.dataclass(frozen=True)
class Windows:
    """In tokens. ring_tokens: rows for recent tokens; 0 where there are no copies at all."""

    sink_tokens: int
    recent_tokens: int
    ring_tokens: int

    @classmethod
    def of(cls, sink_tokens: int, recent_tokens: int) -> "Windows":
        some = sink_tokens > 0 or recent_tokens > 0
        return cls(sink_tokens, recent_tokens, recent_tokens + SLACK if some else 0)

    @property
    def rows_per_block(self) -> int:
        return self.sink_tokens + self.ring_tokens

    @property
    def slack(self) -> int:
        """Tokens that may be taken back without losing copies."""
        return self.ring_tokens - self.recent_tokens

    @property
    def most_queries(self) -> int:
        """New tokens of a sequence that find all their copies in the ring."""
        return self.slack + 1

    def describe(self, shape: ModelShape, num_layers: int, num_blocks: int) -> str:
        """What the copies of num_blocks requests take, in a line for the log."""
        row = 2 * shape.num_kv_heads * (shape.head_dim_k + shape.head_dim_v)
        block = self.rows_per_block * row * num_layers
        return (
            f"exact copies of the first {self.sink_tokens} and the last {self.recent_tokens} "
            f"tokens of up to {num_blocks} requests: {block * num_blocks / 2**20:.1f} MiB "
            f"({block / 2**20:.2f} MiB a request), taken before the KV cache is sized"
        )
