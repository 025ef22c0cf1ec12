"""What one SGLang scheduler process holds: the method, the pools of exact copies, the layers."""

import logging
from typing import Any

import torch

from oscar_kv.artefact import ModelShape
from oscar_kv.codec import PAGE_TOKENS
from oscar_kv.errors import InternalError, UnsupportedError
from oscar_kv.serving import Books, RowBlocks, ServedMethod, open_method
from oscar_kv.serving.cpu_layer import make_cpu_layers
from oscar_kv.serving.not_finite import NotFinite
from oscar_kv.serving.selftest import check_cpu_layer
from oscar_kv.serving.windows import Windows
from oscar_kv.sglang import settings

logger = logging.getLogger("sglang.oscar_kv")

CPU_HEAD_SIZES = tuple(range(32, 257, 16))
CUDA_HEAD_SIZES = (64, 128)
# Requests with exact copies where the user does not say how many run at once; SGLang's own limit
# is then in the thousands, more than copies fit.
DEFAULT_BLOCKS = 64
# SGLang's rows of token slots are a few longer than the context.
POSITION_ROOM = 64
PADDING_ROW = 0  # of SGLang's request table


class Worker:
    """Raises where the set-up is refused.

    shape: the whole model's. layers: indices of this process's layers, in the order of the pool.
    max_requests: --max-running-requests, None where it is not given.
    """

    def __init__(
        self,
        *,
        chosen: settings.Settings,
        device: str,
        shape: ModelShape,
        architecture: str,
        weights_hash: str,
        layers: range,
        context_tokens: int,
        max_requests: int | None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.device, self.local_layers = torch.device(device), layers
        self.served: ServedMethod = open_method(
            chosen.kv,
            architecture,
            shape,
            weights_hash=weights_hash,
            rank=rank,
            ranks=ranks,
            strict=chosen.strict,
            most_mean_pairs=chosen.mean_pairs,
        )
        for warning in self.served.warnings:
            logger.warning("oscar-kv: %s", warning)
        method = self.served.method
        self.windows = Windows.of(method.sink_tokens, method.recent_tokens)
        # Of a prompt, its last ones, that are computed though their slots are cached.
        self.computed_tokens = self.windows.recent_tokens if chosen.recompute else 0
        self.max_position = context_tokens + POSITION_ROOM - 1
        self.num_requests = max_requests or DEFAULT_BLOCKS  # room is taken for at start
        self.num_blocks = self._choose_blocks(chosen.copy_blocks, max_requests)
        self.layers: dict[int, Any] = {}
        self.pools: list[torch.Tensor] = []  # of exact copies on a GPU
        self.not_finite: NotFinite | None = None  # of the layers
        self.sized = False  # SGLang has asked for our bytes of a token
        self.books = Books(self.windows, self.num_blocks, self.device)

    def _choose_blocks(self, given: int | None, max_requests: int | None) -> int:
        if given is not None:
            return min(given, max_requests or given)
        if max_requests is None and self.windows.rows_per_block:
            logger.warning(
                "oscar-kv: --max-running-requests is not given, so there is room for exact copies "
                "of %d requests; those beyond that at one time are served from codes alone. "
                "--max-running-requests or OSCAR_COPY_BLOCKS says how many it should be",
                DEFAULT_BLOCKS,
            )
        return max_requests or DEFAULT_BLOCKS

    @property
    def head_sizes(self) -> tuple[int, ...]:
        return CPU_HEAD_SIZES if self.device.type == "cpu" else CUDA_HEAD_SIZES

    @property
    def page_bytes(self) -> int:
        """Of a page of one layer, all KV heads of this rank."""
        return PAGE_TOKENS * self.served.shape.num_kv_heads * self.served.token_head_bytes

    def bytes_per_token(self, num_layers: int) -> int:
        """What a token takes in the cache, as SGLang sizes its pool."""
        if num_layers != len(self.local_layers):
            raise InternalError(
                f"SGLang sizes its pool for {num_layers} layers, {len(self.local_layers)} are here"
            )
        self.sized = True
        return num_layers * self.served.shape.num_kv_heads * self.served.token_head_bytes

    def allocate(self) -> None:
        """Makes layers and pools of copies; before SGLang measures what memory is left."""
        if self.device.type == "cpu":
            indices = {index: index for index in self.local_layers}
            self.layers, self.not_finite = make_cpu_layers(
                self.served, self.windows, indices, self.num_blocks, self.max_position
            )
            check_cpu_layer(self.served)
        else:
            from oscar_kv.sglang.cuda_layers import make_layers

            made = make_layers(self)
            self.layers, self.not_finite, self.pools = made.by_key, made.not_finite, made.pools
            logger.info("oscar-kv: %s", made)
        logger.info("oscar-kv: %s", self.served)
        logger.info("oscar-kv: %s", self.describe_copies())

    def describe_copies(self) -> str:
        return self.windows.describe(self.served.shape, len(self.local_layers), self.num_blocks)

    def rows(self, num_rows: int) -> RowBlocks:
        """Blocks of the rows of SGLang's request table, which has num_rows."""
        return self.books.rows(num_rows, gives_back=True, padding_row=PADDING_ROW)

    def free_rows(self, rows: list[int]) -> None:
        if self.books.known_rows is not None:
            self.books.known_rows.free(rows)

    def clear_rows(self) -> None:
        if self.books.known_rows is not None:
            self.books.known_rows.clear()


_worker: Worker | None = None


def set_worker(worker: Worker | None) -> None:
    global _worker
    _worker = worker


def find_worker() -> Worker | None:
    return _worker


def current_worker() -> Worker:
    """The worker of this process."""
    if _worker is None:
        raise UnsupportedError(
            "SGLang made no KV cache for attention backend oscar; the plugin's hooks did not run "
            "(the log above says why)"
        )
    return _worker
