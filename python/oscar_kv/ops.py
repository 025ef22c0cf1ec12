"""PyTorch operators over pages: `torch.ops.oscar.*`, for engines with a block table of their own.

Importing registers them, with schemas and fake kernels, so that torch.compile sees through them.
They run on CPU tensors; rows may be of any floating type and are computed in float32. A codec is
named by the number that `register_codec` gives it, because operators take plain values.

They are Python operators over the C interface and not a compiled LibTorch extension: the library
stays free of torch, and one wheel serves every torch.
"""

import numpy as np
import torch
from torch import Tensor

from oscar_kv.codec import PAGE_TOKENS, Codec
from oscar_kv.errors import InvalidArgumentError

_codecs: dict[int, Codec] = {}


def register_codec(codec: Codec) -> int:
    """A number for the operators; the codec stays alive until `release_codec`."""
    number = max(_codecs, default=0) + 1
    _codecs[number] = codec
    return number


def release_codec(number: int) -> None:
    _codec(number)
    del _codecs[number]


def _codec(number: int) -> Codec:
    try:
        return _codecs[number]
    except KeyError:
        raise InvalidArgumentError(
            f"codec is {number}; registered: {', '.join(map(str, _codecs)) or 'none'}"
        ) from None


def _array(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    return tensor.detach().to(dtype).contiguous().numpy()


def _writable(pages: Tensor) -> np.ndarray:
    if pages.dtype != torch.uint8 or not pages.is_contiguous():
        raise InvalidArgumentError(
            f"pages are {pages.dtype}, contiguous: {pages.is_contiguous()}; right: contiguous uint8"
        )
    return pages.detach().numpy()


@torch.library.custom_op("oscar::encode_pages", mutates_args=("pages",), device_types="cpu")
def encode_pages(
    keys: Tensor, values: Tensor, positions: Tensor, slots: Tensor, pages: Tensor, codec: int
) -> None:
    """Writes tokens into pages.

    keys: [num_tokens, num_kv_heads, head_dim_k] after RoPE; values alike; positions, slots:
    [num_tokens] (slot = 64 · page + offset, −1: skipped); pages: uint8 [num_pages, page_bytes].
    """
    _codec(codec).encode_pages(
        _array(keys, torch.float32),
        _array(values, torch.float32),
        _array(positions, torch.int32),
        _array(slots, torch.int64),
        _writable(pages),
        torch.get_num_threads(),
    )


@encode_pages.register_fake
def _(
    keys: Tensor, values: Tensor, positions: Tensor, slots: Tensor, pages: Tensor, codec: int
) -> None:
    _codec(codec)


@torch.library.custom_op("oscar::attend_pages", mutates_args=(), device_types="cpu")
def attend_pages(
    q: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    pages: Tensor,
    block_table: Tensor,
    codec: int,
    scale: float,
    soft_cap: float = 0.0,
    sliding_window: int = 0,
    sinks: Tensor | None = None,
    copy_rows: Tensor | None = None,
    k_copies: Tensor | None = None,
    v_copies: Tensor | None = None,
    sink_tokens: int = 0,
    recent_tokens: int = 0,
) -> tuple[Tensor, Tensor]:
    """Causal attention of each sequence's last queries over its pages.

    q: [num_queries, num_q_heads, head_dim_k] after RoPE, the sequences one after the other;
    query_start: [num_seqs + 1] where each begins; seq_lens: [num_seqs] tokens in the pages, those
    of the queries included; block_table: [num_seqs, most pages]. copy_rows: [num_seqs, most tokens]
    row of each token's exact copy in k_copies, v_copies (BF16 [num_copies, num_kv_heads,
    head_dim]), −1: none. Returns out [num_queries, num_q_heads, head_dim_v] of the type of q, and
    lse float32 [num_queries, num_q_heads], natural log.
    """
    attending = _codec(codec)
    starts, lengths = query_start.tolist(), seq_lens.tolist()
    if len(starts) != len(lengths) + 1 or starts[0] != 0 or starts[-1] != q.shape[0]:
        raise InvalidArgumentError(
            f"query_start is {starts} for {len(lengths)} sequences and {q.shape[0]} queries; "
            "right: num_seqs + 1 numbers from 0 to the number of queries"
        )
    tables = _array(block_table, torch.int32)
    stored = _writable(pages)
    rows = _array(q, torch.float32)
    given_sinks = None if sinks is None else _array(sinks, torch.float32)
    copies = None
    if copy_rows is not None:
        if k_copies is None or v_copies is None:
            raise InvalidArgumentError("copy_rows without k_copies and v_copies; give all three")
        bits = [c.to(torch.bfloat16).contiguous().view(torch.uint16) for c in (k_copies, v_copies)]
        copies = (_array(copy_rows, torch.int32), bits[0].numpy(), bits[1].numpy())
    head_dim_v = attending.model.head_dim_v
    out = np.empty((*rows.shape[:2], head_dim_v), np.float32)
    lse = np.empty(rows.shape[:2], np.float32)
    for sequence, length in enumerate(lengths):
        begin, end = starts[sequence], starts[sequence + 1]
        if not 0 <= end - begin <= length:
            raise InvalidArgumentError(
                f"sequence {sequence} has {end - begin} queries and {length} tokens; right: at "
                "most as many queries as tokens"
            )
        out[begin:end], lse[begin:end] = attending.attend_pages(
            rows[begin:end],
            np.arange(length - (end - begin), length, dtype=np.int32),
            stored,
            tables[sequence, : -(-length // PAGE_TOKENS)],
            length,
            scale=scale,
            soft_cap=soft_cap,
            sliding_window=sliding_window,
            sinks=given_sinks,
            copies=None if copies is None else (copies[0][sequence, :length], *copies[1:]),
            sink_tokens=sink_tokens,
            recent_tokens=recent_tokens,
            num_threads=torch.get_num_threads(),
        )
    return torch.from_numpy(out).to(q.dtype), torch.from_numpy(lse)


@attend_pages.register_fake
def _(
    q: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    pages: Tensor,
    block_table: Tensor,
    codec: int,
    scale: float,
    soft_cap: float = 0.0,
    sliding_window: int = 0,
    sinks: Tensor | None = None,
    copy_rows: Tensor | None = None,
    k_copies: Tensor | None = None,
    v_copies: Tensor | None = None,
    sink_tokens: int = 0,
    recent_tokens: int = 0,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.shape[0], q.shape[1], _codec(codec).model.head_dim_v))
    return out, q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32)


def _rows_op(name: str, encode: bool, keys: bool) -> None:
    """Registers one of encode_keys, encode_values, decode_keys, decode_values."""

    def run(rows: Tensor, positions: Tensor, codec: int) -> Tensor:
        using = _codec(codec)
        array = _array(rows, torch.float32 if encode else torch.uint8)
        arguments = (array, _array(positions, torch.int32)) if keys else (array,)
        return torch.from_numpy(getattr(using, name)(*arguments))

    def fake(rows: Tensor, positions: Tensor, codec: int) -> Tensor:
        using = _codec(codec)
        if encode:
            width = using.key_bytes if keys else using.value_bytes
            return rows.new_empty((rows.shape[0], width), dtype=torch.uint8)
        head_dim = using.model.head_dim_k if keys else using.model.head_dim_v
        shape = (rows.shape[0], using.model.num_kv_heads, head_dim)
        return rows.new_empty(shape, dtype=torch.float32)

    def run_values(rows: Tensor, codec: int) -> Tensor:
        return run(rows, rows, codec)

    def fake_values(rows: Tensor, codec: int) -> Tensor:
        return fake(rows, rows, codec)

    operator = torch.library.custom_op(
        f"oscar::{name}", run if keys else run_values, mutates_args=(), device_types="cpu"
    )
    operator.register_fake(fake if keys else fake_values)


_rows_op("encode_keys", encode=True, keys=True)
_rows_op("encode_values", encode=True, keys=False)
_rows_op("decode_keys", encode=False, keys=True)
_rows_op("decode_values", encode=False, keys=False)
