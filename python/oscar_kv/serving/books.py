"""The books that a worker of an engine keeps of its blocks of exact copies."""

import torch

from oscar_kv.serving.copies import CopyBook
from oscar_kv.serving.row_blocks import RowBlocks
from oscar_kv.serving.rows import RowBook
from oscar_kv.serving.windows import Windows


class Books:
    """Made when first asked for, and anew when the engine's cache or table has another size.

    num_blocks: requests that can have copies at one time.
    """

    def __init__(self, windows: Windows, num_blocks: int, device: torch.device) -> None:
        self.windows, self.num_blocks, self.device = windows, num_blocks, device
        self._copies: CopyBook | None = None
        self._rows: RowBlocks | None = None
        self._by_pages: RowBook | None = None

    def copies(self, num_pages: int) -> CopyBook | None:
        """Of an engine cache of num_pages pages; None without windows."""
        windows = self.windows
        if not windows.rows_per_block:
            return None
        if self._copies is None or self._copies.num_pages != num_pages:
            sizes = (windows.sink_tokens, windows.recent_tokens, windows.ring_tokens)
            self._copies = CopyBook(self.num_blocks, *sizes, num_pages, self.device)
        return self._copies

    def rows(self, num_rows: int, *, gives_back: bool, padding_row: int = -1) -> RowBlocks:
        """Blocks by the rows that the engine gives its requests, of which there are num_rows."""
        if self._rows is None or self._rows.num_rows != num_rows:
            self._rows = RowBlocks(
                self.num_blocks,
                num_rows,
                self.device,
                gives_back=gives_back,
                padding_row=padding_row,
            )
        return self._rows

    @property
    def known_rows(self) -> RowBlocks | None:
        return self._rows

    def by_pages(self, num_pages: int) -> RowBook:
        """Blocks for an engine that does not number its requests."""
        if self._by_pages is None or self._by_pages.num_pages != num_pages:
            self._by_pages = RowBook(self.num_blocks, num_pages, self.windows.slack)
        return self._by_pages
