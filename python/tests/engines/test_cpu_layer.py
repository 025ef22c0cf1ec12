"""A layer on CPU in an engine's hands: chunks, batches, hits and windows."""

import itertools

import numpy as np
import pytest
import torch
from conftest import SCALE, SHAPE, attend_exactly, make_rows, relative_error
from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.serving import CopyBook, CpuLayer, CpuStep, open_method
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.windows import Windows

NUM_TOKENS, NUM_PAGES = 600, 40
WINDOWS = Windows.of(40, 100)


class Engine:
    """Sequences of one layer, written and attended in steps that the test chooses."""

    def __init__(self, kv: str = "quarot", windows: Windows = WINDOWS) -> None:
        codec = open_method(kv, "llama", SHAPE).codec(1, NUM_TOKENS)
        rows = 4 * windows.rows_per_block
        pool = [torch.zeros(rows, 2, 64, dtype=torch.bfloat16) for _ in range(2)] if rows else None
        self.not_finite = NotFinite([codec.layer])
        self.layer = CpuLayer(codec, windows, *(pool or (None, None)), self.not_finite.flags)
        sizes = (windows.sink_tokens, windows.recent_tokens, windows.ring_tokens)
        self.book = CopyBook(4, *sizes, NUM_PAGES) if rows else None
        self.pages = np.zeros((NUM_PAGES, codec.page_bytes), np.uint8)
        self.rows = [
            torch.from_numpy(make_rows(seed, NUM_TOKENS, heads)).bfloat16().float()
            for seed, heads in ((1, 4), (2, 2), (3, 2))
        ]

    def step(self, *sequences: tuple[int, int, int, int]) -> list[torch.Tensor]:
        """Each: block, first page, first new token, end. Returns each one's output."""
        counts = [end - first for _, _, first, end in sequences]
        starts = np.concatenate([[0], np.cumsum(counts)])
        table = np.array([np.arange(page, page + 10) for _, page, _, _ in sequences], np.int32)
        positions = np.concatenate([np.arange(f, e) for _, _, f, e in sequences]).astype(np.int32)
        which = np.repeat(np.arange(len(sequences)), counts)
        slots = table[which, positions // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS
        slots += positions % PAGE_TOKENS
        blocks = np.array([block for block, *_ in sequences])
        lengths = np.array([end for *_, end in sequences])
        copies = None
        if self.book is not None:
            arrays = (blocks, starts, lengths, table, slots)
            copies = self.book.step(*map(torch.from_numpy, arrays))
        step = CpuStep(starts, lengths, table, positions, slots, blocks, copies)
        q, keys, values = (x[positions] for x in self.rows)
        out = torch.full_like(q, torch.nan)
        self.layer.write(keys, values, step, self.pages)
        self.layer.attend(q, keys, values, step, self.pages, out, scale=SCALE)
        return list(torch.split(out, counts))


def in_chunks(engine: Engine, *ends: int, block: int = 0, page: int = 0) -> torch.Tensor:
    pairs = itertools.pairwise([0, *ends])
    return torch.cat([engine.step((block, page, a, b))[0] for a, b in pairs])


@pytest.mark.parametrize("ends", [(1, 600), (64, 128, 600), (300, 301, 302, 599, 600)])
def test_chunked_is_unchunked(ends):
    whole, cut = Engine(), Engine()
    expected = in_chunks(whole, 600)
    got = in_chunks(cut, *ends)
    np.testing.assert_array_equal(whole.pages, cut.pages)
    # The kernel may sum tiles of queries in another order.
    assert relative_error(got.numpy(), expected.numpy()) < 1e-5


def test_a_batch_is_its_sequences():
    together, alone = Engine(), Engine()
    both = together.step((0, 0, 0, 500), (1, 10, 0, 300))
    one = [alone.step((0, 0, 0, 500))[0], alone.step((1, 10, 0, 300))[0]]
    for a, b in zip(both, one, strict=True):
        assert relative_error(a.numpy(), b.numpy()) < 1e-5


def test_windows_hold_the_rows_themselves():
    """A sequence no longer than the windows is attended exactly, BF16 rows apart."""
    engine = Engine()
    in_chunks(engine, 60, 61, 62)
    out = engine.step((0, 0, 62, 63))[0]
    q, keys, values = (x[:63].numpy() for x in engine.rows)
    truth = attend_exactly(q[-1:], keys, values, SCALE)[0]
    assert relative_error(out.numpy(), truth) < 2**-8
    coded = Engine(windows=Windows.of(0, 0))
    in_chunks(coded, 62)
    assert relative_error(coded.step((0, 0, 62, 63))[0].numpy(), truth) > 0.05


def test_a_hit_without_windows_is_a_miss():
    engine = Engine(windows=Windows.of(0, 0))
    expected = in_chunks(engine, 300)[256:]
    # Another request, with the same pages for its first 256 tokens.
    got = engine.step((1, 0, 256, 300))[0]
    assert relative_error(got.numpy(), expected.numpy()) < 1e-5


def test_a_hit_takes_the_first_tokens_and_loses_recent_ones_that_nobody_has():
    engine, exact = Engine(), Engine("naive:k16v16")
    miss = in_chunks(engine, 300)[256:]
    engine.step((0, 0, 300, 400))  # the block's ring moves on
    hit = engine.step((1, 0, 256, 300))[0]
    truth = in_chunks(exact, 300)[256:].numpy()
    # Codes where the miss had copies: worse, but not by more than without any windows.
    none = in_chunks(Engine(windows=Windows.of(0, 0)), 300)[256:]
    errors = [relative_error(x.numpy(), truth) for x in (miss, hit, none)]
    assert errors[0] < errors[1] < errors[2]
    # After as many new tokens as the window holds, nothing is missing.
    for end in range(301, 400):
        engine.step((1, 0, end - 1, end))
        assert engine.book._begin[1] == max(256, end - 1 - WINDOWS.ring_tokens)
    assert engine.step((1, 0, 399, 400))[0].isfinite().all()


@pytest.mark.parametrize("written", [256 + WINDOWS.slack, 300])
def test_a_hit_on_what_a_request_wrote_last_takes_its_recent_tokens_too(written):
    """All of them where the request ended at most the ring's slack behind the hit's end."""
    engine, other = Engine(), Engine()
    in_chunks(engine, written)
    hit = engine.step((1, 0, 256, 300))[0]
    miss = in_chunks(other, 256, 300)[256:]
    without = Engine()
    in_chunks(without, 256)
    without.book = CopyBook(4, WINDOWS.sink_tokens, 100, WINDOWS.ring_tokens, NUM_PAGES)
    codes = without.step((1, 0, 256, 300))[0]
    errors = [relative_error(x.numpy(), miss.numpy()) for x in (hit, codes)]
    if written == 300:
        assert 1e-3 < errors[0] < errors[1] / 1.2
    else:
        assert errors[0] < 1e-5


def test_lost_copies_are_codes_and_not_garbage():
    engine, other = Engine(), Engine(windows=Windows.of(0, 0))
    in_chunks(engine, 300)
    engine.step((0, 10, 0, 200))  # the block goes to another request
    got = engine.step((0, 0, 300, 301))[0]
    in_chunks(other, 300)
    coded = other.step((0, 0, 300, 301))[0]
    # Its own token is exact, all others are codes.
    assert relative_error(got.numpy(), coded.numpy()) < 0.05


def test_rows_that_are_not_finite_are_counted_and_said(caplog):
    engine = Engine()
    engine.step((0, 0, 0, 10))
    engine.not_finite.check()
    assert not engine.not_finite.counts.any() and not caplog.text
    engine.rows[1][5] = torch.inf
    for block in range(3):
        engine.step((block, 10 * block, 0, 10))
        engine.not_finite.check()
        engine.not_finite.check()  # nothing new
    assert engine.not_finite.counts.tolist() == [3]
    # The first step says so, and then the tenth.
    assert caplog.text.count("layers 1 were given rows with NaN or Inf") == 1
    for _ in range(7):
        engine.step((0, 0, 0, 10))
        engine.not_finite.check()
    assert caplog.text.count("steps with such rows so far: 10") == 1
