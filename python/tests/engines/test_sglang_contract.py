"""Every symbol of SGLang that the plugin touches is where it expects it, in the pinned wheel.

Nothing is installed: the sources are read in the wheel. What another version changes shows here
first.
"""

import ast
import os
import pathlib

import pytest
from oscar_kv.sglang import hooks, refusals, versions
from wheel_source import WheelSource

SRT = "sglang/srt"
OVERRIDES = f"{SRT}/arg_groups/overrides.py"
VIEWS = f"{SRT}/arg_groups/model_override_base.py"
GRAPH_OPTIONS = f"{SRT}/arg_groups/cuda_graph_hook.py"
GRAPH_CONFIG = f"{SRT}/model_executor/cuda_graph_config.py"
CONFIGURATOR = f"{SRT}/mem_cache/kv_cache_configurator.py"
SIZES = f"{SRT}/model_executor/pool_configurator.py"
POOLS = f"{SRT}/mem_cache/memory_pool.py"
BACKEND = f"{SRT}/layers/attention/base_attn_backend.py"
REGISTRY = f"{SRT}/layers/attention/attention_registry.py"
LAYER = f"{SRT}/layers/radix_attention.py"
BATCH = f"{SRT}/model_executor/forward_batch_info.py"
GRAPHS = f"{SRT}/model_executor/runner/decode_cuda_graph_runner.py"
FA3 = "sglang/kernels/ops/attention/flash_attention_v3.py"


@pytest.fixture(scope="module")
def source() -> WheelSource:
    folder = os.environ.get("OSCAR_ENGINE_WHEELS")
    if not folder:
        pytest.skip("OSCAR_ENGINE_WHEELS names no folder with the engines' wheels")
    (version,) = versions.CHECKED
    return WheelSource(next(pathlib.Path(folder).glob(f"sglang-{version}-*.whl")))


def text(node: ast.AST) -> str:
    return ast.unparse(node)


def test_plugins_are_found_by_the_entry_point(source):
    root = pathlib.Path(__file__).parents[2]
    assert '[project.entry-points."sglang.srt.plugins"]' in (root / "pyproject.toml").read_text()
    plugins = f"{SRT}/plugins/__init__.py"
    assert source.value(plugins, "GENERAL_PLUGINS_GROUP") == "sglang.srt.plugins"
    loads = text(source.node(plugins, "load_plugins"))
    assert "apply_hooks" in loads
    # A plugin that raises is logged and passed over, and so is a hook that does not fit: what is
    # refused has to be refused where the backend is made.
    assert "except Exception" in loads
    applies = text(source.node(f"{SRT}/plugins/hook_registry.py", "HookRegistry.apply_hooks"))
    assert "except Exception" in applies
    kinds = f"{SRT}/plugins/hook_registry.py"
    assert source.value(kinds, "HookType.AROUND") == "around"
    assert source.value(kinds, "HookType.AFTER") == "after"
    assert source.parameters(kinds, "HookRegistry.register")[:3] == ["target", "hook", "hook_type"]
    wraps = text(source.node(kinds, "_wrap_fn"))
    assert "hook(original_fn, *args, **kwargs)" in wraps
    assert "hook(result, *args, **kwargs)" in wraps
    assert "__version__" in text(source.module("sglang/version.py"))


def test_every_hook_has_its_target(source):
    targets = []

    class Registry:
        @staticmethod
        def register(target, hook, kind):
            targets.append(target)

    class Kinds:
        AROUND, AFTER = "around", "after"

    hooks.register(Registry, Kinds)
    assert len(targets) == 8
    for target in targets:
        parts = target.split(".")
        cut = next(i for i in range(len(parts), 0, -1) if parts[i - 1].islower())
        # The last lower-case name before a class is the module; functions have none.
        if any(part[0].isupper() for part in parts):
            cut = next(i for i, part in enumerate(parts) if part[0].isupper())
        else:
            cut = len(parts) - 1
        source.node("/".join(parts[:cut]) + ".py", ".".join(parts[cut:]))


def test_the_backend_registers(source):
    assert source.parameters(REGISTRY, "register_attention_backend") == ["name"]
    assert "oscar" not in text(source.module(REGISTRY)).lower()  # no backend of SGLang's own yet
    choices = f"{SRT}/arg_groups/choices.py"
    add = source.node(choices, "add_attention_backend_choices")
    assert text(add.value) == "ATTENTION_BACKEND_CHOICES.extend"
    assert refusals.NAME not in source.value(choices, "ATTENTION_BACKEND_CHOICES")
    setup = f"{SRT}/model_executor/model_runner_components/attention_backend_setup.py"
    makes = text(source.node(setup, "_build_full_attention_backend_from_str"))
    assert "ATTENTION_BACKENDS[backend_str](model_runner)" in makes


def option_fields(source: WheelSource) -> dict[str, ast.AnnAssign]:
    """Options of ServerArgs by name."""
    fields = {}
    for group in "disagg exec_ memory model observability parallel schedule spec".split():
        for node in ast.walk(source.module(f"{SRT}/arg_groups/fields/{group}.py")):
            if isinstance(node, ast.AnnAssign):
                fields[node.target.id] = node
    return fields


def test_refused_options_exist_and_their_defaults_are_served(source):
    fields = option_fields(source)
    for name, served, _ in refusals.UNTESTED:
        default = ast.literal_eval(fields[name].value)
        assert default == served, f"{name} is {default!r} by default"
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        assert ast.literal_eval(fields[name].value) is None
    assert ast.literal_eval(fields["kv_cache_dtype"].value) == "auto"
    for name in ("page_size", "max_running_requests", "cuda_graph_config"):
        assert ast.literal_eval(fields[name].value) is None
    assert "disable_prefill_cuda_graph" in fields


def test_options_are_resolved_where_hooks_wrap(source):
    assert source.parameters(OVERRIDES, "_page_size_default") == ["view"]
    assert source.parameters(GRAPH_OPTIONS, "apply_cuda_graph_compatibility") == ["server_args"]
    assert "_cuda_graph_config_locked" in text(
        source.node(GRAPH_OPTIONS, "apply_cuda_graph_compatibility")
    )
    assert source.parameters(OVERRIDES, "declare_resolution")[:2] == ["server_args", "source"]
    assert source.parameters(GRAPH_CONFIG, "with_phase")[:2] == ["config", "phase"]
    assert source.value(GRAPH_CONFIG, "Backend.DISABLED") == "disabled"
    assert source.value(GRAPH_CONFIG, "Backend.FULL") == "full"
    source.node(GRAPH_CONFIG, "Phase.PREFILL")
    for name in ("resolved_view", "resolving_view"):
        assert source.parameters(VIEWS, name) == ["server_args"]


def test_prefixes_end_where_a_hook_says(source):
    """And only those of requests that begin: a chunk goes on where the last one ended."""
    batch = "sglang/srt/managers/schedule_batch.py"
    assert source.parameters(batch, "Req._compute_max_prefix_len") == ["input_len"]
    begins = text(source.node(batch, "Req.init_next_round_input"))
    assert begins.count("self._compute_max_prefix_len(input_len)") == 1
    assert begins.index("if tree_cache is not None") < begins.index("max_prefix_len=key_limit")
    chunks = text(source.node("sglang/srt/managers/scheduler.py", "Scheduler"))
    assert "self.chunked_req.init_next_round_input()" in chunks


def test_the_pool_is_made_and_sized_where_hooks_wrap(source):
    configures = source.node(CONFIGURATOR, "KVCacheConfigurator.configure")
    assert [a.arg for a in configures.args.kwonlyargs] == ["pre_model_load_memory"]
    order = text(configures)
    assert order.index("_resolve_memory_pool_config") < order.index("_init_pools")
    builds = source.node(CONFIGURATOR, "KVCacheConfigurator._build_mha_kv_pool")
    assert [a.arg for a in builds.args.kwonlyargs][:2] == ["max_total_num_tokens", "mha_pool_class"]
    for call in ("page_size=self.pool_page_size", "else mha_pool_class", "pool_cls("):
        assert call in text(builds)
    calls = source.calls(CONFIGURATOR, "_build_mha_kv_pool")
    assert calls
    assert all(not call.args for call in calls)
    for name in (
        *("server_args", "model", "model_config", "device", "layer_info", "kv_cache_dtype"),
        *("use_mla_backend", "is_hybrid_swa", "mambaish_config", "is_draft_worker"),
        "post_capture_kv_active",
    ):
        source.node(CONFIGURATOR, f"KVCacheConfigurator.{name}")
    sizes = source.node(SIZES, "DefaultPoolConfigurator._compute_cell_size")
    assert [a.arg for a in sizes.args.args] == ["self", "kvc", "num_layers"]
    made = [text(call) for call in source.calls(SIZES, "_compute_cell_size")]
    assert "self._compute_cell_size(kvc, num_layers)" in made
    layers = f"{SRT}/model_executor/model_runner_components/layer_setup.py"
    for name in ("start_layer", "end_layer"):
        source.node(layers, f"ModelLayerInfo.{name}")
    config = text(source.node(f"{SRT}/configs/model_config.py", "ModelConfig"))
    for name in "hf_text_config model_path context_len head_dim v_head_dim".split():
        assert f"self.{name} = " in config, name


def test_what_the_pool_overrides(source):
    pool = source.node(POOLS, "MHATokenToKVPool")
    init = text(source.node(POOLS, "MHATokenToKVPool.__init__"))
    # Set before the buffers are made; nothing after them reads keys' and values' rows.
    before, after = init.split("self._create_buffers()")
    for name in ("head_num", "head_dim", "v_head_dim"):
        assert f"self.{name} = " in before
    assert "k_buffer" not in after
    for name in ("page_size", "size", "memory_saver_adapter", "enable_custom_mem_pool"):
        assert f"self.{name}" in text(source.node(POOLS, "KVCache.__init__")), name
    named = {node.name for node in pool.body if isinstance(node, ast.FunctionDef)}
    named |= {node.name for node in source.node(POOLS, "KVCache").body if hasattr(node, "name")}
    refused = (
        *("get_key_buffer", "get_value_buffer", "get_kv_buffer", "set_kv_buffer"),
        *("get_cpu_copy", "load_cpu_copy", "move_kv_cache", "get_contiguous_buf_infos"),
        *("get_device_pool_infos", "host_pool_decls", "_create_buffers", "_clear_buffers"),
    )
    assert set(refused) <= named
    size = text(source.node(POOLS, "MHATokenToKVPool.get_kv_size_bytes"))
    assert "get_tensor_size_bytes(self.k_buffer)" in size
    source.node(f"{SRT}/constants.py", "GPU_MEMORY_TYPE_KV_CACHE")
    # Kernels that store rows next to RoPE leave a pool alone whose type is not the model's.
    fused = text(source.node(f"{SRT}/models/utils.py", "enable_fused_set_kv_buffer"))
    assert "pool.dtype == torch.bfloat16" in fused


def test_rows_and_slots(source):
    rows = text(source.node(POOLS, "ReqToTokenPool.__init__"))
    assert "self._alloc_size = size + 1" in rows  # row 0 is padding
    assert "list(range(1, self._alloc_size))" in rows
    assert "dtype=torch.int32" in rows
    assert source.parameters(POOLS, "ReqToTokenPool.free_rows") == ["indices"]
    assert source.parameters(POOLS, "ReqToTokenPool.clear") == []
    assert "self.free_rows(" in text(source.node(POOLS, "ReqToTokenPool.free"))
    clears = text(
        source.node(f"{SRT}/mem_cache/allocator/paged.py", "PagedTokenToKVPoolAllocator.clear")
    )
    assert "torch.arange(1, self.num_pages + 1" in clears  # page 0 is padding


def test_what_the_backend_overrides(source):
    for name, expected in {
        "init_forward_metadata_out_graph": ["forward_batch", "in_capture"],
        "init_cuda_graph_state": ["max_bs", "max_num_tokens"],
        "get_cuda_graph_seq_len_fill_value": [],
        "forward_extend": ["q", "k", "v", "layer", "forward_batch", "save_kv_cache"],
        "forward_decode": ["q", "k", "v", "layer", "forward_batch", "save_kv_cache"],
        "support_triton": [],
    }.items():
        assert source.parameters(BACKEND, f"AttentionBackend.{name}") == expected
    eager = text(source.node(BACKEND, "AttentionBackend.init_forward_metadata"))
    assert "self.init_forward_metadata_out_graph(forward_batch)" in eager
    # Graphs of prompts are what a backend opts into, beside the option.
    graph = "AttentionBackend.use_captured_forward_metadata_for_breakable_cuda_graph"
    assert source.value(BACKEND, graph) is False


def test_what_a_batch_tells(source):
    for name in (
        *("forward_mode", "batch_size", "req_pool_indices", "seq_lens", "out_cache_loc"),
        *("seq_lens_cpu", "req_pool_indices_cpu", "positions", "extend_prefix_lens"),
        *("extend_seq_lens", "extend_prefix_lens_cpu", "extend_seq_lens_cpu"),
    ):
        source.node(BATCH, f"ForwardBatch.{name}")
    for name in ("is_decode", "is_idle"):
        source.node(BATCH, f"ForwardMode.{name}")
    # A replayed graph's batch: padded rows and lengths, the slots of the real requests alone.
    view = text(source.node(GRAPHS, "build_replay_fb_view"))
    for name in ("batch_size=bs", "req_pool_indices=buffers.req_pool_indices[:bs]"):
        assert name in view
    assert "seq_lens=buffers.seq_lens[:bs]" in view
    assert "positions=buffers.positions[:num_tokens]" in view
    assert "seq_lens_cpu=None if" in view
    assert "out_cache_loc=getattr(forward_batch, 'out_cache_loc', None)" in view
    replays = text(source.node(GRAPHS, "DecodeCudaGraphRunner"))
    assert "init_forward_metadata_out_graph(forward_batch, in_capture=True)" in replays
    assert "attn_backend.init_forward_metadata_out_graph(fb_view)" in replays


def test_what_a_layer_tells(source):
    init = text(source.node(LAYER, "RadixAttention.__init__"))
    for name in (
        *("tp_q_head_num", "tp_k_head_num", "tp_v_head_num", "qk_head_dim", "v_head_dim"),
        *("scaling", "layer_id", "logit_cap", "sliding_window_size", "is_cross_attention"),
        *("use_irope", "k_scale_float", "v_scale_float", "attn_type", "pos_encoding_mode"),
        "xai_temperature_len",
    ):
        assert f"self.{name} = " in init, name
    assert source.value(LAYER, "AttentionType.DECODER") == "decoder"
    assert "self.xai_temperature_len = -1" in init
    assert "sliding_window_size or -1" in init


def test_dense_attention(source):
    names = source.parameters(FA3, "flash_attn_varlen_func")
    assert names[:3] == ["q", "k", "v"]
    used = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k softmax_scale causal".split()
    assert set(used) <= set(names)
    source.node(FA3, "_is_fa3_supported")
    own = text(source.module(f"{SRT}/layers/attention/flashattention_backend.py"))
    assert "from sgl_kernel.flash_attn import flash_attn_varlen_func" in own


def test_parallel_ranks(source):
    context = f"{SRT}/runtime_context.py"
    source.node(context, "get_parallel")
    assert "attn_tp_rank" in text(source.module(context))
    assert "attn_tp_size" in text(source.module(context))
