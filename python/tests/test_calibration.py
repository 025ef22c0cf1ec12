import numpy as np
import oscar_kv
import pytest
from conftest import collect, inv_freq, make_rows


def turn(rows, positions, pairs):
    """RoPE of half-split channels, in float64."""
    angles = positions[:, None, None] * inv_freq().astype(np.float64)
    a, b = rows[..., :pairs].astype(np.float64), rows[..., pairs:].astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def test_statistics_are_those_of_the_rows():
    head = collect().head(1, 1)
    queries = (make_rows(10, 700, 4) + np.linspace(0, 1, 64)).astype(np.float32)
    outputs = (make_rows(13, 700, 4) * np.linspace(0.1, 2, 64)).astype(np.float32)
    keys = (make_rows(11, 700, 2) + np.linspace(-1, 1, 64)).astype(np.float32)[:, 1]
    values = (make_rows(12, 700, 2) * np.linspace(0.1, 2, 64)).astype(np.float32)[:, 1]
    assert (head.num_queries, head.num_tokens) == (1400, 700)
    # Float products of 256 rows at a time: 256 · 2^-24 of Σ|q q|, which is at most a few.
    for rows, covariance in ((queries, head.query_covariance), (outputs, head.output_covariance)):
        flat = rows[:, 2:].reshape(-1, 64).astype(np.float64)
        np.testing.assert_allclose(covariance, flat.T @ flat / 1400, atol=256 * 2**-24 * 10)
    np.testing.assert_allclose(head.key_mean, keys.mean(axis=0, dtype=np.float64), atol=1e-12)
    np.testing.assert_allclose(head.key_variance, keys.astype(np.float64).var(axis=0), atol=1e-9)
    np.testing.assert_allclose(head.value_mean, values.mean(axis=0, dtype=np.float64), atol=1e-12)


def test_mean_key_is_taken_before_rope():
    """Keys turned by RoPE give back the mean that they had before."""
    before = make_rows(1, 600, 2) + np.linspace(-2, 2, 64)
    positions = np.arange(600)
    collector = oscar_kv.Collector()
    collector.add(
        0,
        queries=make_rows(2, 600, 4),
        keys=turn(before, positions, 32),
        values=make_rows(3, 600, 2),
        outputs=make_rows(4, 600, 4),
        positions=positions,
        scale=0.125,
        rope=oscar_kv.Rope(inv_freq()),
    )
    mean = collector.head(0, 0).key_mean
    # Keys of a few rounded to float32, turned back: 2^-22 of them.
    np.testing.assert_allclose(mean, before[:, 0].mean(axis=0), atol=1e-5)
    artefact = collector.fit("oscar-plus")
    np.testing.assert_allclose(artefact.tensors["layers.0.k_mean"][0], mean, rtol=1e-6, atol=1e-6)


def test_oscar_transform_is_the_eigenbasis():
    """R = U·H·P: R holds C_Q's eigenvectors, mixed by columns; RᵀC_Q R has an even diagonal."""
    collector = collect()
    artefact = collector.fit("oscar")
    for head in range(2):
        covariance = collector.head(0, head).query_covariance
        rotation = artefact.tensors["layers.0.k_transform"][head].astype(np.float64)
        spectrum = artefact.tensors["layers.0.k_spectrum"][head]
        diagonal = np.diag(rotation.T @ covariance @ rotation)
        np.testing.assert_allclose(diagonal, np.trace(covariance) / 64, rtol=1e-4)
        np.testing.assert_allclose(
            spectrum, np.linalg.eigvalsh(covariance)[::-1], rtol=1e-5, atol=1e-5
        )


def test_threads_and_cuts_do_not_matter():
    one, two = (collect().fit("oscar-plus", num_threads=threads) for threads in (1, 2))
    for name, tensor in one.tensors.items():
        np.testing.assert_array_equal(tensor, two.tensors[name])


def test_fitted_artefact_serves(artefact, tmp_path):
    path = tmp_path / "a.safetensors"
    artefact.save(path)
    method = oscar_kv.Method(f"{path}:k4v4")
    assert (method.name, method.k_bits, method.bits_per_value) == ("oscar-plus", 4, 4.25)
    assert method.model == artefact.model


def test_refusals():
    collector = collect()
    with pytest.raises(oscar_kv.InvalidArgumentError, match="needs no calibration"):
        collector.fit("quarot")
    with pytest.raises(oscar_kv.InvalidArgumentError, match="'best' is unknown"):
        collector.fit("best")
    with pytest.raises(oscar_kv.CorruptError, match="no layer"):
        oscar_kv.Collector().fit()
    with pytest.raises(oscar_kv.NotFoundError, match="layer 5"):
        collector.head(5, 0)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="pairing is 'other'"):
        oscar_kv.Rope(inv_freq(), "other")
    with pytest.raises(oscar_kv.InvalidArgumentError, match="num_q_heads is 3"):
        collector.add(
            0,
            queries=np.zeros((1, 3, 64)),
            keys=np.zeros((1, 2, 64)),
            values=np.zeros((1, 2, 64)),
            outputs=np.zeros((1, 3, 64)),
            positions=[0],
            scale=1.0,
        )


def test_rows_that_are_not_finite_are_counted():
    collector = oscar_kv.Collector()
    keys = make_rows(1, 2, 2)
    keys[0, 0, 3] = np.nan
    rows = {"values": make_rows(2, 2, 2), "positions": [0, 1], "scale": 1.0}
    collector.add(0, queries=make_rows(3, 2, 4), keys=keys, outputs=make_rows(4, 2, 4), **rows)
    assert collector.num_non_finite == 1
    assert collector.head(0, 0).num_tokens == 1
