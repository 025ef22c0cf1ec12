"""A step's copies on a GPU: noted before its layers run, in buffers that stay where they are."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oscar_kv.serving.copies import Copies, CopyBook


class CopyNotes:
    """What layers read of copies, for batches of up to most_seqs sequences and most_tokens tokens.

    pools: each layer's, [num_blocks, num_kv_heads, 2, rows_per_block, head_dim]. decode_step: as
    oscar_kv.serving.decode_book.decode_step, for steps with one new token a sequence. Layers may be
    replayed from graphs; so whatever such a step does differently from another is done here.
    """

    def __init__(
        self,
        pools: Sequence[Tensor],
        sink_tokens: int,
        most_seqs: int,
        most_tokens: int,
        device: torch.device | str,
        decode_step: Callable[..., None],
    ) -> None:
        self._pools, self._sink_tokens, self._decode_step = pools, sink_tokens, decode_step

        def buffer(size: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full((size,), -1, dtype=dtype, device=device)

        self._buffers = Copies(
            slots=buffer(most_tokens),
            blocks=buffer(most_seqs, torch.int32),
            exact_from=buffer(most_seqs),
            sinks=torch.zeros(most_seqs, dtype=torch.bool, device=device),
            donors=buffer(most_seqs),
            recent_donors=buffer(most_seqs),
        )
        self.num_takes = 0  # steps in which a sequence was looked for copies of another block

    def _of(self, num_seqs: int, num_tokens: int) -> Copies:
        parts = {
            field.name: getattr(self._buffers, field.name)[:num_seqs]
            for field in dataclasses.fields(Copies)
        }
        return Copies(**parts | {"slots": self._buffers.slots[:num_tokens]})

    def none(self, num_seqs: int, num_tokens: int) -> Copies:
        """Of a step that writes no copies and reads none: what a graph is captured with."""
        copies = self._of(num_seqs, num_tokens)
        copies.slots.fill_(-1)
        copies.blocks.fill_(-1)
        return copies

    def note(
        self,
        book: CopyBook,
        blocks: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        slots: Tensor,
        *,
        late: Sequence[int],
        single: bool,
    ) -> Copies:
        """Takes note of a step in the book; arguments as CopyBook.step has them.

        late: sequences with a block that begin behind tokens that it has not seen; they are given
        what other blocks have of those. single: every sequence has one new token.
        """
        copies = self._of(len(blocks), len(slots))
        arguments = (blocks, query_start, seq_lens, block_table, slots)
        if single and not late:
            self._decode_step(book, copies, *arguments)
            return copies
        takes = torch.tensor(late, dtype=torch.int64).to(blocks.device, non_blocking=True)
        may_take = torch.zeros(len(blocks), dtype=torch.bool, device=blocks.device)
        may_take[takes] = True
        result = book.step(*arguments, may_take)
        for field in dataclasses.fields(Copies):
            getattr(copies, field.name).copy_(getattr(result, field.name))
        if late:
            self.num_takes += 1
            self._take(result, blocks[takes], takes)
        return copies

    def _take(self, copies: Copies, to: Tensor, takes: Tensor) -> None:
        for donors, rows in (
            (copies.donors[takes], slice(0, self._sink_tokens)),
            (copies.recent_donors[takes], slice(self._sink_tokens, None)),
        ):
            source = torch.where(donors >= 0, donors, to)
            for pool in self._pools:
                pool[to, :, :, rows] = pool[source, :, :, rows]
