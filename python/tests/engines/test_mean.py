"""The keys' mean as GPUs take it: pairs, tables, coefficients."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import SHAPE
from oscar_kv.serving import open_method
from oscar_kv.serving.mean_pairs import common_pairs, limit_mean, pairs_of


def test_the_largest_pairs_are_kept(artefact):
    assert limit_mean(artefact, 32) == (artefact, 1.0)
    limited, kept = limit_mean(artefact, 5)
    assert 0 < kept < 1
    before, after = (x.tensors["layers.1.k_mean"] for x in (artefact, limited))
    held = np.flatnonzero((after[:, :32] ** 2 + after[:, 32:] ** 2).sum(0))
    energy = (before[:, :32] ** 2 + before[:, 32:] ** 2).sum(0)
    assert sorted(held) == sorted(np.argsort(energy)[-5:])
    np.testing.assert_array_equal(after[:, held], before[:, held])
    layer = energy[held].sum() / energy.sum()
    assert kept <= layer + 1e-6


def test_fewer_pairs_on_request_say_what_is_lost(artefact, tmp_path):
    path = str(tmp_path / "a.oscar.safetensors")
    artefact.save(path)
    given = {"weights_hash": "abc"}
    whole = open_method(path, "llama", SHAPE, most_mean_pairs=32, **given)
    few = open_method(path, "llama", SHAPE, most_mean_pairs=3, **given)
    assert whole.warnings == ()
    assert open_method(path, "llama", SHAPE, **given).warnings == ()
    assert "mean_pairs 3 keeps" in few.warnings[0]
    sides = [few.codec(layer, 10).key_side() for layer in range(2)]
    assert [len(pairs_of(side)) for side in sides] == [3, 3]
    assert common_pairs(sides) == 4  # an even number
    none = open_method("quarot", "llama", SHAPE).codec(0, 10).key_side()
    assert common_pairs([none]) == 0
    assert len(pairs_of(none)) == 0


CASE = """
import numpy as np, torch
from oscar_kv import Rope
from oscar_kv.codec import Side
from oscar_kv.serving.key_mean import KeyMean

random = np.random.default_rng(1)
for pairing, pairs, static in (("half_split", 32, False), ("interleaved", 32, False),
                               ("half_split", 16, False), ("half_split", 0, True)):
    mean = random.standard_normal((2, 64), np.float32)
    rope = None if static else Rope((1e4 ** (-np.arange(pairs) / pairs)).astype(np.float32),
                                    pairing, 1.1)
    side = Side(2, 64, False, 1, None, None, mean, None, rope)
    ours = KeyMean.of(side, 2, 64, max(pairs, 2) + 2, 200, "cpu")
    q = torch.from_numpy(random.standard_normal((3, 4, 64), np.float32))
    numbers = ours.coefficients(q)
    keys = torch.zeros(150, 2, 64)
    ours.add_to(keys, 30)
    for position in (30, 100, 179):
        truth = torch.einsum("tgrd,gd->tgr", q.view(3, 2, 2, 64), keys[position - 30]).reshape(3, 4)
        tile, start = ours.attend_tile[position % 64], ours.attend_start[position // 64]
        cos = tile[:, 0] * start[:, 0] - tile[:, 1] * start[:, 1]
        sin = tile[:, 1] * start[:, 0] + tile[:, 0] * start[:, 1]
        got = numbers[..., 0:-1:2] @ cos + numbers[..., 1:-1:2] @ sin + numbers[..., -1]
        torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-4)
    # The rows that encoding takes, turned by its own tables, are what was added.
    if pairs:
        tile, start = ours.tile[100 % 64], ours.start[100 // 64]
        assert tile.shape == (pairs, 2)
        angle = np.arctan2(*(tile[:, 1] * start[:, 0] + tile[:, 0] * start[:, 1],
                             tile[:, 0] * start[:, 0] - tile[:, 1] * start[:, 1]))
        wanted = (100 * rope.inv_freq.astype(np.float64) + np.pi) % (2 * np.pi) - np.pi
        assert np.abs(np.angle(np.exp(1j * (angle - wanted)))).max() < 1e-5
print("ok")
"""


def test_coefficients_are_the_product_with_the_turned_mean():
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CASE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "ok", done.stderr[-3000:]
