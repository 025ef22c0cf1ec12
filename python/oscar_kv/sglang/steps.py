"""What a step looks like to all layers, made once a step from SGLang's ForwardBatch.

SGLang names a token's place by slot, 64 · page + offset, page 0 being padding: its request table
holds the slot of every token of every row.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.serving import RowBlocks
from oscar_kv.serving.copy_notes import CopyNotes
from oscar_kv.serving.cpu_layer import CpuStep
from oscar_kv.serving.cuda_layer import CudaStep


def real_slots(locations: Tensor) -> Tensor:
    """Slots as the layers take them: −1 instead of a place in the page of padding."""
    return torch.where(locations < PAGE_TOKENS, -1, locations)


def prompt_lengths(batch: Any) -> tuple[list[int], list[int]]:
    """Tokens before the new ones, and all of them, of each sequence of a batch of prompts."""
    firsts, counts = batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu
    if firsts is None or counts is None:
        firsts, counts = batch.extend_prefix_lens.tolist(), batch.extend_seq_lens.tolist()
    return list(firsts), [first + count for first, count in zip(firsts, counts, strict=True)]


def rows_on_host(batch: Any) -> list[int]:
    """Rows of a batch of prompts."""
    known = batch.req_pool_indices_cpu
    return (batch.req_pool_indices if known is None else known).tolist()


class Steps:
    """Of one worker. table: SGLang's int32 [rows, tokens] request table; num_pages: of its pool."""

    def __init__(self, worker: Any, table: Tensor, num_pages: int) -> None:
        self._worker, self._table = worker, table
        self.num_pages = num_pages

    @property
    def _blocks(self) -> RowBlocks:
        return self._worker.rows(self._table.shape[0])


class CpuSteps(Steps):
    def build(self, batch: Any) -> CpuStep:
        rows = batch.req_pool_indices
        if batch.forward_mode.is_decode():
            lengths = batch.seq_lens.numpy().astype(np.int64)
            counts = np.ones(len(lengths), np.int64)
        else:
            firsts, ends = prompt_lengths(batch)
            lengths = np.array(ends, np.int64)
            counts = lengths - firsts
            self._blocks.begin(rows_on_host(batch), firsts, ends)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        num_pages = -(-int(lengths.max(initial=0)) // PAGE_TOKENS)
        table = self._table[rows, : num_pages * PAGE_TOKENS : PAGE_TOKENS].numpy() // PAGE_TOKENS
        slots = real_slots(batch.out_cache_loc[: starts[-1]].long()).numpy()
        before = np.repeat(lengths - counts - starts[:-1], counts)
        positions = (before + np.arange(starts[-1])).astype(np.int32)
        blocks = self._blocks.of(rows.long())
        book, copies = self._worker.books.copies(self.num_pages), None
        if book is not None:
            arrays = (starts, lengths, table, slots)
            copies = book.step(blocks, *map(torch.from_numpy, arrays))
        return CpuStep(starts, lengths, table, positions, slots, blocks.numpy(), copies)


class CudaSteps(Steps):
    """Builds steps in buffers that stay where they are, for graphs.

    max_seqs, max_tokens: largest batch. decode_step: the book's step where every sequence has one
    new token (serving/decode_book.py).
    """

    def __init__(
        self,
        worker: Any,
        table: Tensor,
        num_pages: int,
        max_seqs: int,
        max_tokens: int,
        decode_step: Any,
    ) -> None:
        super().__init__(worker, table, num_pages)
        device = table.device

        def buffer(*size: int, dtype: torch.dtype, fill: int = -1) -> Tensor:
            return torch.full(size, fill, dtype=dtype, device=device)

        max_pages = -(-table.shape[1] // PAGE_TOKENS)
        self._rows = buffer(max_seqs, dtype=torch.int64)
        self._starts = torch.arange(max_seqs + 1, device=device)
        self._lengths = buffer(max_seqs, dtype=torch.int32, fill=0)
        self._pages = buffer(max_seqs, max_pages, dtype=torch.int32, fill=0)
        self._slots = buffer(max_tokens, dtype=torch.int64)
        self._positions = buffer(max_tokens, dtype=torch.int32, fill=0)
        sinks = worker.windows.sink_tokens
        self.notes = CopyNotes(worker.pools, sinks, max_seqs, max_tokens, device, decode_step)

    def build(self, batch: Any, *, for_capture: bool = False) -> CudaStep:
        """for_capture: of a graph whose batches come later; it writes nothing."""
        count = batch.batch_size
        decoding = batch.forward_mode.is_decode()
        starts_host = ends = None
        late: list[int] = []
        starts = self._starts[: count + 1]
        if decoding:
            num_tokens = count
        else:
            firsts, ends = prompt_lengths(batch)
            late = self._blocks.begin(rows_on_host(batch), firsts, ends)
            counts = np.array(ends, np.int64) - firsts
            starts_host = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            num_tokens = int(starts_host[-1])
            starts = torch.from_numpy(starts_host).to(self._table.device)
        lengths, pages = self._lengths[:count], self._pages[:count]
        slots, positions = self._slots[:num_tokens], self._positions[:num_tokens]
        rows = self._rows[:count]
        lengths.copy_(batch.seq_lens[:count])
        positions.copy_(batch.positions[:num_tokens])
        self._fill_pages(batch, pages, ends)
        slots.fill_(-1)
        if not for_capture:
            given = batch.out_cache_loc[:num_tokens]
            slots[: len(given)] = real_slots(given.long())
        rows.copy_(self._blocks.of(batch.req_pool_indices[:count].long()))
        book, copies = self._worker.books.copies(self.num_pages), None
        if book is not None and for_capture:
            copies = self.notes.none(count, num_tokens)
        elif book is not None:
            arguments = (book, rows, starts, lengths, pages, slots)
            copies = self.notes.note(*arguments, late=late, single=decoding)
        return CudaStep(
            num_tokens,
            lengths,
            pages,
            slots,
            positions,
            rows,
            copies,
            None if starts_host is None else starts_host.tolist(),
            ends,
        )

    def _fill_pages(self, batch: Any, pages: Tensor, ends: list[int] | None) -> None:
        """Page tables, as far as the longest sequence goes."""
        longest = max(ends) if ends else 0
        if ends is None:
            known = batch.seq_lens_cpu
            # A page more than the host knows of: it may be a step behind.
            longest = self._table.shape[1] if known is None else int(known.max()) + PAGE_TOKENS
        longest = min(longest, self._table.shape[1])
        columns = self._table[:, :longest:PAGE_TOKENS]
        taken = columns[batch.req_pool_indices[: len(pages)].long()]
        pages[:, : taken.shape[1]] = taken // PAGE_TOKENS
