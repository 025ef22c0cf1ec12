import json

import numpy as np
import oscar_kv
import pytest
from conftest import SHAPE, collect, inv_freq


def test_saved_and_loaded_is_the_same(artefact, tmp_path):
    path = tmp_path / "a.safetensors"
    artefact.save(path)
    loaded = oscar_kv.Artefact.load(path)
    assert loaded.metadata == artefact.metadata
    assert loaded.tensors.keys() == artefact.tensors.keys()
    for name, tensor in artefact.tensors.items():
        np.testing.assert_array_equal(tensor, loaded.tensors[name])
    assert loaded.method == "oscar-plus"
    assert loaded.model == SHAPE
    assert loaded.architecture == "llama"
    assert loaded.layers == [0, 1]
    np.testing.assert_array_equal(loaded.ropes[0].inv_freq, inv_freq())


def test_rebuilt_from_its_parts_has_the_same_bytes(artefact, tmp_path):
    artefact.save(tmp_path / "a.safetensors")
    oscar_kv.Artefact(artefact.tensors, artefact.metadata).save(tmp_path / "b.safetensors")
    first, second = (tmp_path / f"{name}.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_info_is_added(artefact):
    changed = artefact.with_info({"who": "a test, ümlaut"})
    assert changed.info["who"] == "a test, ümlaut"
    assert changed.info.keys() > artefact.info.keys()


def test_model_is_checked(artefact):
    artefact.check_model("llama", SHAPE, "abc")
    artefact.check_model("llama", SHAPE)
    other = oscar_kv.ModelShape(2, 4, 4, 64, 64)
    with pytest.raises(oscar_kv.MismatchError, match="num_kv_heads 2, this model has 4"):
        artefact.check_model("llama", other)
    with pytest.raises(oscar_kv.MismatchError, match="architecture"):
        artefact.check_model("qwen2", SHAPE)
    with pytest.raises(oscar_kv.MismatchError, match="weights_hash"):
        artefact.check_model("llama", SHAPE, "abd")


def test_bad_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(oscar_kv.NotFoundError, match="missing.safetensors"):
        oscar_kv.Artefact.load(tmp_path / "missing.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a file of ours")
    with pytest.raises(oscar_kv.OscarError, match="broken") as refusal:
        oscar_kv.Artefact.load(broken)
    assert "\n" not in str(refusal.value)


def test_bad_parts_are_refused(artefact):
    tensors = dict(artefact.tensors)
    tensors["layers.0.k_transform"] = tensors["layers.0.k_transform"] * 2
    with pytest.raises(oscar_kv.CorruptError, match="layer 0 head 0"):
        oscar_kv.Artefact(tensors, artefact.metadata)
    del tensors["layers.0.k_transform"]
    with pytest.raises(oscar_kv.CorruptError, match="layers.0.k_transform"):
        oscar_kv.Artefact(tensors, artefact.metadata)


def test_pairing_goes_there_and_back(artefact):
    interleaved = artefact.with_pairing("interleaved")
    assert interleaved.ropes[0].pairing == "interleaved"
    assert interleaved.weights_hash == ""
    back = interleaved.with_pairing("half_split")
    for name, tensor in artefact.tensors.items():
        np.testing.assert_array_equal(tensor, back.tensors[name])


def test_pairing_keeps_what_a_key_becomes(artefact, tmp_path):
    """The same keys, in the other order of channels, have the same bytes."""
    artefact.save(tmp_path / "half.safetensors")
    artefact.with_pairing("interleaved").save(tmp_path / "inter.safetensors")
    keys = np.random.default_rng(3).standard_normal((100, 2, 64), np.float32)
    other = np.empty_like(keys)
    other[..., 0::2], other[..., 1::2] = keys[..., :32], keys[..., 32:]
    positions = np.arange(100)
    half, inter = (
        oscar_kv.Method(tmp_path / f"{name}.safetensors").codec(1) for name in ("half", "inter")
    )
    decoded = half.decode_keys(half.encode_keys(keys, positions), positions)
    again = inter.decode_keys(inter.encode_keys(other, positions), positions)
    # Sums of 64 products in another order: a code may land on the other side of a border, which
    # moves one channel by a step; 64 · 2^-24 of the values lie so near to one.
    close = np.isclose(again[..., 0::2], decoded[..., :32], atol=1e-4)
    assert close.mean() > 0.999


def test_static_mean_has_no_pairing():
    with pytest.raises(oscar_kv.InvalidArgumentError, match="no known RoPE"):
        collect().fit("oscar-plus").with_pairing("interleaved")


def test_metadata_is_that_of_the_format(artefact):
    assert artefact.metadata["format"] == "oscar-artefact"
    assert json.loads(artefact.metadata["model"])["num_layers"] == 2
