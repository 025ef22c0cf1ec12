"""Steps, plans and workspaces of GPU layers: what the layers of a model share."""

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oscar_kv.artefact import ModelShape
from oscar_kv.codec import Codec, Side
from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.copies import Copies
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.serving.cuda_structs import Quant, Shape
from oscar_kv.serving.mean_pairs import common_pairs
from oscar_kv.serving.windows import Windows

HEAD_SIZES = (64, 128)
# (q, keys, values, scale, out): causal attention of the last len(q) of the keys' tokens, raw basis.
DenseAttention = Callable[[Tensor, Tensor, Tensor, float, Tensor], None]


@dataclasses.dataclass(frozen=True)
class CudaStep:
    """The sequences of a step, for all layers; N sequences, T tokens.

    All tensors are on the device and at addresses that a captured graph may keep: seq_lens int32
    [N]; block_table int32 [N, pages]; slots int64 [T]; positions int32 [T]; copies, of which slots
    and blocks are kept too, None without windows; rows int64 [N] blocks of copies. On the host:
    starts [N + 1] and lengths [N] as lists where a sequence has more than one new token, else None.
    """

    num_tokens: int
    seq_lens: Tensor
    block_table: Tensor
    slots: Tensor
    positions: Tensor
    rows: Tensor | None
    copies: Copies | None
    starts: list[int] | None
    lengths: list[int] | None


def _quant(side: Side) -> Quant:
    if side.bits == 16:
        raise UnsupportedError("16-bit keys or values have no CUDA kernel; right: 2, 3 or 4 bits")
    affine = 2 if side.is_trellis else int(side.has_zero_points)
    return Quant(side.bits, side.group_size, affine, side.scale_fit)


def current_stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Plans:
    """Plans and workspaces of one shape of attention by batch size; shared by a model's layers."""

    def __init__(
        self,
        library: CudaLibrary,
        codecs: list[Codec],
        windows: Windows,
        device: int,
    ) -> None:
        codec, shape = codecs[0], codecs[0].model
        if shape.head_dim_k != shape.head_dim_v or shape.head_dim_k not in HEAD_SIZES:
            raise UnsupportedError(
                f"head sizes are {shape.head_dim_k} and {shape.head_dim_v}; right on CUDA: "
                f"{' or '.join(map(str, HEAD_SIZES))} for both"
            )
        self.library, self._device = library, device
        self._shape, self._windows = shape, windows
        self.quants = (_quant(codec.key_side()), _quant(codec.value_side()))
        self.mean_pairs = common_pairs([each.key_side() for each in codecs])
        self._max_seq_len = codec.max_position + 1
        self._plans: dict[int, tuple[Any, Tensor]] = {}
        self.kernel = ""

    def __getitem__(self, num_seqs: int) -> tuple[Any, Tensor]:
        """The plan for num_seqs sequences and its workspace, made when first asked for."""
        if num_seqs not in self._plans:
            self._plans[num_seqs] = self._make(num_seqs)
        return self._plans[num_seqs]

    def _make(self, num_seqs: int) -> tuple[Any, Tensor]:
        shape, windows = self._shape, self._windows
        wanted = Shape(
            *(num_seqs, 1, shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k),
            *(*self.quants, self._max_seq_len, windows.sink_tokens, windows.recent_tokens, 0),
            *(int(windows.rows_per_block > 0), self.mean_pairs),
        )
        plan, info = self.library.plan(wanted, self._device)
        self.kernel = info.kernel.decode()
        workspace = torch.empty(info.workspace_bytes, dtype=torch.uint8, device="cuda")
        self.library(
            "oscar_cuda_prepare", plan, workspace.data_ptr(), workspace.numel(), current_stream()
        )
        return plan, workspace

    @property
    def num_bytes(self) -> int:
        return sum(workspace.numel() for _, workspace in self._plans.values())


class Prefill:
    """What prompts that continue need, shared by the layers: room for dequantised rows.

    dense: the engine's attention over rows. keys, values: BF16 [max_tokens, num_kv_heads,
    head_dim].
    """

    TILE = 4096  # tokens that are turned back to the raw basis at a time

    def __init__(self, shape: ModelShape, max_tokens: int, dense: DenseAttention) -> None:
        room = (max_tokens, shape.num_kv_heads, shape.head_dim_k)
        self.dense = dense
        self.keys, self.values = (
            torch.empty(room, dtype=torch.bfloat16, device="cuda") for _ in range(2)
        )
        self.rotated = torch.empty(
            (2, min(self.TILE, max_tokens), *room[1:]), dtype=torch.bfloat16, device="cuda"
        )

    @property
    def num_bytes(self) -> int:
        return sum(2 * x.numel() for x in (self.keys, self.values, self.rotated))
