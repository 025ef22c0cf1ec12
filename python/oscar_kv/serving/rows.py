"""Which block of copies a request has, where the engine does not number its requests.

A request that goes on is known by its pages: the page of the token before its new ones was last
written by the request itself. What looks the same but is another request (a whole prompt taken
from the prefix cache) gets the block too, at most one of the two; its tokens are the same, so the
copies are right, and the other begins a new block. The book of copies checks every claim again.
"""

import numpy as np

from oscar_kv.codec import PAGE_TOKENS


class RowBook:
    """Hands out num_blocks blocks, the one unused for longest first. Not thread-safe."""

    def __init__(self, num_blocks: int, num_pages: int, slack: int) -> None:
        self.num_pages = num_pages
        self._owner = np.full(num_pages, -1, np.int64)  # block that wrote to the page last
        self._end = np.zeros(num_blocks, np.int64)  # tokens of the request that has the block
        self._used = np.zeros(num_blocks, np.int64)  # step of the last use
        self._slack = slack  # tokens that a roll-back may take away
        self._step = 0

    def rows(
        self, query_start: np.ndarray, seq_lens: np.ndarray, block_table: np.ndarray
    ) -> np.ndarray:
        """Block of each sequence [N]; −1 where it has no new tokens or no block is left."""
        self._step += 1
        counts = np.diff(query_start)
        firsts = seq_lens - counts
        blocks = np.full(len(counts), -1, np.int64)
        for i in np.flatnonzero((counts > 0) & (firsts > 0)):
            owner = self._owner[block_table[i, (firsts[i] - 1) // PAGE_TOKENS]]
            if owner < 0 or self._used[owner] == self._step:
                continue
            if 0 <= self._end[owner] - firsts[i] <= self._slack:
                blocks[i] = self._take(owner, seq_lens[i])
        for i in np.flatnonzero((counts > 0) & (blocks < 0)):
            oldest = int(self._used.argmin())
            if self._used[oldest] < self._step:
                blocks[i] = self._take(oldest, seq_lens[i])
        for i in np.flatnonzero(counts > 0):
            pages = slice(firsts[i] // PAGE_TOKENS, -(-seq_lens[i] // PAGE_TOKENS))
            self._owner[block_table[i, pages]] = blocks[i]
        return blocks

    def _take(self, block: int, num_tokens: int) -> int:
        self._used[block], self._end[block] = self._step, num_tokens
        return block
