import numpy as np
import oscar_kv
import pytest
import torch
from oscar_kv.transformers import absorb_value_rotation, calibrate, describe
from oscar_kv.transformers.calibration import collect, share_tokens
from oscar_kv.transformers.rope import layer_ropes
from support import VOCABULARY, tiny, tokens


def test_rope_is_recognised_whatever_the_model():
    for kind, bases in (("llama", [1e4, 1e4]), ("qwen3", [1e4, 1e4]), ("gemma3", [1e4, 1e6])):
        for layer, rope in layer_ropes(tiny(kind)).items():
            assert rope.pairing == "half_split"
            expected = bases[layer] ** (-np.arange(32) / 32)
            np.testing.assert_allclose(rope.inv_freq, expected, rtol=1e-4)


def test_statistics_are_those_of_the_model():
    """Against the modules of the model: keys and values of layer 0 come from embeddings."""
    model, ids = tiny(), tokens(600)[0]
    collector, warnings = collect(model, ids.tolist())
    assert warnings == []
    layer = model.model.layers[0]
    with torch.inference_mode():
        hidden = layer.input_layernorm(model.model.embed_tokens(ids))
        keys = layer.self_attn.k_proj(hidden).view(600, 2, 64).double().numpy()
        values = layer.self_attn.v_proj(hidden).view(600, 2, 64).double().numpy()
    for head in range(2):
        seen = collector.head(0, head)
        # Float32 rotations there and back: a few 2^-23 of values of order 3.
        np.testing.assert_allclose(seen.key_mean, keys[:, head].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(seen.value_mean, values[:, head].mean(axis=0), atol=1e-5)
        assert seen.num_queries == 1200


def test_outputs_and_windows_are_those_of_the_model():
    """Capturing does not change the model: same logits as its own attention, sliding layers too."""
    from oscar_kv.transformers.capture import capturing

    for kind in ("llama", "gemma3"):
        model, ids = tiny(kind), tokens(300)
        seen: list[int] = []
        with torch.inference_mode():
            own = model(ids).logits
            with capturing(model, lambda layer, *_, seen=seen: seen.append(layer)):
                ours = model(ids, use_cache=False).logits
        assert seen == [0, 1]
        assert (own - ours).abs().max() < 1e-4
        assert model.config._attn_implementation == "sdpa"


def test_calibrated_artefact_serves_its_model(tmp_path):
    model = tiny()
    artefact, _ = calibrate(model, tokens(1024)[0].tolist())
    described = describe(model)
    assert artefact.model == described.shape
    assert artefact.architecture == "llama"
    assert artefact.weights_hash == described.weights_hash
    assert artefact.info["tokens_used"] == "1024"
    assert described.weights_hash == describe(tiny().bfloat16()).weights_hash
    assert described.weights_hash != describe(tiny(seed=2)).weights_hash


def test_absorbed_rotation_keeps_the_model_and_the_codes(tmp_path):
    model, ids = tiny(), tokens(1024)
    artefact, _ = calibrate(model, ids[0].tolist(), method="oscar")
    with torch.inference_mode():
        before = model(ids[:, :200]).logits
        values = model.model.layers[1].self_attn.v_proj(torch.ones(1, 1, 64))
    absorbed = absorb_value_rotation(model, artefact)
    with torch.inference_mode():
        after = model(ids[:, :200]).logits
        rotated = model.model.layers[1].self_attn.v_proj(torch.ones(1, 1, 64))
    # Weights rounded once more to float32, sums of up to 256 products: 2^-24·√256 of logits of 10.
    assert (before - after).abs().max() < 1e-3
    paths = [tmp_path / name for name in ("plain", "absorbed")]
    artefact.save(paths[0])
    absorbed.save(paths[1])
    plain, turned = (oscar_kv.Method(path).codec(1) for path in paths)
    codes = [
        codec.encode_values(rows.view(1, 2, 64).numpy())
        for codec, rows in ((plain, values), (turned, rotated))
    ]
    assert (codes[0] == codes[1]).mean() > 0.9  # up to codes on a border
    with pytest.raises(oscar_kv.UnsupportedError, match="absorbed into this model already"):
        absorb_value_rotation(model, artefact)
    from oscar_kv.transformers import OscarCache

    with torch.inference_mode():
        exact = OscarCache(model, f"{paths[1]}:k16v16")
        served = model(ids[:, :200], past_key_values=exact).logits
    assert (served - before).abs().max() < 0.2


def test_absorbing_refuses_weights_that_would_round():
    model = tiny().bfloat16()
    artefact, _ = calibrate(tiny(), tokens(600)[0].tolist(), method="oscar")
    weight = model.model.layers[0].self_attn.o_proj.weight.clone()
    with pytest.raises(oscar_kv.UnsupportedError, match="plain float32"):
        absorb_value_rotation(model, artefact)
    assert torch.equal(weight, model.model.layers[0].self_attn.o_proj.weight)
    with pytest.raises(oscar_kv.MismatchError, match="weights_hash"):
        absorb_value_rotation(tiny(seed=2), artefact)


def test_models_without_ordinary_attention_are_refused():
    model = tiny()
    with pytest.raises(oscar_kv.InvalidArgumentError, match="3 tokens; calibration needs"):
        calibrate(model, [1, 2, 3])
    with pytest.raises(oscar_kv.InvalidArgumentError, match="'best'"):
        calibrate(model, tokens(600)[0].tolist(), method="best")
    model.config.kv_lora_rank = 16
    with pytest.raises(oscar_kv.UnsupportedError, match="latent attention"):
        describe(model)
    model = tiny()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(oscar_kv.UnsupportedError, match="layer 1 is linear_attention"):
        describe(model)


def test_broken_weights_are_refused():
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[0] = torch.inf
    with pytest.raises(oscar_kv.CorruptError, match="NaN or Inf"):
        calibrate(model, tokens(600)[0].tolist())


def test_texts_share_the_tokens():
    assert share_tokens([100, 100], 80) == [40, 40]
    assert share_tokens([10, 100], 80) == [10, 70]
    assert share_tokens([5, 5], 80) == [5, 5]
    assert VOCABULARY == 200
