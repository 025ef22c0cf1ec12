"""The state machine of exact copies under random reuse, hits, preemption and roll-back."""

import collections

import numpy as np
import oscar_kv
import pytest
import torch
from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.serving import CopyBook, RowBook
from oscar_kv.serving.windows import SLACK, Windows
from paged_engine import PagedEngine

STEPS = 300


class Simulation:
    """Carries out what the book says on identities of tokens, and checks what it claims."""

    def __init__(self, engine: PagedEngine, windows: Windows, num_blocks: int) -> None:
        self.engine, self.windows = engine, windows
        sizes = (windows.sink_tokens, windows.recent_tokens, windows.ring_tokens)
        self.book = CopyBook(num_blocks, *sizes, engine.num_pages)
        self.pool = np.zeros(num_blocks * windows.rows_per_block, np.int64)
        self.num_sequences = self.num_complete = 0
        self.num_donated = self.num_recent_donated = 0

    def row(self, token: int) -> int:
        windows = self.windows
        if token < windows.sink_tokens:
            return token
        return windows.sink_tokens + token % windows.ring_tokens

    def claims(self, copies, i: int, first: int, end: int) -> list[int]:
        """Tokens before `end` that the block is said to have for queries from `first` on."""
        begin, windows = int(copies.exact_from[i]), self.windows
        sinks = range(min(windows.sink_tokens, end)) if bool(copies.sinks[i]) else range(0)
        oldest = max(first + 1 - windows.recent_tokens, end - windows.ring_tokens, begin, 0)
        return sorted({*sinks, *range(oldest, end)})

    def check(self, request, block: int, tokens: list[int]) -> None:
        for token in tokens:
            kept = self.pool[block * self.windows.rows_per_block + self.row(token)]
            assert kept == request.identity(token), f"copy of token {token} is another token's"

    def step(self, rows: np.ndarray, step) -> None:
        arrays = (rows, step.starts, step.lengths, step.table, step.slots)
        self.carry_out(self.book.step(*map(torch.from_numpy, arrays)), rows, step)

    def carry_out(self, copies, rows: np.ndarray, step) -> None:
        size, sinks = self.windows.rows_per_block, self.windows.sink_tokens
        before = self.pool.copy()
        for block, donor, recent in zip(
            rows, copies.donors.tolist(), copies.recent_donors.tolist(), strict=True
        ):
            if donor >= 0:
                self.num_donated += donor != block
                self.pool[block * size :][:sinks] = before[donor * size :][:sinks]
            if recent >= 0:
                self.num_recent_donated += recent != block
                self.pool[block * size :][sinks:size] = before[recent * size :][sinks:size]
        firsts = step.lengths - np.diff(step.starts)
        for i, request in enumerate(step.requests):
            if rows[i] >= 0:
                first = int(firsts[i])
                self.check(request, rows[i], self.claims(copies, i, first, first))
        slots = copies.slots.numpy()
        assert len(set(slots[slots >= 0])) == np.count_nonzero(slots >= 0)
        for i, request in enumerate(step.requests):
            for token in range(firsts[i], step.lengths[i]):
                slot = slots[step.starts[i] + token - firsts[i]]
                if slot >= 0:
                    assert slot // size == rows[i]
                    self.pool[slot] = request.identity(token)
        for i, request in enumerate(step.requests):
            self.num_sequences += 1
            if rows[i] < 0:
                assert copies.blocks[i] == -1
                continue
            end = int(step.lengths[i])
            have = self.claims(copies, i, int(firsts[i]), end)
            self.check(request, rows[i], have)
            if copies.blocks[i] >= 0 and end - firsts[i] <= self.windows.most_queries:
                self.num_complete += 1
                for query in range(firsts[i], end):
                    recent = range(max(0, query - self.windows.recent_tokens + 1), query + 1)
                    assert set(recent) | set(range(min(sinks, query + 1))) <= set(have)


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "by pages"])
@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("sizes", [(40, 90), (64, 256), (100, 0), (0, 30)])
def test_claimed_copies_are_the_tokens(sizes, drafts, numbered):
    windows, seen = Windows.of(*sizes), collections.Counter()
    for seed, num_pages in enumerate((14, 20, 40)):
        engine = PagedEngine(seed, num_pages, num_rows=6, drafts=drafts)
        simulation = Simulation(engine, windows, num_blocks=6)
        finder = RowBook(6, engine.num_pages, windows.slack)
        for _ in range(STEPS):
            step = engine.step()
            if not len(step.slots):
                continue
            rows = step.rows if numbered else finder.rows(step.starts, step.lengths, step.table)
            simulation.step(rows, step)
            engine.finish(step)
        for counts in (engine, simulation):
            seen.update({k: v for k, v in vars(counts).items() if k.startswith("num_")})
    # The test has seen what it is about, and copies are there where nothing took them away.
    assert min(seen["num_hits"], seen["num_preempted"]) > 50, seen
    assert drafts == 0 or seen["num_taken_back"] > 50, seen
    assert seen["num_complete"] > seen["num_sequences"] // 4, seen
    assert sizes[0] == 0 or seen["num_donated"] > 3, seen
    assert sizes[1] == 0 or seen["num_recent_donated"] > 3, seen


def test_fewer_blocks_than_requests():
    """Requests without a block are served from codes, and their pages vouch for nobody."""
    windows = Windows.of(40, 90)
    for seed in range(4):
        engine = PagedEngine(seed, num_pages=40, num_rows=8)
        simulation = Simulation(engine, windows, num_blocks=3)
        finder = RowBook(3, engine.num_pages, windows.slack)
        for _ in range(STEPS):
            step = engine.step()
            if not len(step.slots):
                continue
            if seed % 2:
                rows = np.where(step.rows < 3, step.rows, -1)
            else:
                rows = finder.rows(step.starts, step.lengths, step.table)
            assert len(set(rows[rows >= 0])) == np.count_nonzero(rows >= 0)
            simulation.step(rows, step)
            engine.finish(step)
        assert simulation.num_complete > 50


def one_sequence(first: int, end: int, page: int = 0):
    """Arguments of a step of block 0 whose token t lies in page `page` + t // 64."""
    table = torch.arange(page, page + 8)[None]
    slots = page * PAGE_TOKENS + torch.arange(first, end)
    lengths = torch.tensor([end])
    return torch.tensor([0]), torch.tensor([0, end - first]), lengths, table, slots


def test_a_request_that_goes_on_keeps_its_copies():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    assert book.step(*one_sequence(0, 100)).blocks.tolist() == [0]
    copies = book.step(*one_sequence(100, 101))
    assert copies.blocks.tolist() == [0]
    assert copies.exact_from.tolist() == [76]  # as far as the ring goes
    assert copies.slots.tolist() == [4 + 100 % 24]


def test_rollback_keeps_copies_as_far_as_the_ring_goes():
    # Of 100 tokens the ring has the last 24; a query at token t needs t − 15 .. t.
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 100))
    assert book.step(*one_sequence(91, 100)).blocks.tolist() == [0]
    copies = book.step(*one_sequence(90, 91))
    assert copies.blocks.tolist() == [-1]
    assert copies.exact_from.tolist() == [76]
    # What was overwritten stays lost, however the request goes on.
    assert book.step(*one_sequence(90, 91)).blocks.tolist() == [-1]
    assert book.step(*one_sequence(91, 92)).blocks.tolist() == [0]


def test_the_next_turn_of_a_conversation_takes_the_copies_of_the_last():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 60))
    for end in range(61, 67):  # the answer
        book.step(*one_sequence(end - 1, end))
    blocks, *rest = one_sequence(64, 90)  # a full page is in the engine's cache
    copies = book.step(torch.tensor([1]), *rest)
    assert copies.donors.tolist() == copies.recent_donors.tolist() == [0]
    assert copies.exact_from.tolist() == [66 - 24]
    assert bool(copies.sinks[0])
    assert copies.blocks.tolist() == [1]


def test_who_may_not_take_is_given_nothing():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 66))
    blocks, *rest = one_sequence(64, 90)
    copies = book.step(torch.tensor([1]), *rest, torch.tensor([False]))
    assert copies.donors.tolist() == copies.recent_donors.tolist() == [-1]
    assert copies.exact_from.tolist() == [64]
    assert not bool(copies.sinks[0])


def test_a_block_whose_request_has_moved_on_lends_first_tokens_only():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 300))
    blocks, *rest = one_sequence(128, 150)
    copies = book.step(torch.tensor([1]), *rest)
    assert copies.donors.tolist() == [0]
    assert copies.recent_donors.tolist() == [-1]
    assert copies.exact_from.tolist() == [128]


def test_another_request_in_the_same_block_finds_nothing():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 100))
    copies = book.step(*one_sequence(100, 101, page=10))
    assert copies.blocks.tolist() == [-1]
    assert copies.exact_from.tolist() == [100]
    assert not bool(copies.sinks[0])


def test_pages_written_by_another_request_are_not_trusted():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 100))
    blocks, *rest = one_sequence(0, 36, page=1)
    book.step(torch.tensor([1]), *rest)  # page 1 is given away and comes back
    copies = book.step(blocks, *one_sequence(100, 101)[1:])
    assert copies.blocks.tolist() == copies.recent_donors.tolist() == [-1]
    assert copies.exact_from.tolist() == [100]


def test_padding_and_sequences_without_tokens_change_nothing():
    book = CopyBook(2, 4, 16, 16 + SLACK, 32)
    book.step(*one_sequence(0, 100))
    state = [x.clone() for x in (book._begin[:2], book._end[:2], book._tags[:56])]
    table = torch.zeros(2, 8, dtype=torch.long)
    copies = book.step(
        torch.tensor([0, -1]),
        torch.tensor([0, 0, 0]),
        torch.tensor([100, 0]),
        table,
        torch.full((4,), -1),
    )
    assert copies.slots.tolist() == [-1] * 4
    assert copies.blocks.tolist() == [-1, -1]
    for kept, now in zip(state, (book._begin[:2], book._end[:2], book._tags[:56]), strict=True):
        assert torch.equal(kept, now)


def test_refusals():
    with pytest.raises(oscar_kv.InvalidArgumentError, match="ring_tokens is 10"):
        CopyBook(1, 0, 20, 10, 4)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="at least one block"):
        CopyBook(0, 0, 20, 20, 4)
