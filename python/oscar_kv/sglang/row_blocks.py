"""Which block of exact copies a request has: SGLang's rows of requests, mapped to fewer blocks.

SGLang gives each running request a row of its request table (row 0 is padding) until the request
ends or is retracted, and there may be thousands of rows. A row is given a block with the first
prompt tokens that it computes, and loses it when SGLang frees the row. A request that finds no
block left is served from its codes alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PADDING_ROW = 0


class RowBlocks:
    """num_rows: of SGLang's table, row 0 included. Not thread-safe.

    SGLang frees rows on another stream than the one that computes, so the map on the device is
    brought up to date only when it is about to be read.
    """

    def __init__(self, num_blocks: int, num_rows: int, device: torch.device | str = "cpu") -> None:
        self.num_rows = num_rows
        self._free = list(range(num_blocks - 1, -1, -1))
        self._block: dict[int, int] = {}  # row → block
        self._end: dict[int, int] = {}  # row → tokens, as far as prompts told
        self._changed: dict[int, int] = {}  # rows whose block the device does not know yet
        self._map = torch.full((num_rows,), -1, dtype=torch.int64, device=device)
        self.num_without = 0  # requests that began without a block

    def begin(self, rows: Sequence[int], firsts: Sequence[int], ends: Sequence[int]) -> bool:
        """Notes the prompt tokens firsts[i] .. ends[i] − 1 that the rows are about to compute.

        Rows without a block are given one. Returns whether some row with a block begins in the
        middle of its sequence, behind tokens that its block has not seen.
        """
        begins_late = False
        for row, first, end in zip(rows, firsts, ends, strict=True):
            if row == PADDING_ROW:
                continue
            known, fresh = self._end.get(row), row not in self._block
            self._end[row] = end
            if fresh and not self._free:
                self.num_without += known is None
                continue
            if fresh:
                self._changed[row] = self._block[row] = self._free.pop()
            begins_late |= first > 0 and (fresh or known != first)
        return begins_late

    def free(self, rows: Sequence[int]) -> None:
        """SGLang took the rows away from their requests."""
        for row in rows:
            self._end.pop(row, None)
            block = self._block.pop(row, None)
            if block is not None:
                self._free.append(block)
                self._changed[row] = -1

    def clear(self) -> None:
        self.free(list(self._block))
        self._end.clear()

    def of(self, rows: Tensor) -> Tensor:
        """Blocks of rows, −1: none; on the device, without a synchronisation."""
        if self._changed:
            changes = torch.tensor([list(self._changed), list(self._changed.values())])
            where, blocks = changes.to(self._map.device)
            self._map[where] = blocks
            self._changed.clear()
        return self._map[rows]
