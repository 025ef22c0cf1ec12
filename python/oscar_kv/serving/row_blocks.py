"""Which block of exact copies a request has, where the engine numbers its running requests.

An engine gives each running request a *row* until the request ends. A row is given a block with the
first tokens that it computes: the block that was used last the longest ago, so that the copies of
finished requests stay for those that continue them, as long as there is room.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class RowBlocks:
    """num_rows: of the engine's table of requests. padding_row: never given a block, −1: none.

    gives_back: the engine says when it takes rows away (`free`), and a block is its row's until
    then. Otherwise a block that was not used in the last two steps may be another row's.

    An engine may free rows on another stream than the one that computes, so the map on the device
    is brought up to date only when it is about to be read. Not thread-safe.
    """

    def __init__(
        self,
        num_blocks: int,
        num_rows: int,
        device: torch.device | str = "cpu",
        *,
        gives_back: bool,
        padding_row: int = -1,
    ) -> None:
        self.num_rows, self._gives_back, self._padding_row = num_rows, gives_back, padding_row
        self._block = np.full(num_rows, -1, np.int64)  # of each row
        self._end = np.full(num_rows, -1, np.int64)  # tokens of each row as told; −1: not told
        self._row = np.full(num_blocks, -1, np.int64)  # of each block
        self._used = np.full(num_blocks, -2, np.int64)  # step of the last use
        self._step = 0
        self._map = torch.full((num_rows,), -1, dtype=torch.int64, device=device)
        self._changed: set[int] = set()  # rows whose block the device does not know yet
        self.num_without = 0  # requests that began without a block

    def begin(self, rows: Sequence[int], firsts: Sequence[int], ends: Sequence[int]) -> list[int]:
        """Notes the tokens firsts[i] .. ends[i] − 1 that the rows are about to compute; one step.

        Rows without a block, and rows that another request has now, are given one. Returns those i
        whose row has a block and begins behind tokens that its block has not seen.
        """
        self._step += 1
        row, first, end = (np.asarray(x, np.int64) for x in (rows, firsts, ends))
        known = self._end[row]
        goes_on = (known == first) & (first > 0)
        block = self._block[row]
        self._end[row] = end
        self._used[block[block >= 0]] = self._step
        if goes_on.all() and (block >= 0).all():
            return []
        late = []
        for i in np.flatnonzero(~goes_on | (block < 0)).tolist():
            if row[i] == self._padding_row:
                continue
            if not self._gives_back and not goes_on[i] and block[i] >= 0:
                self._leave(int(row[i]), self._step - 1)  # it was another request's
                block[i] = -1
            fresh = block[i] < 0
            if fresh and not self._take(int(row[i])):
                self.num_without += not goes_on[i]
                continue
            if first[i] > 0 and (fresh or not goes_on[i]):
                late.append(i)
        return late

    def _take(self, row: int) -> bool:
        """Gives the row the block used last the longest ago; False where all are in use."""
        free = self._row < 0
        if not self._gives_back:
            free |= self._used < self._step - 1
        if not free.any():
            return False
        choices = np.flatnonzero(free)
        block = int(choices[self._used[choices].argmin()])
        if self._row[block] >= 0:
            self._leave(int(self._row[block]), self._used[block])
        self._row[block], self._block[row], self._used[block] = row, block, self._step
        self._changed.add(row)
        return True

    def _leave(self, row: int, used: int) -> None:
        block = self._block[row]
        self._row[block], self._block[row], self._used[block] = -1, -1, used
        self._changed.add(row)

    def free(self, rows: Sequence[int]) -> None:
        """The engine took the rows away from their requests."""
        for row in rows:
            self._end[row] = -1
            if self._block[row] >= 0:
                self._leave(row, self._step)

    def clear(self) -> None:
        self.free(range(self.num_rows))

    def of(self, rows: Tensor) -> Tensor:
        """Blocks of rows, −1: none; on the device, without a synchronisation."""
        if self._changed:
            changed = sorted(self._changed)
            changes = torch.from_numpy(np.stack([np.array(changed), self._block[changed]]))
            where, blocks = changes.to(self._map.device, non_blocking=True)
            self._map[where] = blocks
            self._changed.clear()
        return self._map[rows]
