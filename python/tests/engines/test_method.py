"""Opening a served model's method, for all ranks of an engine."""

import ast
import dataclasses
import pathlib

import numpy as np
import oscar_kv
import pytest
import torch
from conftest import SHAPE, make_rows
from oscar_kv.serving import open_method
from oscar_kv.serving.method import DATA_FREE, heads_of_rank, slice_artefact, split_kv
from oscar_kv.serving.selftest import check_cpu_layer


@pytest.fixture(scope="module")
def saved(artefact, tmp_path_factory):
    path = tmp_path_factory.mktemp("artefacts") / "tiny.oscar.safetensors"
    artefact.save(path)
    return str(path)


def test_heads_of_ranks():
    assert [heads_of_rank(8, rank, 4) for rank in range(4)] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 6),
        slice(6, 8),
    ]
    # Fewer heads than ranks: replicated.
    assert [heads_of_rank(2, rank, 4) for rank in (0, 1, 2, 3)] == [
        slice(0, 1),
        slice(0, 1),
        slice(1, 2),
        slice(1, 2),
    ]
    with pytest.raises(oscar_kv.UnsupportedError, match="tensor parallel size is 3 for 8 KV heads"):
        heads_of_rank(8, 0, 3)


def test_kv_is_a_file_or_a_method(saved):
    assert split_kv(saved) == (saved, "")
    assert split_kv(f"{saved}:k3v2,sink=0") == (saved, "k3v2,sink=0")
    assert split_kv("quarot") == (None, "")
    assert split_kv("quarot:k3v2") == (None, "k3v2")
    for missing in ("/nowhere/a.safetensors", "a.safetensors:k3v2"):
        with pytest.raises(oscar_kv.NotFoundError, match=r"a.safetensors: no such file"):
            split_kv(missing)


def test_no_artefact_is_a_warning_or_a_refusal():
    served = open_method(None, "llama", SHAPE)
    assert served.method.name == DATA_FREE
    assert "15 to 800 times" in served.warnings[0]
    assert served.token_head_bytes == 40  # two planes of 16 bytes of codes, a scale and a zero
    with pytest.raises(oscar_kv.NotFoundError, match="strict"):
        open_method("", "llama", SHAPE, strict=True)
    assert open_method("quarot", "llama", SHAPE, strict=True).warnings == ()


def test_artefacts_of_other_models_are_refused(saved):
    served = open_method(saved, "llama", SHAPE, weights_hash="abc", rope_pairing="half_split")
    assert served.warnings == ()
    assert served.token_head_bytes == 36
    with pytest.raises(oscar_kv.MismatchError):
        open_method(saved, "llama", SHAPE, weights_hash="other")
    with pytest.raises(oscar_kv.MismatchError):
        open_method(saved, "qwen3", SHAPE)
    with pytest.raises(oscar_kv.MismatchError):
        open_method(saved, "llama", dataclasses.replace(SHAPE, num_layers=3))
    unknown = open_method(saved, "llama", SHAPE)
    assert "whether the weights are is not known" in unknown.warnings[0]
    with pytest.raises(oscar_kv.MismatchError, match="convert --pairing interleaved"):
        open_method(saved, "llama", SHAPE, rope_pairing="interleaved")


def test_ranks_code_their_heads_as_one_rank_would(saved, artefact):
    """Bytes of a rank's heads are those of the same heads in the whole model."""
    keys, positions = make_rows(1, 70, 2), np.arange(70, dtype=np.int32)
    whole = open_method(saved, "llama", SHAPE, weights_hash="abc").codec(1, 100)
    whole_bytes = whole.encode_keys(keys, positions).reshape(70, 2, -1)
    for rank in range(2):
        part = open_method(saved, "llama", SHAPE, weights_hash="abc", rank=rank, ranks=2)
        assert (part.shape.num_kv_heads, part.shape.num_q_heads) == (1, 2)
        coded = part.codec(1, 100).encode_keys(keys[:, rank : rank + 1], positions)
        np.testing.assert_array_equal(coded, whole_bytes[:, rank])
    half = slice_artefact(artefact, slice(1, 2), 2)
    assert half.model.num_kv_heads == 1
    with pytest.raises(oscar_kv.UnsupportedError, match="for 2 KV heads"):
        open_method(saved, "llama", SHAPE, ranks=3)


@pytest.mark.parametrize("kv", ["quarot", "quarot:k3v2", "naive:k16v16", "artefact"])
def test_self_test_passes(kv, saved):
    served = open_method(saved if kv == "artefact" else kv, "llama", SHAPE, weights_hash="abc")
    assert check_cpu_layer(served) < 0.01


def test_self_test_notices(monkeypatch):
    served = open_method("quarot", "llama", SHAPE)
    attend = oscar_kv.Codec.attend_pages

    def wrong(self, *arguments, **keywords):
        out, lse = attend(self, *arguments, **keywords)
        return out * 1.05, lse

    monkeypatch.setattr(oscar_kv.Codec, "attend_pages", wrong)
    with pytest.raises(oscar_kv.InternalError, match="self-test of quarot"):
        check_cpu_layer(served)


def test_sides_are_what_the_codec_does(saved):
    """Rows · transform and queries · attend_transform keep their products."""
    codec = open_method(saved, "llama", SHAPE, weights_hash="abc").codec(1, 100)
    key, value = codec.key_side(), codec.value_side()
    assert (key.bits, key.group_size, key.has_zero_points, key.scale_fit) == (2, 64, False, 1)
    assert key.rope.pairing == "half_split"
    assert key.mean.shape == (2, 64)
    both = np.einsum("hij,hkj->hik", key.transform, key.attend_transform)
    np.testing.assert_allclose(both, np.broadcast_to(np.eye(64), both.shape), atol=1e-5)
    both = np.einsum("hij,hjk->hik", value.transform, value.attend_transform)
    np.testing.assert_allclose(both, np.broadcast_to(np.eye(64), both.shape), atol=1e-5)
    assert ((key.clip_ratio > 0.5) & (key.clip_ratio <= 1)).all()
    exact = open_method("naive:k16v16", "llama", SHAPE).codec(0, 10).key_side()
    assert exact.bits == 16
    assert exact.transform is None
    assert exact.clip_ratio is None


def test_sides_say_what_their_codes_are(saved):
    plain = open_method(saved, "llama", SHAPE, weights_hash="abc").codec(0, 10)
    trellis = open_method(f"{saved}:trellis", "llama", SHAPE, weights_hash="abc").codec(0, 10)
    for side in (plain.key_side(), plain.value_side()):
        assert not side.is_trellis
    for side in (trellis.key_side(), trellis.value_side()):
        assert (side.bits, side.has_zero_points, side.is_trellis) == (2, False, True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_self_test_runs_while_a_model_of_any_type_is_loaded(dtype):
    torch.set_default_dtype(dtype)
    try:
        assert check_cpu_layer(open_method("quarot", "llama", oscar_kv.ModelShape(1, 4, 2, 64, 64)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_no_tensor_has_the_default_type():
    """It is the model's while an engine loads that, and layers are made and tested then."""
    folder, found = pathlib.Path(oscar_kv.__file__).parent, []
    for path in sorted(
        p for name in ("serving", "vllm", "sglang") for p in folder.glob(f"{name}/*.py")
    ):
        for call in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            if not is_call or ast.unparse(call.func.value) != "torch":
                continue
            if call.func.attr in ("empty", "zeros", "ones", "eye", "rand", "randn"):
                named = [keyword.arg for keyword in call.keywords]
                found.append((path.name, call.lineno, "dtype" in named))
    assert len(found) > 10
    assert all(has_type for _, _, has_type in found), found
