"""The book of copies for a step of decoding on a GPU: one small Triton kernel, no graph needed.

It does what `CopyBook.step` does for sequences with one new token each, but for taking tokens from
another block, which reads what the same step writes; a request that may need that goes through
`CopyBook.step`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.serving.copies import Copies, CopyBook


@triton.jit
def _step(
    blocks,
    starts,
    lengths,
    table,
    table_stride,
    slots,
    tags,
    begins,
    ends,
    sinks,
    writer,
    out_slots,
    out_blocks,
    num_blocks,
    num_pages,
    SINKS: tl.constexpr,
    RECENT: tl.constexpr,
    RING: tl.constexpr,
    PAGE: tl.constexpr,
):
    i = tl.program_id(0)
    block = tl.load(blocks + i)
    token = tl.load(starts + i).to(tl.int64)
    count = tl.load(starts + i + 1).to(tl.int64) - token
    end = tl.load(lengths + i).to(tl.int64)
    active = (block >= 0) & (block < num_blocks) & (count == 1)
    block = tl.where(active, block, num_blocks).to(tl.int64)  # the entry that nobody reads
    first = end - 1
    before = tl.maximum(first - 1, 0)
    page = tl.load(table + i * table_stride + before // PAGE).to(tl.int64)
    page = tl.minimum(tl.maximum(page, 0), num_pages)
    row = tl.where(before < SINKS, before, SINKS + before % RING)
    tag = tl.load(tags + block * (SINKS + RING) + row)
    written = tl.load(ends + block)
    begin = tl.maximum(tl.load(begins + block), written - RING)
    goes_on = active & (first > begin) & (first <= written)
    goes_on = goes_on & (tag == page * PAGE + before % PAGE) & (tl.load(writer + page) == block)
    begin = tl.where(goes_on, begin, first)
    has_sinks = active & ((first == 0) | (goes_on & (tl.load(sinks + block) != 0)))
    if SINKS == 0:
        has_sinks = active
    complete = has_sinks & ((begin <= SINKS) | (begin <= first + 1 - RECENT))
    tl.store(out_blocks + i, tl.where(complete, block, -1).to(tl.int32))

    real = count == 1
    at = tl.where(real, token, i)
    slot = tl.load(slots + at)
    kept = active & (slot >= 0)
    row = block * (SINKS + RING) + tl.where(first < SINKS, first, SINKS + first % RING)
    tl.store(out_slots + at, tl.where(kept, row, -1))
    if active:
        tl.store(begins + block, begin)
        tl.store(ends + block, end)
        tl.store(sinks + block, has_sinks)
    if kept:
        tl.store(tags + row, slot)
    if real & (slot >= 0):
        tl.store(writer + slot // PAGE, tl.where(active, block, -1))


def decode_step(
    book: CopyBook,
    copies: Copies,
    blocks: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    slots: Tensor,
) -> None:
    """As CopyBook.step, for one new token a sequence; writes copies.slots and copies.blocks."""
    _step[(len(blocks),)](
        blocks,
        query_start,
        seq_lens,
        block_table,
        block_table.stride(0),
        slots,
        book._tags,
        book._begin,
        book._end,
        book._sinks.view(torch.int8),
        book._writer,
        copies.slots,
        copies.blocks,
        book.num_blocks,
        book.num_pages,
        SINKS=book.sink_tokens,
        RECENT=book.recent_tokens,
        RING=book.ring_tokens,
        PAGE=PAGE_TOKENS,
    )
