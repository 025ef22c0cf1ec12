"""One layer on a GPU: encodes into the engine's pages, keeps copies, attends over both.

Decoding (one new token a sequence) is kernels of liboscar_cuda alone, on the current stream, and
may be captured in a CUDA graph. A prompt's own tokens attend through the engine's dense attention:
to themselves as they came, and to what the prompt continues with as rows that are dequantised into
a workspace, exact copies in their places.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from oscar_kv.codec import PAGE_TOKENS, Codec
from oscar_kv.errors import UnsupportedError
from oscar_kv.serving.cuda_plans import CudaStep, Plans, Prefill, current_stream
from oscar_kv.serving.cuda_structs import AttendArgs, DequantizeArgs, EncodeArgs
from oscar_kv.serving.key_mean import KeyMean
from oscar_kv.serving.windows import Windows


class CudaLayer:
    """copies: BF16 [num_blocks, num_kv_heads, 2, rows_per_block, head_dim], or None: keys as they
    came, values rotated.

    not_finite: int32 [1] that the device can write to, set when a row held NaN or Inf.
    """

    def __init__(
        self,
        codec: Codec,
        windows: Windows,
        plans: Plans,
        prefill: Prefill,
        copies: Tensor | None,
        not_finite: Tensor,
    ) -> None:
        self._library, self._plans, self._prefill = plans.library, plans, prefill
        self._windows, self._copies = windows, copies
        self._shape = codec.model
        self._page_bytes = codec.page_bytes
        self._run_bytes = codec.key_plane.plane_bytes + codec.value_plane.plane_bytes
        sides = (codec.key_side(), codec.value_side())
        heads, size = self._shape.num_kv_heads, self._shape.head_dim_k
        identity = torch.eye(size, dtype=torch.float32, device="cuda").expand(heads, size, size)

        def matrix(array: Any) -> Tensor:
            return identity if array is None else torch.from_numpy(array).cuda()

        key, value = sides
        self._mean = None
        if plans.mean_pairs:
            self._mean = KeyMean.of(key, heads, size, plans.mean_pairs, codec.max_position)
            # Compiles the kernel, which must not happen while a graph is captured.
            room = (1, self._shape.num_q_heads, size)
            self._mean.coefficients(torch.zeros(room, dtype=torch.bfloat16, device="cuda"))
        # Copies of values hold what is coded, so their mean stays out of both.
        self._value_mean = self._output_mean = None
        if value.mean is not None:
            self._value_mean = torch.from_numpy(value.mean).cuda()
            ratio = self._shape.num_q_heads // heads
            self._output_mean = self._value_mean.repeat_interleave(ratio, 0).bfloat16()
        query, output = matrix(key.attend_transform), matrix(value.attend_transform)
        self._key_image = self._image(matrix(key.transform))
        self._value_image = self._image(matrix(value.transform))
        self._query_image = self._image(query)
        self._output_image = self._image(output)
        # query · attend_transform and row · transform have the same products: the way back is the
        # transpose of the former.
        self._key_back_image = self._image(query.transpose(1, 2))
        self._clips = [torch.from_numpy(side.clip_ratio).cuda() for side in sides]
        self._held: dict[int, tuple[Tensor, ...]] = {}
        self._not_finite = not_finite

    @property
    def row_shape(self) -> tuple[int, int]:
        """Of a token's keys, and of its values: num_kv_heads, head_dim."""
        return self._shape.num_kv_heads, self._shape.head_dim_k

    def _image(self, matrices: Tensor) -> Tensor:
        heads, size = self._shape.num_kv_heads, self._shape.head_dim_k
        matrices = matrices.float().contiguous()
        image = torch.empty(
            self._library.image_bytes(heads, size), dtype=torch.uint8, device="cuda"
        )
        self._library(
            "oscar_cuda_transform_image",
            *(matrices.data_ptr(), heads, size, image.data_ptr(), current_stream()),
        )
        torch.cuda.current_stream().synchronize()  # the matrices may go
        return image

    def _transform(self, rows: Tensor, out: Tensor, image: Tensor) -> None:
        """rows, out: [tokens, heads, head_dim], the heads of a token side by side."""
        heads = self._shape.num_kv_heads
        self._library(
            "oscar_cuda_transform_rows",
            *(rows.data_ptr(), out.data_ptr(), rows.stride(0), out.stride(0), image.data_ptr()),
            *(rows.shape[0], heads, rows.shape[1] // heads, rows.shape[2], current_stream()),
        )

    def pages_of(self, cache: Tensor) -> Tensor:
        """The engine's cache of this layer; checks that a page is where the kernels look for it."""
        if cache.stride(0) * cache.element_size() != self._page_bytes:
            raise UnsupportedError(
                f"a page of the engine's cache takes {cache.stride(0)} bytes; right: "
                f"{self._page_bytes}"
            )
        return cache

    # ---- new tokens ----

    def write(self, keys: Tensor, values: Tensor, step: CudaStep, pages: Tensor) -> None:
        """Encodes the step's tokens; keys, values: BF16 [T or more, num_kv_heads, head_dim]."""
        if step.starts is not None:
            self._hold_copies(step)
        if self._value_mean is not None:
            values = (values.float() - self._value_mean).to(torch.bfloat16)
        args = EncodeArgs()
        for side, rows, image, clip, quant in zip(
            (args.key, args.value),
            (keys, values),
            (self._key_image, self._value_image),
            self._clips,
            self._plans.quants,
            strict=True,
        ):
            side.rows, side.token_stride, side.head_stride = (
                rows.data_ptr(),
                rows.stride(0),
                rows.stride(1),
            )
            side.transform_image, side.clip_ratio = image.data_ptr(), clip.data_ptr()
            side.quant = quant
        args.num_tokens = step.num_tokens
        args.num_kv_heads, args.head_dim = self._shape.num_kv_heads, self._shape.head_dim_k
        args.pages = pages.data_ptr()
        args.page_stride_bytes, args.head_stride_bytes = self._page_bytes, self._run_bytes
        args.slots, args.positions = step.slots.data_ptr(), step.positions.data_ptr()
        if self._mean is not None:
            args.key.mean = self._mean.rows.data_ptr()
            args.mean_pairs, args.interleaved = self._mean.num_pairs, int(self._mean.interleaved)
            args.mean_tile, args.mean_start = (
                self._mean.tile.data_ptr(),
                self._mean.start.data_ptr(),
            )
        if self._copies is not None:
            args.copies = self._copies.data_ptr()
            args.copy_slots = step.copies.slots.data_ptr()
            args.rows_per_block = self._windows.rows_per_block
            args.raw_key_copies = 1
        args.non_finite = self._not_finite.data_ptr()
        self._library("oscar_cuda_encode", ctypes.byref(args), current_stream())

    def _hold_copies(self, step: CudaStep) -> None:
        """Copies before the new tokens of prompts that continue: the new ones take their places."""
        self._held.clear()
        if step.copies is None:
            return
        windows = self._windows
        for i, length in enumerate(step.lengths):
            first = length - (step.starts[i + 1] - step.starts[i])
            if first == 0 or length - first == 1:
                continue
            recent = range(max(windows.sink_tokens, first + 1 - windows.recent_tokens), first)
            tokens = torch.tensor(
                [*range(min(windows.sink_tokens, first)), *recent], device="cuda", dtype=torch.int64
            )
            ring = windows.sink_tokens + tokens % windows.ring_tokens
            row = torch.where(tokens < windows.sink_tokens, tokens, ring)
            block = step.rows[i].clamp(min=0)
            rows = self._copies[block].index_select(2, row)  # [heads, 2, tokens, head_dim]
            keys, rotated = rows.permute(1, 2, 0, 3).contiguous()
            values = torch.empty_like(rotated)
            self._transform(rotated, values, self._output_image)
            if self._value_mean is not None:
                values = (values.float() + self._value_mean).to(torch.bfloat16)
            sinks = step.copies.sinks[i] & (tokens < windows.sink_tokens)
            valid = (sinks | (tokens >= step.copies.exact_from[i])) & (step.rows[i] >= 0)
            self._held[i] = (tokens, keys, values, valid[:, None, None])

    # ---- attention ----

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        step: CudaStep,
        pages: Tensor,
        out: Tensor,
        *,
        scale: float,
        soft_cap: float = 0.0,
    ) -> None:
        """Causal attention of the step's tokens, after `write`.

        q, out: BF16 [T or more, num_q_heads, head_dim].
        """
        if step.starts is None:
            count = step.num_tokens
            self._decode(q[:count], out[:count], step, pages, slice(0, count), scale, soft_cap)
            return
        single = [i for i in range(len(step.lengths)) if step.starts[i + 1] - step.starts[i] == 1]
        if single:
            sequences = torch.tensor(single, device="cuda")
            tokens = torch.tensor([step.starts[i] for i in single], device="cuda")
            result = torch.empty((len(single), *out.shape[1:]), dtype=out.dtype, device="cuda")
            self._decode(q[tokens], result, step, pages, sequences, scale, soft_cap)
            out[tokens] = result
        for i, length in enumerate(step.lengths):
            begin, end = step.starts[i], step.starts[i + 1]
            if end - begin > 1:
                rows = (q[begin:end], keys[begin:end], values[begin:end], out[begin:end])
                self._prefill_one(i, length - (end - begin), length, *rows, step, pages, scale)

    def _decode(
        self,
        q: Tensor,
        out: Tensor,
        step: CudaStep,
        pages: Tensor,
        sequences: slice | Tensor,
        scale: float,
        soft_cap: float,
    ) -> None:
        """out: rows of heads side by side, as the kernel writes them: in the raw basis."""
        count = q.shape[0]
        plan, workspace = self._plans[count]
        # Before the query's kernels: attention may start while the one before it ends.
        table, lengths = step.block_table[sequences], step.seq_lens[sequences]
        blocks = None if step.copies is None else step.copies.blocks[sequences]
        rotated = torch.empty(q.shape, dtype=torch.bfloat16, device="cuda")
        args = AttendArgs()
        if self._mean is not None:
            coefficients = self._mean.coefficients(q)
            args.mean_coefficients = coefficients.data_ptr()
            args.mean_tile = self._mean.attend_tile.data_ptr()
            args.mean_start = self._mean.attend_start.data_ptr()
        self._transform(q, rotated, self._query_image)
        args.pages, args.num_pages = pages.data_ptr(), pages.shape[0]
        args.page_stride_bytes, args.head_stride_bytes = self._page_bytes, self._run_bytes
        args.block_table, args.block_table_stride = table.data_ptr(), table.stride(0)
        args.seq_lens = lengths.data_ptr()
        args.q, args.q_token_stride = rotated.data_ptr(), rotated.stride(0)
        args.out, args.out_token_stride = out.data_ptr(), out.stride(0)
        args.out_image = self._output_image.data_ptr()
        args.overlap_previous = 1
        if blocks is not None:
            args.copies, args.copy_blocks = self._copies.data_ptr(), blocks.data_ptr()
            args.ring_rows = self._windows.ring_tokens
            args.raw_q, args.raw_q_token_stride = q.data_ptr(), q.stride(0)
        args.scale, args.soft_cap = scale, soft_cap
        self._library(
            "oscar_cuda_attend",
            *(plan, ctypes.byref(args), workspace.data_ptr(), workspace.numel(), current_stream()),
        )
        if self._output_mean is not None:
            out += self._output_mean

    def _prefill_one(
        self,
        i: int,
        first: int,
        length: int,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        step: CudaStep,
        pages: Tensor,
        scale: float,
    ) -> None:
        """Tokens first .. length − 1 of sequence i."""
        room = self._prefill
        if first == 0:
            room.dense(q, keys, values, scale, out)
            return
        self.dequantize(step.block_table[i], first, pages)
        if i in self._held:
            tokens, k, v, valid = self._held[i]
            room.keys[tokens] = torch.where(valid, k, room.keys[tokens])
            room.values[tokens] = torch.where(valid, v, room.values[tokens])
        room.keys[first:length] = keys
        room.values[first:length] = values
        room.dense(q, room.keys[:length], room.values[:length], scale, out)

    def dequantize(
        self, block_table: Tensor, num_tokens: int, pages: Tensor, *, means: bool = True
    ) -> None:
        """What the first tokens' codes stand for, raw, into the keys and values of the prefill.

        means: with the means, rounded to BF16 together; else what is left without them.
        """
        room, args = self._prefill, DequantizeArgs()
        args.pages, args.block_table = pages.data_ptr(), block_table.data_ptr()
        args.page_stride_bytes, args.head_stride_bytes = self._page_bytes, self._run_bytes
        args.num_kv_heads, args.head_dim = self._shape.num_kv_heads, self._shape.head_dim_k
        args.key, args.value = self._plans.quants
        args.keys, args.values = (rows.data_ptr() for rows in room.rotated)
        args.token_stride = room.rotated.stride(1)
        for begin in range(0, num_tokens, room.rotated.shape[1]):
            end = min(begin + room.rotated.shape[1], num_tokens)
            args.first_token, args.num_tokens = begin, end - begin
            self._library("oscar_cuda_dequantize", ctypes.byref(args), current_stream())
            for rows, to, image in zip(
                room.rotated,
                (room.keys, room.values),
                (self._key_back_image, self._output_image),
                strict=True,
            ):
                self._transform(rows[: end - begin], to[begin:end], image)
            if means and self._mean is not None:
                self._mean.add_to(room.keys[begin:end], begin)
            if means and self._value_mean is not None:
                part = room.values[begin:end]
                part.copy_(part.float() + self._value_mean)


__all__ = ["PAGE_TOKENS", "CudaLayer", "CudaStep", "Plans", "Prefill"]
