"""Blocks of copies by the rows of an engine's requests."""

import torch
from oscar_kv.serving import RowBlocks


def of(rows: RowBlocks, *numbers: int) -> list[int]:
    return rows.of(torch.tensor(numbers)).tolist()


def test_rows_are_given_blocks_while_there_are_any():
    rows = RowBlocks(2, 10, gives_back=True, padding_row=0)
    assert rows.begin([7, 4], [0, 0], [64, 10]) == []
    assert of(rows, 7, 4, 0, 5) == [0, 1, -1, -1]
    assert rows.begin([9], [0], [5]) == []
    assert of(rows, 9) == [-1]
    assert rows.num_without == 1
    assert rows.begin([9], [5], [9]) == []  # its next chunk; the request was counted
    assert rows.num_without == 1
    rows.free([4])
    assert rows.begin([9], [9], [12]) == [0]  # a block at last, for a request in its middle
    rows.free([9])
    assert rows.begin([7, 5], [64, 64], [65, 70]) == [1]  # behind a prefix it has not computed
    assert of(rows, 4, 5, 7) == [-1, 1, 0]
    rows.clear()
    assert of(rows, 4, 5, 7) == [-1, -1, -1]
    assert rows.begin([7], [64], [65]) == [0]
    rows.begin([0, 0], [0, 0], [1, 1])
    assert of(rows, 0) == [-1]


def test_a_finished_request_keeps_its_block_as_long_as_there_are_others():
    rows = RowBlocks(3, 3, gives_back=False)
    rows.begin([2], [0], [100])
    first = of(rows, 2)
    seen = []
    for _ in range(3):  # the engine hands the same row out again
        assert rows.begin([2], [0], [10]) == []
        seen += of(rows, 2)
        rows.begin([2], [10], [11])
    assert first[0] not in seen[:2]
    assert sorted(set(seen[:2] + first)) == [0, 1, 2]
    assert seen[2] == first[0]  # the one used last the longest ago


def test_blocks_in_use_are_not_taken_from_requests_that_run():
    rows = RowBlocks(2, 8, gives_back=False)
    rows.begin([0, 1], [0, 0], [10, 10])
    for end in range(11, 15):
        rows.begin([0, 1, 2], [end - 1] * 3, [end] * 3)
        assert of(rows, 0, 1, 2) == [0, 1, -1]
    assert rows.num_without == 1
    # Row 1's request is not scheduled any more.
    assert rows.begin([0, 2], [14, 14], [15, 15]) == []
    assert of(rows, 0, 2) == [0, -1]
    assert rows.begin([0, 2], [15, 15], [16, 16]) == [1]
    assert of(rows, 0, 1, 2) == [0, -1, 1]


def test_a_request_that_goes_on_in_its_row_keeps_its_block():
    rows = RowBlocks(4, 4, gives_back=False)
    rows.begin([3, 1], [0, 0], [64, 7])
    before = of(rows, 3, 1)
    assert rows.begin([1, 3], [7, 64], [8, 200]) == []
    assert of(rows, 3, 1) == before
    # Behind tokens that it has not computed: another request, with a hit.
    assert rows.begin([3], [64], [80]) == [0]
    assert of(rows, 3) != before[:1]
