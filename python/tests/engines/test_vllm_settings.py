"""Settings, versions and refusals of the vLLM plugin, without vLLM."""

import logging
import sys
import types

import oscar_kv
import pytest
from oscar_kv.vllm import plugin, refusals, settings, versions


def test_settings_come_from_the_environment_and_the_configuration_wins():
    environment = {"OSCAR_KV": "quarot:k3v2", "OSCAR_STRICT": "1", "OSCAR_COPY_BLOCKS": "4"}
    assert settings.read({}, environment) == settings.Settings("quarot:k3v2", True, 4)
    given = settings.read({"oscar": {"kv": "quarot", "strict": False}}, environment)
    assert given == settings.Settings("quarot", False, 4)
    assert settings.read({"other": 1}, {}) == settings.Settings()
    assert settings.Settings().recompute
    assert not settings.read({}, {"OSCAR_RECOMPUTE": "0"}).recompute
    assert settings.read({"oscar": {"recompute": True}}, {"OSCAR_RECOMPUTE": "0"}).recompute
    assert settings.Settings().mean_pairs is None
    assert settings.read({}, {"OSCAR_MEAN_PAIRS": "16"}).mean_pairs == 16


@pytest.mark.parametrize(
    ("config", "environment", "message"),
    [
        ({"oscar": 3}, {}, "right: an object"),
        ({"oscar": {"kw": "x"}}, {}, "has 'kw'; known: kv, strict, copy_blocks"),
        ({"oscar": {"kv": 3}}, {}, "kv is 3"),
        ({"oscar": {"strict": "yes"}}, {}, "strict is 'yes'"),
        ({"oscar": {"copy_blocks": 0}}, {}, "copy_blocks is 0"),
        ({}, {"OSCAR_STRICT": "yes"}, "OSCAR_STRICT is 'yes'"),
        ({"oscar": {"recompute": 1}}, {}, "recompute is 1"),
        ({}, {"OSCAR_RECOMPUTE": "2"}, "OSCAR_RECOMPUTE is '2'"),
        ({}, {"OSCAR_COPY_BLOCKS": "many"}, "OSCAR_COPY_BLOCKS is 'many'"),
        ({"oscar": {"mean_pairs": True}}, {}, "mean_pairs is True"),
        ({}, {"OSCAR_MEAN_PAIRS": "0"}, "mean_pairs is 0"),
        ({}, {"OSCAR_MEAN_PAIRS": "few"}, "OSCAR_MEAN_PAIRS is 'few'"),
    ],
)
def test_bad_settings_are_named(config, environment, message):
    with pytest.raises(oscar_kv.InvalidArgumentError, match=message):
        settings.read(config, environment)


def test_untested_versions_are_refused_unless_asked_for(monkeypatch):
    monkeypatch.delenv(versions.ALLOW, raising=False)
    versions.check("0.32.0")
    versions.check("0.25.1+cu130")
    for version in ("0.24.0", "0.34.0", "1.0", "dev"):
        with pytest.raises(oscar_kv.UnsupportedError, match=versions.ALLOW):
            versions.check(version)
    monkeypatch.setenv(versions.ALLOW, "1")
    versions.check("0.34.0")


def test_import_without_vllm_is_a_warning(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # also where it is installed
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert "OSCAR is not available" in caplog.text


def engine(**changes):
    """A VllmConfig as far as the checks look at it."""
    groups = {
        "model_config": {"use_mla": False, "is_encoder_decoder": False, "is_hybrid": False},
        "cache_config": {"cache_dtype": "auto", "kv_cache_dtype_skip_layers": []},
        "parallel_config": {"decode_context_parallel_size": 1, "enable_dbo": False},
    }
    config = types.SimpleNamespace(kv_transfer_config=None, speculative_config=None)
    for name, values in groups.items():
        setattr(config, name, types.SimpleNamespace(**values))
    for path, value in changes.items():
        group, _, name = path.rpartition("__")
        setattr(getattr(config, group) if group else config, name, value)
    return config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_config__use_mla": True}, "MLA"),
        ({"model_config__is_encoder_decoder": True}, "cross attention"),
        ({"model_config__is_hybrid": True}, "layers other than attention"),
        ({"cache_config__cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
        ({"cache_config__kv_cache_dtype_skip_layers": ["0"]}, "skip-layers"),
        ({"cache_config__kv_offloading_size": 4.0}, "offloading"),
        ({"kv_transfer_config": types.SimpleNamespace(kv_connector="Nixl")}, "connector Nixl"),
        ({"speculative_config": object()}, "speculative"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode context"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill context"),
        ({"parallel_config__enable_dbo": True}, "micro-batches"),
    ],
)
def test_engines_that_are_not_served(changes, message):
    refusals.check_engine(engine())
    with pytest.raises(oscar_kv.UnsupportedError, match=message):
        refusals.check_engine(engine(**changes))


PLAIN_LAYER = {
    "head_size": 128,
    "head_sizes": (64, 128),
    "attn_type": "decoder",
    "alibi_slopes": None,
    "sliding_window": None,
    "logits_soft_cap": None,
    "kv_sharing_target_layer_name": None,
    "others": {},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_size": 96}, "head size 96; supported: 64, 128"),
        ({"attn_type": "encoder_decoder"}, "cross attention"),
        ({"alibi_slopes": [1.0]}, "ALiBi"),
        ({"sliding_window": 512}, "sliding window of 512"),
        ({"logits_soft_cap": 30.0}, "soft cap of 30"),
        ({"kv_sharing_target_layer_name": "x"}, "shared with x"),
        ({"others": {"sinks": 1}}, "sinks"),
    ],
)
def test_layers_that_are_not_served(changes, message):
    refusals.check_layer(**PLAIN_LAYER)
    with pytest.raises(oscar_kv.UnsupportedError, match=message):
        refusals.check_layer(**(PLAIN_LAYER | changes))
