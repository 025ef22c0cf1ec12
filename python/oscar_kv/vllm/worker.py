"""What one vLLM worker process holds: the method, the pools of exact copies, the layers."""

import logging
from typing import Any

import torch

from oscar_kv.artefact import ModelShape
from oscar_kv.errors import UnsupportedError
from oscar_kv.serving import Books, ServedMethod, open_method
from oscar_kv.serving.cpu_layer import make_cpu_layers
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.selftest import check_cpu_layer
from oscar_kv.serving.windows import Windows
from oscar_kv.vllm import refusals, settings

logger = logging.getLogger("vllm.oscar_kv")

CPU_HEAD_SIZES = tuple(range(32, 257, 16))
CUDA_HEAD_SIZES = (64, 128)
_worker: "Worker | None" = None


def worker_of(config: Any) -> "Worker":
    """The worker of this process; another VllmConfig makes another."""
    global _worker
    if _worker is None or _worker.config is not config:
        _worker = Worker(config)
    return _worker


def current_worker() -> "Worker":
    if _worker is None:
        raise UnsupportedError("no layer with attention backend OSCAR has been made yet")
    return _worker


class Worker:
    """config: vLLM's VllmConfig. Raises where the set-up is refused."""

    def __init__(self, config: Any) -> None:
        refusals.check_engine(config)
        self.config = config
        self.settings = settings.read(config.additional_config)
        self.device = torch.device(config.device_config.device_type)
        self.shape, architecture, weights_hash = _describe(config.model_config)
        parallel = config.parallel_config
        self.served: ServedMethod = open_method(
            self.settings.kv,
            architecture,
            self.shape,
            weights_hash=weights_hash,
            rank=parallel.rank % parallel.tensor_parallel_size,
            ranks=parallel.tensor_parallel_size,
            strict=self.settings.strict,
            most_mean_pairs=self.settings.mean_pairs,
        )
        for warning in self.served.warnings:
            logger.warning("oscar-kv: %s", warning)
        method = self.served.method
        self.windows = Windows.of(method.sink_tokens, method.recent_tokens)
        self.max_position = config.model_config.max_model_len - 1
        most = config.scheduler_config.max_num_seqs
        self.num_blocks = min(self.settings.copy_blocks or most, most)
        self.layers: dict[str, Any] = {}
        self.not_finite: NotFinite | None = None  # of the layers
        self.books = Books(self.windows, self.num_blocks, self.device)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        return CPU_HEAD_SIZES if self.device.type == "cpu" else CUDA_HEAD_SIZES

    @property
    def local_layers(self) -> dict[str, int]:
        """Names of this process's layers, and their indices in the model."""
        from vllm.model_executor.models.utils import extract_layer_index

        from oscar_kv.vllm.backend import OscarImpl

        context = self.config.compilation_config.static_forward_context
        return {
            name: extract_layer_index(name)
            for name, layer in context.items()
            if isinstance(getattr(layer, "impl", None), OscarImpl)
        }

    def allocate(self) -> None:
        """Makes layers and pools; vLLM calls it before it measures what memory is left."""
        if self.layers:
            return
        if self.device.type == "cpu":
            indices = self.local_layers
            self.layers, self.not_finite = make_cpu_layers(
                self.served, self.windows, indices, self.num_blocks, self.max_position
            )
            check_cpu_layer(self.served)
        else:
            from oscar_kv.vllm.cuda_worker import CudaSteps, make_layers

            self.cuda_layers = make_layers(self)
            self.layers, self.not_finite = self.cuda_layers.by_key, self.cuda_layers.not_finite
            self.cuda_steps = CudaSteps(self)
            logger.info("oscar-kv: %s", self.cuda_layers)
        logger.info("oscar-kv: %s", self.served)
        logger.info("oscar-kv: %s", self.describe_copies())

    @property
    def computed_tokens(self) -> int:
        """Of a prompt, its last ones, that are computed though their pages are cached."""
        return self.windows.recent_tokens if self.settings.recompute else 0

    def describe_copies(self) -> str:
        return self.windows.describe(self.served.shape, len(self.layers), self.num_blocks)


def _describe(model_config: Any) -> tuple[ModelShape, str, str]:
    """Shape, architecture and weights' hash of the model that vLLM is about to serve."""
    from oscar_kv.transformers.model import (
        architecture_of,
        require_ordinary_attention,
        shape_of,
    )
    from oscar_kv.weights import folder_hash

    config = model_config.hf_text_config
    require_ordinary_attention(config)
    return shape_of(config), architecture_of(config), folder_hash(model_config.model, config)
