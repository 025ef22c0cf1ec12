"""The kernel of the book of copies against the book, in Triton's interpreter."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

CASE = """
import copy, sys
import numpy as np
import torch
from oscar_kv.serving import CopyBook, Copies
from oscar_kv.serving.decode_book import decode_step
from oscar_kv.serving.windows import Windows
from paged_engine import PagedEngine

num_kernel_steps = 0
for sizes in ((40, 90), (0, 30), (100, 0)):
    windows = Windows.of(*sizes)
    engine = PagedEngine(1, num_pages=20, num_rows=6)
    arguments = (6, windows.sink_tokens, windows.recent_tokens, windows.ring_tokens, 20)
    book, ours = CopyBook(*arguments), CopyBook(*arguments)
    for _ in range(150):
        step = engine.step()
        if not len(step.slots):
            continue
        rows = np.where(step.rows < 5, step.rows, -1)  # one request has no block
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in
                   (rows, step.starts, step.lengths, step.table, step.slots)]
        state = [x.clone() for x in vars(book).values() if isinstance(x, torch.Tensor)]
        expected = book.step(*tensors)
        taken = bool((torch.stack([expected.donors, expected.recent_donors]) >= 0).any())
        if (np.diff(step.starts) == 1).all() and not taken:
            # Padding, as engines add it: sequences without tokens, tokens without slots.
            padded = [torch.cat([x, x[-1:]]) for x in tensors]
            padded[0][-1], padded[4][-1] = -1, -1
            count = len(padded[0])
            got = Copies(torch.full((count,), 7), torch.full((count,), 7, dtype=torch.int32),
                         None, None, None, None)
            decode_step(ours, got, *padded)
            assert got.slots[:-1].tolist() == expected.slots.tolist() and got.slots[-1] == -1
            assert got.blocks[:-1].tolist() == expected.blocks.tolist() and got.blocks[-1] == -1
            num_kernel_steps += 1
        else:
            ours.step(*tensors)
        size = windows.rows_per_block
        for name, entries in (("_tags", 6 * size), ("_begin", 6), ("_end", 6), ("_sinks", 6),
                              ("_writer", 20)):
            a, b = (getattr(x, name)[:entries] for x in (book, ours))
            assert torch.equal(a, b), name
        engine.finish(step)
print(num_kernel_steps)
"""


def test_kernel_is_the_book():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    folder = os.path.dirname(__file__)
    environment["PYTHONPATH"] = os.pathsep.join([environment.get("PYTHONPATH", ""), folder])
    done = subprocess.run(
        [sys.executable, "-c", CASE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 20
