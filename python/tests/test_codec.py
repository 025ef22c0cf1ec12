import numpy as np
import oscar_kv
import pytest
from conftest import SCALE, SHAPE, attend_exactly, make_rows, relative_error

# Largest relative error of decoded Gaussian rows: BF16 rounds to 2^-8; the others from the mean
# squared error of min-max codes on 64 Gaussian values, (range/levels)²/12 with a range of 4.8.
ERRORS = {"naive:k16v16": 2**-8, "quarot:k4v4": 0.12, "quarot:k3v3": 0.25, "quarot": 0.55}


@pytest.mark.parametrize("kv", ERRORS)
def test_rows_come_back(kv):
    codec = oscar_kv.Method(kv, SHAPE).codec(1)
    rows, positions = make_rows(1, 200, 2), np.arange(200)
    encoded = codec.encode_keys(rows, positions)
    assert encoded.shape == (200, codec.key_bytes)
    assert relative_error(codec.decode_keys(encoded, positions), rows) < ERRORS[kv]
    values = codec.encode_values(rows)
    assert values.shape == (200, codec.value_bytes)
    assert relative_error(codec.decode_values(values), rows) < ERRORS[kv]


def test_planes_are_those_of_the_format():
    codec = oscar_kv.Method("quarot:k3v2", SHAPE).codec(0)
    assert codec.key_plane == oscar_kv.Plane(64, 3, 64, True, 24, 1536, 1664, 1792)
    assert codec.value_plane == oscar_kv.Plane(64, 2, 64, True, 16, 1024, 1152, 1280)
    assert codec.page_bytes == 2 * (1792 + 1280)
    assert oscar_kv.PAGE_TOKENS == 64


def test_pages_hold_the_bytes_of_the_rows():
    """Codes of a token of head 1 lie where docs/format.md says."""
    codec = oscar_kv.Method("quarot", SHAPE).codec(0)
    keys, values = make_rows(1, 70, 2), make_rows(2, 70, 2)
    pages = np.zeros((3, codec.page_bytes), np.uint8)
    slots = np.where(np.arange(70) < 64, 64 * 2 + np.arange(70), np.arange(70) - 64)
    codec.encode_pages(keys, values, np.arange(70), slots, pages)
    rows = codec.encode_keys(keys, np.arange(70)).reshape(70, 2, -1)
    plane, head = codec.key_plane, codec.page_bytes // 2
    for token, page, offset in ((5, 2, 5), (66, 0, 2)):
        start = head + offset * plane.code_row_bytes
        codes = pages[page, start : start + plane.code_row_bytes]
        np.testing.assert_array_equal(codes, rows[token, 1, : plane.code_row_bytes])
        scale = pages[page, head + plane.scales_offset + 2 * offset :][:2]
        np.testing.assert_array_equal(scale, rows[token, 1, plane.code_row_bytes :][:2])
    assert not pages[1].any()


def test_attention_over_exact_pages_is_exact():
    codec = oscar_kv.Method("naive:k16v16", SHAPE).codec(0)
    keys, values, q = make_rows(1, 300, 2), make_rows(2, 300, 2), make_rows(3, 7, 4)
    pages = np.zeros((6, codec.page_bytes), np.uint8)
    table = np.array([5, 0, 3, 1, 2], np.int32)
    tokens = np.arange(300)
    codec.encode_pages(keys, values, tokens, table[tokens // 64] * 64 + tokens % 64, pages)
    sinks = np.array([0.0, 1.0, -1.0, 2.0])
    for window in (0, 50):
        out, lse = codec.attend_pages(
            q,
            np.arange(293, 300),
            pages,
            table,
            300,
            scale=SCALE,
            sliding_window=window,
            sinks=sinks,
        )
        truth, true_lse = attend_exactly(q, keys, values, SCALE, window, sinks)
        assert relative_error(out, truth) < 2**-7  # keys and values rounded to BF16
        np.testing.assert_allclose(lse, true_lse, atol=2**-7 * SCALE * 64)


def test_copies_are_used_where_they_are_exact():
    """With a copy of every token and a window over all, codes do not matter."""
    codec = oscar_kv.Method("quarot", SHAPE).codec(0)
    keys, values, q = make_rows(1, 100, 2), make_rows(2, 100, 2), make_rows(3, 1, 4)
    pages = np.zeros((2, codec.page_bytes), np.uint8)
    codec.encode_pages(keys, values, np.arange(100), np.arange(100), pages)
    bits = [np.ascontiguousarray(x.view(np.uint32) >> 16).astype(np.uint16) for x in (keys, values)]
    arguments = (q, [99], pages, [0, 1], 100)
    copies = (np.arange(100), *bits)
    truth = attend_exactly(q, keys, values, SCALE)[0]
    coded = codec.attend_pages(*arguments, scale=SCALE)[0]
    windows = codec.attend_pages(
        *arguments, scale=SCALE, copies=copies, sink_tokens=40, recent_tokens=60
    )[0]
    assert relative_error(coded, truth) > 0.1
    assert relative_error(windows, truth) < 2**-6  # truncated to BF16


def test_cache_appends_attends_forks_and_truncates():
    method = oscar_kv.Method("quarot", SHAPE)
    cache = oscar_kv.Cache(method, num_pages=12, max_sequences=2, sink_tokens=300)
    keys = np.stack([make_rows(layer, 300, 2) for layer in (1, 2)])
    values = np.stack([make_rows(layer, 300, 2) for layer in (3, 4)])
    sequence = cache.create_sequence()
    cache.append(sequence, keys, values)
    q = make_rows(5, 4, 4)
    out, _ = cache.attend(sequence, 1, q, scale=SCALE)
    assert relative_error(out, attend_exactly(q, keys[1], values[1], SCALE)[0]) < 2**-7
    fork = cache.fork(sequence)
    cache.truncate(fork, 290)
    cache.append(fork, keys[:, 290:], values[:, 290:])
    assert cache.num_tokens(fork) == 300
    np.testing.assert_array_equal(cache.attend(fork, 1, q, scale=SCALE)[0], out)
    codec = method.codec(0)
    num_bytes = codec.key_bytes + codec.value_bytes
    np.testing.assert_array_equal(
        cache.token_bytes(fork, 0, 295, num_bytes), cache.token_bytes(sequence, 0, 295, num_bytes)
    )
    with pytest.raises(oscar_kv.UnsupportedError, match="sequences"):
        cache.create_sequence()
    with pytest.raises(oscar_kv.OutOfPagesError, match="500 more tokens"):
        cache.begin_append(fork, 500)
    assert cache.num_bytes > 0
    cache.free_sequence(fork)
    cache.free_sequence(sequence)
    assert cache.num_free_pages == 12


def test_refusals_name_the_thing():
    with pytest.raises(oscar_kv.InvalidArgumentError, match="k9v2"):
        oscar_kv.Method("quarot:k9v2", SHAPE)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="model is NULL"):
        oscar_kv.Method("quarot")
    method = oscar_kv.Method("quarot", SHAPE)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="layer is 2"):
        method.codec(2)
    codec = method.codec(0, max_position=99)
    with pytest.raises(oscar_kv.InvalidArgumentError, match=r"keys has shape \[3, 2, 32\]"):
        codec.encode_keys(np.zeros((3, 2, 32)), np.arange(3))
    with pytest.raises(oscar_kv.InvalidArgumentError, match=r"positions\[0\] is 100"):
        codec.encode_keys(np.zeros((1, 2, 64)), [100])
    with pytest.raises(oscar_kv.NotFiniteError):
        codec.encode_values(np.full((1, 2, 64), np.nan))
    pages = np.zeros((2, codec.page_bytes), np.uint8)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="C-contiguous"):
        codec.encode_pages(
            np.zeros((1, 2, 64)), np.zeros((1, 2, 64)), [0], [0], np.asfortranarray(pages)
        )
    with pytest.raises(oscar_kv.InvalidArgumentError, match=r"slots\[0\] is 128"):
        codec.encode_pages(np.zeros((1, 2, 64)), np.zeros((1, 2, 64)), [0], [128], pages)
