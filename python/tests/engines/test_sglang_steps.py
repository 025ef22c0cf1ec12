"""Steps of the SGLang plugin under random scheduling: rows, blocks, slots, padding, copies.

The engine runs prompts and decoding in batches of their own, as SGLang does, in chunks, over shared
prefixes, with requests retracted; rows and pages have SGLang's numbers, row 0 and page 0 padding.
"""

import collections
import types

import numpy as np
import oscar_kv
import pytest
import torch
from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.sglang.settings import Settings
from oscar_kv.sglang.steps import CpuSteps, CudaSteps
from oscar_kv.sglang.worker import Worker
from paged_engine import PagedEngine, Step
from test_copies import Simulation

NUM_ROWS, CONTEXT = 6, 16 * PAGE_TOKENS
STEPS = 250


def make_worker(sinks: int, recent: int, num_blocks: int) -> Worker:
    return Worker(
        chosen=Settings(f"quarot:sink={sinks},recent={recent}", copy_blocks=num_blocks),
        device="cpu",
        shape=oscar_kv.ModelShape(1, 2, 1, 64, 64),
        architecture="llama",
        weights_hash="",
        layers=range(1),
        context_tokens=CONTEXT,
        max_requests=None,
    )


class Engine(PagedEngine):
    """SGLang's side: its request table, and rows that it takes away."""

    def __init__(self, seed: int, num_pages: int, workers: list[Worker]) -> None:
        super().__init__(seed, num_pages, NUM_ROWS)
        self.workers = workers
        self.table = torch.zeros((NUM_ROWS + 1, CONTEXT), dtype=torch.int32)

    def _release(self, request) -> None:
        for worker in self.workers:
            worker.free_rows([request.row + 1])
        super()._release(request)

    def batches(self, step: Step) -> list[Step]:
        """The step's prompts, and its requests that decode."""
        counts = np.diff(step.starts)
        decodes = np.array(
            [c == 1 and r.computed >= r.prompt for r, c in zip(step.requests, counts, strict=True)],
            bool,
        )
        return [self._part(step, np.flatnonzero(x)) for x in (~decodes, decodes) if x.any()]

    def _part(self, step: Step, chosen: np.ndarray) -> Step:
        counts = np.diff(step.starts)[chosen]
        slots = [step.slots[step.starts[i] : step.starts[i + 1]] for i in chosen]
        for i in chosen:
            request, end = step.requests[i], int(step.lengths[i])
            tokens = np.arange(end)
            pages = np.array(request.pages)[tokens // PAGE_TOKENS] + 1
            place = torch.from_numpy(pages * PAGE_TOKENS + tokens % PAGE_TOKENS)
            self.table[request.row + 1, :end] = place.int()
        return Step(
            [step.requests[i] for i in chosen],
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            step.lengths[chosen],
            step.table[chosen] + 1,
            np.concatenate(slots) + PAGE_TOKENS,
            step.rows[chosen] + 1,
        )


def forward_batch(step: Step, *, decoding: bool, padding: int = 0):
    """SGLang's ForwardBatch; padding: requests that fill a graph's batch (row 0, one token)."""
    counts = np.diff(step.starts)
    firsts = step.lengths - counts
    before = np.repeat(firsts - step.starts[:-1], counts)
    positions = torch.from_numpy(before + np.arange(step.starts[-1]))

    def pad(values, fill: int):
        return torch.cat([torch.as_tensor(values), torch.full((padding,), fill)])

    lengths = pad(step.lengths, 1)
    return types.SimpleNamespace(
        forward_mode=types.SimpleNamespace(is_decode=lambda: decoding),
        batch_size=len(step.lengths) + padding,
        req_pool_indices=pad(step.rows, 0),
        req_pool_indices_cpu=None if decoding else torch.from_numpy(step.rows),
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        out_cache_loc=torch.from_numpy(step.slots),
        positions=pad(positions, 0),
        extend_prefix_lens_cpu=None if decoding else firsts.tolist(),
        extend_seq_lens_cpu=None if decoding else counts.tolist(),
    )


class CheckedCopies(Simulation):
    def __init__(self, engine: Engine, worker: Worker) -> None:
        super().__init__(engine, worker.windows, worker.num_blocks)


def decode_step(book, copies, *arguments):
    """What serving/decode_book.py computes in a kernel of a GPU."""
    result = book.step(*arguments)
    # Decoding takes nothing from other blocks.
    assert not (result.donors >= 0).any() and not (result.recent_donors >= 0).any()
    copies.slots.copy_(result.slots)
    copies.blocks.copy_(result.blocks)


@pytest.mark.parametrize("num_blocks", [NUM_ROWS, 3])
@pytest.mark.parametrize("sizes", [(40, 90), (64, 256)])
def test_steps_say_what_is_true(sizes, num_blocks):
    seen = collections.Counter()
    for seed, num_pages in enumerate((14, 30)):
        workers = [make_worker(*sizes, num_blocks) for _ in range(2)]
        engine = Engine(seed, num_pages, workers)
        on_cpu = CpuSteps(workers[0], engine.table, num_pages + 1)
        on_gpu = CudaSteps(
            *(workers[1], engine.table, num_pages + 1, 2 * NUM_ROWS, CONTEXT * NUM_ROWS),
            decode_step,
        )
        simulation = CheckedCopies(engine, workers[0])
        for number in range(STEPS):
            whole = engine.step()
            for step in engine.batches(whole) if len(whole.slots) else ():
                counts = np.diff(step.starts)
                decoding = bool(
                    (counts == 1).all() and all(r.computed >= r.prompt for r in step.requests)
                )
                built = on_cpu.build(forward_batch(step, decoding=decoding))
                check_step(built, step)
                simulation.carry_out(built.copies, built.blocks, step)
                padding = number % 4 if decoding else 0
                padded = on_gpu.build(forward_batch(step, decoding=decoding, padding=padding))
                check_same(padded, built, padding)
                seen["decoding" if decoding else "prompts"] += 1
                seen["padded"] += padding > 0
                seen["donors"] += int((built.copies.donors >= 0).sum())
                seen["recent_donors"] += int((built.copies.recent_donors >= 0).sum())
            engine.finish(whole)
        for counts in (engine, simulation):
            seen.update({k: v for k, v in vars(counts).items() if k.startswith("num_")})
        seen["takes"] += on_gpu.notes.num_takes
        seen["without"] += workers[0].rows(NUM_ROWS + 1).num_without
    assert min(seen["num_hits"], seen["num_preempted"], seen["padded"]) > 30, seen
    assert min(seen["decoding"], seen["prompts"], seen["num_complete"]) > 100, seen
    # Few blocks change hands before anyone can take from them.
    least = 10 if num_blocks == NUM_ROWS else 1
    assert min(seen["takes"], seen["donors"], seen["recent_donors"]) > least, seen
    assert (seen["without"] > 0) == (num_blocks < NUM_ROWS), seen


def check_step(built, step: Step) -> None:
    counts = np.diff(step.starts)
    assert np.array_equal(built.starts, step.starts)
    assert np.array_equal(built.lengths, step.lengths)
    assert np.array_equal(built.slots, step.slots)
    first = step.lengths - counts
    expected = [f + i for f, c in zip(first, counts, strict=True) for i in range(c)]
    assert built.positions.tolist() == expected
    for i, length in enumerate(step.lengths):
        pages = -(-int(length) // PAGE_TOKENS)
        assert built.table[i, :pages].tolist() == step.table[i, :pages].tolist()
    blocks = built.blocks[built.blocks >= 0]
    assert len(set(blocks.tolist())) == len(blocks)


def check_same(padded, built, padding: int) -> None:
    """What a GPU's step says of its real requests is what a CPU's does; the rest is nothing."""
    count, tokens = len(built.lengths), int(built.starts[-1])
    assert padded.num_tokens == tokens + padding
    for name, size, got in (
        ("slots", tokens, padded.slots),
        ("positions", tokens, padded.positions),
        ("lengths", count, padded.seq_lens),
        ("blocks", count, padded.rows),
    ):
        assert got[:size].tolist() == getattr(built, name).tolist(), name
    width = built.table.shape[1]
    assert padded.block_table[:count, :width].tolist() == built.table.tolist()
    names = ("blocks", "exact_from", "sinks", "donors", "recent_donors")
    for name in names if padded.starts else ("blocks",):
        assert getattr(padded.copies, name)[:count].tolist() == getattr(built.copies, name).tolist()
    assert padded.copies.slots[:tokens].tolist() == built.copies.slots.tolist()
    for nothing in (padded.slots[tokens:], padded.copies.slots[tokens:], padded.rows[count:]):
        assert nothing.tolist() == [-1] * padding
    assert padded.copies.blocks[count:].tolist() == [-1] * padding
    assert padded.seq_lens[count:].tolist() == [1] * padding
    assert not padded.block_table[count:, :1].any()


def test_a_capture_writes_nothing_and_keeps_its_buffers():
    worker = make_worker(40, 90, NUM_ROWS)
    table = torch.zeros((NUM_ROWS + 1, CONTEXT), dtype=torch.int32)
    steps = CudaSteps(worker, table, 20, NUM_ROWS, CONTEXT, decode_step)
    empty = Step([], np.arange(1), np.zeros(0, np.int64), None, np.zeros(0, np.int64), np.zeros(0))
    captured = steps.build(forward_batch(empty, decoding=True, padding=4), for_capture=True)
    for nothing in (captured.slots, captured.copies.slots, captured.copies.blocks):
        assert nothing.tolist() == [-1] * 4
    table[3, :70] = torch.arange(5 * PAGE_TOKENS, 5 * PAGE_TOKENS + 70).int()
    prompt = Step(
        *([None], np.array([0, 70]), np.array([70]), None),
        *(np.arange(5 * PAGE_TOKENS, 5 * PAGE_TOKENS + 70), np.array([3])),
    )
    steps.build(forward_batch(prompt, decoding=False))
    table[3, 70] = 6 * PAGE_TOKENS + 6
    token = Step(
        *([None], np.array([0, 1]), np.array([71]), None),
        *(np.array([6 * PAGE_TOKENS + 6]), np.array([3])),
    )
    replayed = steps.build(forward_batch(token, decoding=True, padding=3))
    assert replayed.copies.blocks[0] >= 0
    assert replayed.copies.slots[0] >= 0
    for name in ("seq_lens", "block_table", "slots", "positions", "rows"):
        assert getattr(captured, name).data_ptr() == getattr(replayed, name).data_ptr()
    for name in ("slots", "blocks"):
        ours, theirs = (getattr(x.copies, name) for x in (captured, replayed))
        assert ours.data_ptr() == theirs.data_ptr()
