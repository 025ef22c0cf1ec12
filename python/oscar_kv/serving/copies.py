"""Which tokens have an exact copy, and where a new token's copy goes.

Every token is encoded when it arrives. The first tokens of a request and its last ones *also* have
exact copies, in blocks of a pool that the plugin owns: one block a request, sinks in place, recent
tokens in a ring (oscar_cuda.h, "Exact copies"). A copy is only ever an addition: where this book
is not sure of one, the codes are used, so losing copies costs accuracy and never correctness.

What makes a copy valid. Blocks are handed out again, requests are preempted and come back, prompts
begin with pages that another request wrote, drafts are rolled back, and no one says so. So each
block keeps *tags*: the slot (64 · page + offset) whose token each of its rows holds; and each page
the block of the request that wrote to it last. A request continues a block's run of tokens when
the token before its new ones is in the block: tagged with just that slot, in a page that no other
request has written since. An engine shares a page only between requests with the same tokens up to
its end, so the tokens before that one are those in the block too. The block may be the request's
own, or another's: the next turn of a conversation, or a prompt that is asked again, begins with
pages from the engine's prefix cache and takes the copies of whoever wrote them, if they are there.

Everything is tensor arithmetic without a synchronisation, for CPUs and GPUs alike.
"""

import dataclasses

import torch
from torch import Tensor

from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class Copies:
    """What a step knows of exact copies; N sequences, T tokens.

    slots: int64 [T] where a token's copy goes, block · rows_per_block + row, −1: nowhere.
    blocks: int32 [N] block with which every query of the sequence has all its copies, −1: none.
    exact_from: int64 [N] first token of the run in the sequence's block, of which the ring has
    those that any of the new tokens' queries needs; sinks: bool [N] the first tokens are in it as
    well. donors, recent_donors: int64 [N] blocks to take the first tokens and the recent ones from
    before anything is written in this step, −1: none.
    """

    slots: Tensor
    blocks: Tensor
    exact_from: Tensor
    sinks: Tensor
    donors: Tensor
    recent_donors: Tensor


class CopyBook:
    """The state of a pool of num_blocks blocks. Not thread-safe.

    sink_tokens, recent_tokens: as a query uses them. ring_tokens: rows of the ring, at least
    recent_tokens; the rest lets drafts be rolled back and queries come several at a time.
    num_pages: of the engine, 64 tokens each.
    """

    def __init__(
        self,
        num_blocks: int,
        sink_tokens: int,
        recent_tokens: int,
        ring_tokens: int,
        num_pages: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if min(num_blocks, num_pages) < 1 or min(sink_tokens, recent_tokens) < 0:
            raise InvalidArgumentError(
                f"{num_blocks} blocks of {sink_tokens} + {recent_tokens} tokens for {num_pages} "
                "pages; right: at least one block and one page, no negative window"
            )
        if ring_tokens < max(recent_tokens, 1):
            raise InvalidArgumentError(
                f"ring_tokens is {ring_tokens}; right: at least {max(recent_tokens, 1)}, the "
                "recent tokens"
            )
        self.num_blocks, self.num_pages, self.device = num_blocks, num_pages, device
        self.sink_tokens, self.recent_tokens = sink_tokens, recent_tokens
        self.ring_tokens = ring_tokens
        self.rows_per_block = sink_tokens + ring_tokens
        # One entry more than there are blocks and pages: what must not be written goes there.
        self._tags = self._full((num_blocks + 1) * self.rows_per_block, -1)
        self._begin = self._full(num_blocks + 1, 0)  # first token of the block's run
        self._end = self._full(num_blocks + 1, 0)  # one past the last token ever written to it
        self._sinks = torch.zeros(num_blocks + 1, dtype=torch.bool, device=device)
        self._writer = self._full(num_pages + 1, -1)  # block that wrote to the page last

    def _full(self, size: int, value: int) -> Tensor:
        return torch.full((size,), value, dtype=torch.int64, device=self.device)

    def _row(self, token: Tensor) -> Tensor:
        """Row of a token in its block."""
        ring = self.sink_tokens + token % self.ring_tokens
        return torch.where(token < self.sink_tokens, token, ring)

    def step(
        self,
        blocks: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        slots: Tensor,
        may_take: Tensor | None = None,
    ) -> Copies:
        """Takes note of the tokens that this step writes.

        blocks: [N] block of each sequence, −1: none; no block twice. query_start: [N + 1] where
        the new tokens of each begin among the T; a sequence without new tokens is left alone.
        seq_lens: [N] tokens, the new ones included. block_table: [N, pages]. slots: [T] of the new
        tokens, −1: not written (padding). may_take: bool [N], sequences that can be given copies of
        other blocks; None: all.
        """
        block_table, slots = block_table.long(), slots.long()
        end, starts = seq_lens.long(), query_start.long()
        first = end - (starts[1:] - starts[:-1])
        active = (blocks >= 0) & (end > first)
        block = torch.where(active, blocks.long(), self.num_blocks)
        late = active & (first > 0)  # whoever begins behind tokens that it does not compute itself
        if may_take is not None:
            late &= may_take

        def page_of(token: Tensor) -> Tensor:
            return block_table.gather(1, (token // PAGE_TOKENS)[:, None])[:, 0]

        def run_of(holder: Tensor) -> tuple[Tensor, Tensor]:
            """First token of the holder's run that its ring still has, and whether the sequence
            goes on with that run."""
            token, written = (first - 1).clamp(min=0), self._end[holder]
            page = page_of(token).clamp(0, self.num_pages)
            tag = self._tags[holder * self.rows_per_block + self._row(token)]
            begin = torch.maximum(self._begin[holder], written - self.ring_tokens)
            goes_on = (first > begin) & (first <= written) & (self._writer[page] == holder)
            return begin, goes_on & (tag == page * PAGE_TOKENS + token % PAGE_TOKENS)

        # Does the block's run of tokens go on? Else the run of whoever wrote the token before.
        own_begin, own = run_of(block)
        writer = self._writer[page_of((first - 1).clamp(min=0)).clamp(0, self.num_pages)]
        lender = torch.where(late & ~own & (writer >= 0), writer, self.num_blocks)
        lent_begin, lent = run_of(lender)
        # A run whose first tokens are not all there is taken without any of them.
        without = torch.where(self._sinks[lender], 0, self.sink_tokens)
        lent_begin = torch.maximum(lent_begin, without)
        own, lent = own & active, lent & (lender < self.num_blocks) & (first > lent_begin)
        lender = torch.where(lent, lender, self.num_blocks)
        begin = torch.where(own, own_begin, torch.where(lent, lent_begin, first))

        # Its first tokens are with the run, or in the block of whoever wrote their pages.
        sinks = active & ((first == 0) | (own & self._sinks[block]))
        with_run = lent & self._sinks[lender]
        donor = self._writer[page_of(torch.zeros_like(first)).clamp(0, self.num_pages)]
        given = late & ~sinks & ~with_run & (donor >= 0)
        donor = torch.where(given, donor, self.num_blocks)
        for page in range(min(-(-self.sink_tokens // PAGE_TOKENS), block_table.shape[1])):
            given &= self._holds_sinks(donor, page, block_table[:, page], first)
        donor, given = torch.where(with_run, lender, donor), given | with_run
        sinks |= given if self.sink_tokens else active
        none = torch.full_like(donor, -1)
        donors = torch.where(given, donor, -1) if self.sink_tokens else none
        recent_donors = torch.where(lent, lender, -1) if self.recent_tokens else none
        self._copy_tags(donors, block, 0, self.sink_tokens)
        self._copy_tags(recent_donors, block, self.sink_tokens, self.rows_per_block)

        self._begin[block], self._end[block], self._sinks[block] = begin, end, sinks
        copy_slots = self._write_tokens(block, starts, end, slots)
        complete = sinks & ((begin <= self.sink_tokens) | (begin <= first + 1 - self.recent_tokens))
        usable = torch.where(complete, block, -1)
        return Copies(copy_slots, usable.int(), begin, sinks, donors, recent_donors)

    def _holds_sinks(self, holder: Tensor, page: int, page_id: Tensor, first: Tensor) -> Tensor:
        """The holder's block has those of the first tokens, before `first`, that lie in a page.

        All of them are looked at: another request may have begun in the middle of the block.
        """
        begin = page * PAGE_TOKENS
        end = min(begin + PAGE_TOKENS, self.sink_tokens)
        token = torch.arange(begin, end, device=self.device)
        page_id = page_id.clamp(0, self.num_pages)
        tags = self._tags[holder[:, None] * self.rows_per_block + token]
        held = (tags == page_id[:, None] * PAGE_TOKENS + token - begin) | (token >= first[:, None])
        return held.all(1) & ((self._writer[page_id] == holder) | (first <= begin))

    def _copy_tags(self, source: Tensor, to: Tensor, first_row: int, end_row: int) -> None:
        """Of rows first_row .. end_row − 1, where there is a source."""
        to = torch.where(source >= 0, to, self.num_blocks)
        source = torch.where(source >= 0, source, self.num_blocks)
        rows = torch.arange(first_row, end_row, device=self.device)
        tags = self._tags[source[:, None] * self.rows_per_block + rows]
        self._tags[to[:, None] * self.rows_per_block + rows] = tags

    def _write_tokens(self, block: Tensor, starts: Tensor, end: Tensor, slots: Tensor) -> Tensor:
        """Tags and writers of the tokens; returns where their copies go."""
        token = torch.arange(len(slots), device=self.device)
        sequence = torch.bucketize(token, starts[1:].contiguous(), right=True)
        sequence = sequence.clamp(max=len(end) - 1)
        position = end[sequence] - (starts[sequence + 1] - token)
        owner = block[sequence]
        written = (slots >= 0) & (token < starts[-1])
        kept = written & (owner < self.num_blocks)
        kept &= (position < self.sink_tokens) | (position >= end[sequence] - self.ring_tokens)
        row = owner * self.rows_per_block + self._row(position.clamp(min=0))
        row = torch.where(kept, row, self.num_blocks * self.rows_per_block)
        self._tags[row] = torch.where(kept, slots, -1)
        page = torch.where(written, slots // PAGE_TOKENS, self.num_pages)
        # A page written by a sequence without a block has no writer any more.
        self._writer[page.clamp(0, self.num_pages)] = torch.where(
            owner < self.num_blocks, owner, -1
        )
        self._writer[self.num_pages :].fill_(-1)
        return torch.where(kept, row, -1)
