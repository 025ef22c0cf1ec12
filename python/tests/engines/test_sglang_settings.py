"""Settings, versions, refusals, registration and hooks of the SGLang plugin, without SGLang."""

import inspect
import logging
import sys
import types

import oscar_kv
import pytest
import torch
from oscar_kv.sglang import hooks, plugin, refusals, settings, versions
from oscar_kv.sglang.worker import DEFAULT_BLOCKS, Worker, current_worker, find_worker, set_worker


def test_settings_come_from_the_environment():
    given = {"OSCAR_KV": "quarot:k3v2", "OSCAR_STRICT": "1", "OSCAR_COPY_BLOCKS": "4"}
    assert settings.read(given) == settings.Settings("quarot:k3v2", True, 4)
    assert settings.read({}) == settings.Settings()
    assert settings.read({"OSCAR_MEAN_PAIRS": "16"}).mean_pairs == 16


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("OSCAR_STRICT", "yes"), ("OSCAR_COPY_BLOCKS", "many"), ("OSCAR_COPY_BLOCKS", "0")),
        *(("OSCAR_COPY_BLOCKS", "-1"), ("OSCAR_MEAN_PAIRS", "0"), ("OSCAR_MEAN_PAIRS", "few")),
    ],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(oscar_kv.InvalidArgumentError, match=f"{name} is '{value}'; right"):
        settings.read({name: value})


def test_unchecked_versions_are_refused_unless_asked_for(monkeypatch):
    monkeypatch.delenv(versions.ALLOW, raising=False)
    for version in ("0.5.23", "0.5.23.post1", "0.5.23+cu130"):
        versions.check(version)
    for version in ("0.5.22", "0.5.24", "0.6.0", "dev"):
        with pytest.raises(oscar_kv.UnsupportedError, match=versions.ALLOW):
            versions.check(version)
    monkeypatch.setenv(versions.ALLOW, "1")
    versions.check("0.5.24")


def options(**changes):
    """Resolved ServerArgs as far as the checks look at them."""
    disabled, full = (types.SimpleNamespace(backend=x, bs=[1, 2]) for x in ("disabled", "full"))
    plain = {name: served for name, served, _ in refusals.UNTESTED} | {
        "attention_backend": "oscar",
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "kv_cache_dtype": "auto",
        "page_size": 64,
        "cuda_graph_config": types.SimpleNamespace(prefill=disabled, decode=full),
    }
    return types.SimpleNamespace(**(plain | changes))


def graphs(prefill: str, decode: str):
    return types.SimpleNamespace(
        prefill=types.SimpleNamespace(backend=prefill), decode=types.SimpleNamespace(backend=decode)
    )


@pytest.mark.parametrize("name", [name for name, _, _ in refusals.UNTESTED])
def test_untested_options_are_refused_by_name(name):
    refusals.check_options(options())
    other = 2 if isinstance(getattr(options(), name), int) else "something"
    with pytest.raises(oscar_kv.UnsupportedError, match="--" + name.replace("_", "-")):
        refusals.check_options(options(**{name: other}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 1}, "--page-size 1 .right: 64"),
        ({"page_size": 128}, "--page-size 128"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        ({"prefill_attention_backend": "fa3"}, "--prefill-attention-backend fa3"),
        ({"cuda_graph_config": graphs("breakable", "full")}, "--disable-prefill-cuda-graph"),
        ({"cuda_graph_config": graphs("disabled", "breakable")}, "breakable CUDA graphs"),
        ({"pp_size": 2, "page_size": 1}, "pipeline.*; --page-size"),
    ],
)
def test_options_that_do_not_fit(changes, message):
    with pytest.raises(oscar_kv.UnsupportedError, match=message):
        refusals.check_options(options(**changes))


def configurator(**changes):
    plain = {
        "model_config": types.SimpleNamespace(is_encoder_decoder=False),
        "device": "cuda",
        "use_mla_backend": False,
        "is_hybrid_swa": False,
        "mambaish_config": None,
        "is_draft_worker": False,
        "post_capture_kv_active": False,
    }
    return types.SimpleNamespace(**(plain | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "xpu"}, "device xpu"),
        ({"use_mla_backend": True}, "MLA"),
        ({"is_hybrid_swa": True}, "sliding windows"),
        ({"mambaish_config": object()}, "layers other than attention"),
        ({"model_config": types.SimpleNamespace(is_encoder_decoder=True)}, "cross attention"),
        ({"is_draft_worker": True}, "draft"),
        ({"post_capture_kv_active": True}, "POST_CAPTURE"),
    ],
)
def test_models_that_are_not_served(changes, message):
    refusals.check_model(configurator(), hip=False)
    with pytest.raises(oscar_kv.UnsupportedError, match=message):
        refusals.check_model(configurator(**changes), hip=False)
    with pytest.raises(oscar_kv.UnsupportedError, match="rocm"):
        refusals.check_model(configurator(), hip=True)


def layer(**changes):
    plain = {
        "layer_id": 3,
        "qk_head_dim": 128,
        "v_head_dim": 128,
        "attn_type": types.SimpleNamespace(value="decoder"),
        "is_cross_attention": False,
        "sliding_window_size": -1,
        "logit_cap": 0.0,
        "use_irope": False,
        "xai_temperature_len": -1,
        "pos_encoding_mode": "NONE",
        "k_scale_float": None,
        "v_scale_float": 1.0,
    }
    return types.SimpleNamespace(**(plain | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_head_dim": 96, "v_head_dim": 96}, "layer 3: head size 96; supported: 64, 128"),
        ({"v_head_dim": 64}, "head size 64 and 128"),
        ({"is_cross_attention": True}, "cross attention"),
        ({"attn_type": types.SimpleNamespace(value="encoder_only")}, "encoder_only"),
        ({"sliding_window_size": 512}, "sliding window of 512"),
        ({"logit_cap": 30.0}, "soft cap of 30"),
        ({"use_irope": True}, "temperature"),
        ({"xai_temperature_len": 1024}, "temperature"),
        ({"pos_encoding_mode": "ALIBI"}, "ALIBI"),
        ({"k_scale_float": 0.5}, "scales"),
    ],
)
def test_layers_that_are_not_served(changes, message):
    refusals.check_layer(layer(), (64, 128))
    with pytest.raises(oscar_kv.UnsupportedError, match=message):
        refusals.check_layer(layer(**changes), (64, 128))


def test_calls_that_are_not_served():
    refusals.check_call(has_rows=True, save_kv_cache=True, others={"sinks": None})
    for changes, message in (
        ({"has_rows": False}, "another layer's"),
        ({"save_kv_cache": False}, "another kernel stores"),
        ({"others": {"sinks": 1}}, "sinks"),
    ):
        plain = {"has_rows": True, "save_kv_cache": True, "others": {}}
        with pytest.raises(oscar_kv.UnsupportedError, match=message):
            refusals.check_call(**(plain | changes))


def test_types_of_keys_and_values():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    refusals.check_type(torch.bfloat16, cuda)
    refusals.check_type(torch.float32, cpu)
    for dtype, device in ((torch.float16, cuda), (torch.float8_e4m3fn, cpu)):
        with pytest.raises(oscar_kv.UnsupportedError, match=str(dtype).removeprefix("torch.")):
            refusals.check_type(dtype, device)


def make_worker(kv: str = "quarot", **changes) -> Worker:
    plain = {
        "chosen": settings.Settings(kv),
        "device": "cpu",
        "shape": oscar_kv.ModelShape(2, 4, 2, 64, 64),
        "architecture": "llama",
        "weights_hash": "",
        "layers": range(2),
        "context_tokens": 512,
        "max_requests": 3,
    }
    return Worker(**(plain | changes))


def test_without_an_artefact_there_is_a_warning_or_a_refusal(caplog):
    with caplog.at_level(logging.WARNING):
        make_worker("")
    assert "data-free Hadamard" in caplog.text
    assert "15 to 800 times" in caplog.text
    with pytest.raises(oscar_kv.NotFoundError, match="strict is set"):
        make_worker(chosen=settings.Settings("", strict=True))
    with pytest.raises(oscar_kv.NotFoundError, match="no such file"):
        make_worker("missing.safetensors")
    with pytest.raises(oscar_kv.UnsupportedError, match="tensor parallel size is 3"):
        make_worker(ranks=3)


def test_as_many_blocks_as_requests(caplog):
    assert make_worker().num_blocks == 3
    assert make_worker(chosen=settings.Settings("quarot", copy_blocks=2)).num_blocks == 2
    assert make_worker(chosen=settings.Settings("quarot", copy_blocks=8)).num_blocks == 3
    with caplog.at_level(logging.WARNING):
        assert make_worker(max_requests=None).num_blocks == DEFAULT_BLOCKS
    assert "--max-running-requests is not given" in caplog.text


def test_a_token_takes_its_true_bytes():
    worker = make_worker()
    # 64 channels of 2 bits, a scale and a zero point of 16 bits a group, keys and values, 2 heads.
    assert worker.served.token_head_bytes == 2 * (64 * 2 // 8 + 4)
    assert worker.bytes_per_token(2) == 2 * 2 * 40
    assert worker.page_bytes == 64 * 2 * 40
    with pytest.raises(oscar_kv.InternalError, match="sizes its pool for 3 layers"):
        worker.bytes_per_token(3)


# ---- hooks ----


@pytest.fixture
def worker():
    set_worker(make_worker())
    yield current_worker()
    set_worker(None)


def original(*arguments, **keywords):
    return arguments, keywords


def test_other_backends_are_left_alone():
    view = options(attention_backend="fa3", page_size=None)
    assert not hooks.chosen(view)
    assert hooks.page_size_default(original, view) == ((view,), {})
    assert find_worker() is None
    assert hooks.cell_size(original, 1, 2, 3) == ((1, 2, 3), {})
    assert hooks.build_pool(original, 1, mha_pool_class=2) == ((1,), {"mha_pool_class": 2})
    assert hooks.most_prefix(lambda request, length: length - 1, None, 700) == 699
    hooks.free_rows(None, None, [1])
    hooks.clear_rows(None, None)
    with pytest.raises(oscar_kv.UnsupportedError, match="hooks did not run"):
        current_worker()


def test_the_page_size_is_ours_unless_the_user_says(worker):
    assert hooks.page_size_default(original, options(page_size=None)) == {"page_size": 64}
    view = options(page_size=16)
    assert hooks.page_size_default(original, view) == ((view,), {})
    mixed = options(attention_backend=None, decode_attention_backend="oscar", page_size=None)
    assert hooks.page_size_default(original, mixed) == {"page_size": 64}


def test_the_pool_is_sized_for_packed_pages(worker):
    assert not worker.sized
    assert hooks.cell_size(original, None, None, 2) == 160
    assert worker.sized


def test_the_last_tokens_of_a_prompt_are_computed(worker):
    def sglangs(request, length):
        return length - 1

    assert worker.computed_tokens == 256
    assert hooks.most_prefix(sglangs, None, 700) == 444
    assert hooks.most_prefix(sglangs, None, 200) == 0
    assert hooks.most_prefix(lambda request, length: 64, None, 700) == 64
    set_worker(make_worker(chosen=settings.Settings("quarot", recompute=False)))
    assert hooks.most_prefix(sglangs, None, 700) == 699
    set_worker(make_worker("quarot:sink=0,recent=0"))
    assert hooks.most_prefix(sglangs, None, 700) == 699


def test_freed_rows_lose_their_blocks(worker):
    rows = worker.rows(8)
    rows.begin([5, 6], [0, 0], [9, 9])
    hooks.free_rows(None, None, [6])
    assert rows.of(torch.tensor([5, 6])).tolist() == [0, -1]
    hooks.clear_rows(None, None)
    assert rows.of(torch.tensor([5, 6])).tolist() == [-1, -1]


# ---- registration ----


@pytest.fixture
def fake_sglang(monkeypatch):
    """As much of SGLang as the entry point sees."""
    backends, choices, hooked = {}, ["fa3"], []

    def register_attention_backend(name):
        return lambda make: backends.setdefault(name, make)

    contents = {
        "version": {"__version__": "0.5.23"},
        "srt.arg_groups.choices": {
            "ATTENTION_BACKEND_CHOICES": choices,
            "add_attention_backend_choices": choices.extend,
        },
        "srt.layers.attention.attention_registry": {
            "ATTENTION_BACKENDS": backends,
            "register_attention_backend": register_attention_backend,
        },
        "srt.plugins.hook_registry": {
            "HookRegistry": types.SimpleNamespace(register=lambda *x: hooked.append(x)),
            "HookType": types.SimpleNamespace(AROUND="around", AFTER="after"),
        },
    }
    for path, names in contents.items():
        parts = ["sglang", *path.split(".")]
        for i in range(1, len(parts)):
            monkeypatch.setitem(
                sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i]))
            )
        module = types.ModuleType(".".join(parts))
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return types.SimpleNamespace(backends=backends, choices=choices, hooked=hooked)


def test_registration_is_done_once(fake_sglang):
    plugin.register()
    plugin.register()
    assert list(fake_sglang.backends) == ["oscar"]
    assert fake_sglang.choices == ["fa3", "oscar"]
    assert len(fake_sglang.hooked) == 8


def test_an_unchecked_version_says_why_when_the_backend_is_chosen(fake_sglang, monkeypatch):
    monkeypatch.delenv(versions.ALLOW, raising=False)
    monkeypatch.setattr(sys.modules["sglang.version"], "__version__", "0.6.0")
    plugin.register()
    assert not fake_sglang.hooked
    with pytest.raises(oscar_kv.UnsupportedError, match="SGLang is 0.6.0"):
        fake_sglang.backends["oscar"](None)


def test_a_backend_of_sglangs_own_is_left_as_it_is(fake_sglang, caplog):
    fake_sglang.backends["oscar"] = theirs = object()
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert fake_sglang.backends["oscar"] is theirs
    assert not fake_sglang.hooked
    assert "of its own" in caplog.text


def test_import_without_sglang_is_a_warning(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)  # also where it is installed
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert "oscar is not available" in caplog.text


# ---- layers on a GPU: that what they are made with is what the core takes ----


def test_layers_on_a_gpu_are_asked_for_as_the_core_makes_them(monkeypatch):
    from oscar_kv.sglang import cuda_layers

    asked = inspect.signature(cuda_layers.make_cuda_layers)
    monkeypatch.setattr(cuda_layers, "make_cuda_layers", lambda *a: asked.bind(*a).arguments)
    monkeypatch.setattr(cuda_layers, "dense_attention", lambda: None)
    arguments = cuda_layers.make_layers(make_worker("quarot"))
    assert arguments["indices"] == {0: 0, 1: 1}
    assert arguments["most_seqs"] == 3  # as many requests as run
