import numpy as np
import oscar_kv
import pytest
import torch
from conftest import SCALE, SHAPE, attend_exactly, make_rows, relative_error
from oscar_kv import ops

PAGES = 8
LENGTHS = (130, 40)  # tokens of the two sequences
QUERIES = (3, 1)


@pytest.fixture(scope="module")
def codec():
    number = ops.register_codec(oscar_kv.Method("naive:k16v16", SHAPE).codec(1))
    yield number
    ops.release_codec(number)


@pytest.fixture
def case(codec):
    """Arguments of encode_pages and of attend_pages for two sequences whose pages are mixed."""
    page_bytes = ops._codec(codec).page_bytes
    table = torch.tensor([[6, 0, 3], [2, 0, 0]], dtype=torch.int32)
    keys = torch.from_numpy(make_rows(1, sum(LENGTHS), 2))
    values = torch.from_numpy(make_rows(2, sum(LENGTHS), 2))
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in LENGTHS])
    rows = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])
    slots = table[rows, positions.long() // 64].long() * 64 + positions % 64
    pages = torch.zeros(PAGES, page_bytes, dtype=torch.uint8)
    queries = torch.from_numpy(make_rows(3, sum(QUERIES), 4))
    starts = torch.tensor([0, QUERIES[0], sum(QUERIES)], dtype=torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    encode = (keys, values, positions, slots, pages, codec)
    return encode, (queries, starts, lengths, pages, table, codec, SCALE)


def truth(case):
    (keys, values, *_), (queries, *_) = case
    out, begin, first = [], 0, 0
    for length, count in zip(LENGTHS, QUERIES, strict=True):
        rows = slice(first, first + length)
        q = queries[begin : begin + count].numpy()
        out.append(attend_exactly(q, keys[rows].numpy(), values[rows].numpy(), SCALE)[0])
        begin, first = begin + count, first + length
    return np.concatenate(out)


def test_batch_attends_each_sequence_over_its_own_pages(case):
    encode, attend = case
    torch.ops.oscar.encode_pages(*encode)
    out, lse = torch.ops.oscar.attend_pages(*attend)
    assert out.shape == (4, 4, 64)
    assert lse.dtype == torch.float32
    assert relative_error(out.numpy(), truth(case)) < 2**-7  # stored as BF16


def test_bf16_rows_stay_bf16(case):
    encode, (queries, *rest) = case
    torch.ops.oscar.encode_pages(*encode)
    out, _ = torch.ops.oscar.attend_pages(queries.bfloat16(), *rest)
    assert out.dtype == torch.bfloat16
    # Queries, stored rows and the result, each rounded to 2^-8 at most.
    assert relative_error(out.float().numpy(), truth(case)) < 2**-5


def test_opcheck(case):
    encode, attend = case
    torch.library.opcheck(torch.ops.oscar.encode_pages.default, encode)
    torch.library.opcheck(torch.ops.oscar.attend_pages.default, attend)
    keys, values, positions, *_, codec = encode
    key_bytes = torch.ops.oscar.encode_keys(keys, positions, codec)
    value_bytes = torch.ops.oscar.encode_values(values, codec)
    for operator, arguments in (
        ("encode_keys", (keys, positions, codec)),
        ("encode_values", (values, codec)),
        ("decode_keys", (key_bytes, positions, codec)),
        ("decode_values", (value_bytes, codec)),
    ):
        torch.library.opcheck(getattr(torch.ops.oscar, operator).default, arguments)


def test_compiled_is_the_same(case):
    encode, attend = case

    def step(keys, values, positions, slots, pages, queries, starts, lengths, table):
        torch.ops.oscar.encode_pages(keys * 1.0, values, positions, slots, pages, encode[-1])
        out, lse = torch.ops.oscar.attend_pages(
            queries, starts, lengths, pages, table, encode[-1], SCALE, sliding_window=100
        )
        return out * 2, lse

    queries, starts, lengths, _, table, *_ = attend
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (step, compiled):
        pages = torch.zeros_like(encode[4])
        arguments = (*encode[:4], pages, queries, starts, lengths, table)
        results.append((*function(*arguments), pages))
    for expected, got in zip(*results, strict=True):
        assert torch.equal(expected, got)


def test_copies_reach_the_kernel(case):
    encode, (queries, starts, lengths, pages, table, _, scale) = case
    coarse = ops.register_codec(oscar_kv.Method("quarot", SHAPE).codec(1))
    try:
        pages = torch.zeros(PAGES, ops._codec(coarse).page_bytes, dtype=torch.uint8)
        keys, values, positions, slots = encode[:4]
        torch.ops.oscar.encode_pages(keys, values, positions, slots, pages, coarse)
        rows = torch.full((2, max(LENGTHS)), -1, dtype=torch.int32)
        rows[0, : LENGTHS[0]] = torch.arange(LENGTHS[0], dtype=torch.int32)
        rows[1, : LENGTHS[1]] = LENGTHS[0] + torch.arange(LENGTHS[1], dtype=torch.int32)
        arguments = (queries, starts, lengths, pages, table, coarse, scale)
        coded, _ = torch.ops.oscar.attend_pages(*arguments)
        exact, _ = torch.ops.oscar.attend_pages(
            *arguments,
            copy_rows=rows,
            k_copies=keys.bfloat16(),
            v_copies=values.bfloat16(),
            sink_tokens=200,
        )
        assert relative_error(coded.numpy(), truth(case)) > 0.1
        assert relative_error(exact.numpy(), truth(case)) < 2**-7
    finally:
        ops.release_codec(coarse)


def test_refusals(case):
    encode, (queries, starts, lengths, pages, table, codec, scale) = case
    with pytest.raises(oscar_kv.InvalidArgumentError, match="codec is 999"):
        torch.ops.oscar.encode_values(encode[1], 999)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="query_start is"):
        torch.ops.oscar.attend_pages(queries, starts[:2], lengths, pages, table, codec, scale)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="contiguous uint8"):
        torch.ops.oscar.encode_pages(*encode[:4], pages.int(), codec)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="at most as many queries"):
        torch.ops.oscar.attend_pages(queries, starts, lengths * 0, pages, table, codec, scale)
