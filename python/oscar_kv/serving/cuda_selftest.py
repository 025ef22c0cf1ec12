"""At start, on the card: the GPU's encoder and attention against the CPU's codec."""

import numpy as np
import torch

from oscar_kv.codec import PAGE_TOKENS, Side
from oscar_kv.errors import InternalError
from oscar_kv.serving.copies import CopyBook
from oscar_kv.serving.cuda_layer import CudaLayer, CudaStep, Plans, Prefill
from oscar_kv.serving.cuda_library import CudaLibrary
from oscar_kv.serving.mean_pairs import channels_of
from oscar_kv.serving.method import ServedMethod
from oscar_kv.serving.selftest import dense
from oscar_kv.serving.windows import Windows

NUM_TOKENS, CHUNK = 400, 250  # a chunk, one that continues it, and one token
# BF16 keys, values, queries and results: each at most 2^-8 of its part.
TOLERANCE = 2.0**-6
# One code in a thousand may differ from the CPU's, by one; a step of two bits is at most twice the
# deviation of a row's elements: √(1/1000) · 2, of all rows together; one row's own may be more.
CODES_TOLERANCE = 2.0**-4


def _mean_rows(side: Side, positions: np.ndarray) -> np.ndarray:
    """Mean of each token, float64 [T, H, d]; zeros [1, 1, 1] where there is none."""
    if side.mean is None:
        return np.zeros((1, 1, 1))
    rows = np.repeat(side.mean[None].astype(np.float64), len(positions), 0)
    if side.rope is not None:
        first, second = channels_of(side.rope)
        angles = positions[:, None].astype(np.float64) * side.rope.inv_freq
        cos, sin = (f(angles)[:, None] * side.rope.magnitude for f in (np.cos, np.sin))
        a, b = rows[..., first].copy(), rows[..., second].copy()
        rows[..., first], rows[..., second] = a * cos - b * sin, a * sin + b * cos
    return rows


def _about_mean(values: np.ndarray, side: Side) -> np.ndarray:
    """Values as the layer codes them: what is left of them without their mean is BF16."""
    if side.mean is None:
        return values
    rest = torch.from_numpy(values - side.mean).bfloat16()
    return rest.float().numpy() + side.mean


def check_cuda_layer(
    served: ServedMethod, library: CudaLibrary, prefill: Prefill, layer: int = 0
) -> float:
    """Writes and attends one sequence; raises InternalError where the result is wrong.

    Codes are compared with the CPU's, and attention with float64 on what the codes here stand for:
    one code that differs may weigh much in one token's result. Returns the latter's relative error.
    """
    shape, random = served.shape, np.random.default_rng(1)
    windows = Windows.of(16, 32)
    codec = served.codec(layer, NUM_TOKENS)
    plans = Plans(library, [codec], windows, torch.cuda.current_device())
    room = (1, shape.num_kv_heads, 2, windows.rows_per_block, shape.head_dim_k)
    pool = torch.zeros(room, dtype=torch.bfloat16, device="cuda")
    not_finite = torch.zeros(1, dtype=torch.int32, device="cuda")
    tested = CudaLayer(codec, windows, plans, prefill, pool, not_finite)

    def rows(heads: int) -> torch.Tensor:
        values = random.standard_normal((NUM_TOKENS, heads, shape.head_dim_k), np.float32)
        return torch.from_numpy(values).bfloat16().cuda()

    keys, values, q = rows(shape.num_kv_heads), rows(shape.num_kv_heads), rows(shape.num_q_heads)
    positions = np.arange(NUM_TOKENS, dtype=np.int32)
    # Keys and values about their means, as a model's are: the codes of a zero row are the mean.
    means = [_mean_rows(side, positions) for side in (codec.key_side(), codec.value_side())]
    keys, values = (
        x + torch.from_numpy(mean).bfloat16().cuda()
        for x, mean in zip((keys, values), means, strict=True)
    )
    num_pages = -(-NUM_TOKENS // PAGE_TOKENS)
    table = torch.from_numpy(random.permutation(num_pages + 2)[None, :num_pages].astype(np.int32))
    slots = table[0].long()[positions // PAGE_TOKENS] * PAGE_TOKENS + torch.from_numpy(
        positions % PAGE_TOKENS
    )
    table, slots = table.cuda(), slots.cuda()
    pages = torch.zeros((num_pages + 2, codec.page_bytes), dtype=torch.uint8, device="cuda")
    sizes = (windows.sink_tokens, windows.recent_tokens, windows.ring_tokens)
    book = CopyBook(1, *sizes, num_pages + 2, "cuda")
    block = torch.zeros(1, dtype=torch.int64, device="cuda")
    out = torch.empty_like(q)
    scale = shape.head_dim_k**-0.5
    for begin, end in ((0, CHUNK), (CHUNK, NUM_TOKENS - 1), (NUM_TOKENS - 1, NUM_TOKENS)):
        lengths = torch.tensor([end], dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, end - begin], device="cuda")
        step = CudaStep(
            end - begin,
            lengths,
            table,
            slots[begin:end],
            torch.from_numpy(positions[begin:end]).cuda(),
            block,
            book.step(block, starts, lengths, table, slots[begin:end]),
            None if end - begin == 1 else [0, end - begin],
            None if end - begin == 1 else [end],
        )
        arguments = (keys[begin:end], values[begin:end], step, pages)
        tested.write(*arguments)
        tested.attend(q[begin:end], *arguments, out[begin:end], scale=scale)

    def rows_of_codes(*, with_means: bool) -> list[np.ndarray]:
        tested.dequantize(table[0], NUM_TOKENS, pages, means=with_means)
        return [x[:NUM_TOKENS].double().cpu().numpy() for x in (prefill.keys, prefill.values)]

    # A prompt attends to rows in BF16; decoding takes the means apart, and those of keys may be
    # large: rounded into rows they would be off by more than all else.
    rounded = rows_of_codes(with_means=True)
    rests = rows_of_codes(with_means=False)
    coded = [rest + mean for rest, mean in zip(rests, means, strict=True)]
    exact = [x.float().cpu().numpy() for x in (keys, values)]
    by_cpu = [
        codec.decode_keys(codec.encode_keys(exact[0], positions), positions),
        codec.decode_values(codec.encode_values(_about_mean(exact[1], codec.value_side()))),
    ]
    for name, here, there in zip(("keys", "values"), coded, by_cpu, strict=True):
        distance = float(np.linalg.norm(here - there) / np.linalg.norm(there))
        if not distance < CODES_TOLERANCE:
            raise InternalError(
                f"self-test of {served.kv} on {torch.cuda.get_device_name()}: coded {name} are "
                f"{distance:.3g} of their size from the CPU's; right: below {CODES_TOLERANCE:.3g}"
            )
    worst = 0.0
    # A token of the first chunk attends to rows as they came; later ones to codes and copies.
    for token, first_exact, others in (
        (CHUNK - 1, 0, rounded),
        (CHUNK, CHUNK - windows.recent_tokens + 1, rounded),
        (NUM_TOKENS - 2, CHUNK - windows.recent_tokens + 1, rounded),
        (NUM_TOKENS - 1, NUM_TOKENS - windows.recent_tokens, coded),
    ):
        kept = ((positions < windows.sink_tokens) | (positions >= first_exact))[:, None, None]
        k, v = (np.where(kept, x, y)[: token + 1] for x, y in zip(exact, others, strict=True))
        query = q[token : token + 1].float().cpu().numpy()
        truth = dense(query, k, v, scale, token)[0]
        got = out[token].float().cpu().numpy()
        worst = max(worst, float(np.linalg.norm(got - truth) / np.linalg.norm(truth)))
    if not worst < TOLERANCE:
        raise InternalError(
            f"self-test of {served.kv} on {torch.cuda.get_device_name()}: attention is off by "
            f"{worst:.3g} of its size; right: below {TOLERANCE:.3g}"
        )
    return worst
