import oscar_kv
import pytest
import torch
from oscar_kv.transformers import OscarCache
from support import kl, tiny, tokens

EXACT = "naive:k16v16"
# Exact caches hold BF16: each of two layers changes its output by about 2^-9, logits here are of
# order 3, so KL ≈ ½·Var(δ) of δ up to 3·2·2^-9: 7e-5; twice for the spread between positions.
EXACT_KL = 1.5e-4


def chunked(model, ids, cache, *cuts, mask=None):
    """Logits of every token, in several forward passes."""
    out = []
    for begin, end in zip((0, *cuts), (*cuts, ids.shape[1]), strict=True):
        given = None if mask is None else mask[:, :end]
        out.append(model(ids[:, begin:end], past_key_values=cache, attention_mask=given).logits)
    return torch.cat(out, dim=1)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_exact_bits_change_nothing(kind):
    model, ids = tiny(kind), tokens(150)
    truth = model(ids).logits
    logits = chunked(model, ids, OscarCache(model, EXACT), 100, 101, 102)
    assert kl(truth[0], logits[0]).mean() < EXACT_KL


def test_codes_are_near_and_windows_help():
    model, ids = tiny(), tokens(300)
    truth = model(ids).logits[0]
    errors = {}
    for kv in ("quarot:k4v4,sink=0,recent=0", "quarot:sink=0,recent=0", "quarot:sink=16,recent=64"):
        logits = chunked(model, ids, OscarCache(model, kv), 200)[0]
        errors[kv] = float(kl(truth, logits).mean())
    four, two, windows = errors.values()
    assert EXACT_KL < four < two
    assert windows < two


def test_windows_over_everything_are_exact():
    model, ids = tiny(), tokens(150)
    truth = model(ids).logits
    logits = chunked(model, ids, OscarCache(model, "quarot:sink=10,recent=200"), 60)
    assert kl(truth[0], logits[0]).mean() < EXACT_KL


def test_cutting_the_prompt_does_not_matter():
    model, ids = tiny(), tokens(200)
    once = chunked(model, ids, OscarCache(model, "quarot:sink=8,recent=32"))
    cut = chunked(model, ids, OscarCache(model, "quarot:sink=8,recent=32"), 7, 64, 130, 131)
    # The same codes and copies; matrix products of other sizes round differently, 2^-20 of logits
    # of order 3, and a code on a border may flip (one channel of one key).
    assert (once - cut).abs().max() < 0.05
    assert kl(once[0], cut[0]).max() < 1e-5


def test_generate_gives_the_models_own_answer():
    model, ids = tiny(), tokens(30)
    options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    own = model.generate(ids, output_logits=True, **options)
    cache = OscarCache(model, EXACT, max_tokens=100)
    ours = model.generate(ids, past_key_values=cache, output_logits=True, **options)
    for step, (a, b) in enumerate(zip(own.logits, ours.logits, strict=True)):
        if not torch.equal(own.sequences[:, : 30 + step], ours.sequences[:, : 30 + step]):
            break  # a near tie went the other way; what follows is another text
        assert kl(a, b).max() < 10 * EXACT_KL
    assert step > 3
    assert cache.get_seq_length() == ours.sequences.shape[1] - 1


def test_left_padded_sequences_are_those_alone():
    model, ids = tiny(), tokens(60, batch=3)
    mask = torch.ones_like(ids)
    mask[1, :20], mask[2, :59] = 0, 0
    ids = ids * mask
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = OscarCache(model, "quarot:sink=4,recent=16")
    logits = []
    for begin, end in ((0, 50), (50, 60)):  # the third sequence has no token before the second step
        step = slice(begin, end)
        given = {"attention_mask": mask[:, :end], "position_ids": positions[:, step]}
        logits.append(model(ids[:, step], past_key_values=cache, **given).logits)
    for row, first in ((0, 0), (1, 20)):
        alone = chunked(
            model, ids[row : row + 1, first:], OscarCache(model, "quarot:sink=4,recent=16")
        )
        both = torch.cat(logits, dim=1)[row, first:]
        assert kl(alone[0], both).max() < 1e-5


def test_crop_and_again():
    model, ids = tiny(), tokens(200)
    cache = OscarCache(model, "quarot:sink=8,recent=32")
    first = chunked(model, ids, cache, 150)
    cache.crop(-50)
    assert cache.get_seq_length() == 150
    again = model(ids[:, 150:], past_key_values=cache).logits
    assert torch.equal(first[:, 150:], again)
    cache.crop(10_000)
    assert cache.get_seq_length() == 200
    cache.crop(150)  # the length to keep, as transformers still takes it
    assert cache.get_seq_length() == 150
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(chunked(model, ids, cache, 150), first)


def test_beams_are_reordered():
    model, ids = tiny(), tokens(100, batch=3)
    cache = OscarCache(model, "quarot:sink=8,recent=32", max_tokens=120)
    chunked(model, ids[:, :80], cache)
    order = torch.tensor([2, 0, 2])
    cache.reorder_cache(order)
    logits = model(ids[:, 80:], past_key_values=cache).logits
    for row, source in enumerate(order.tolist()):
        text = torch.cat([ids[source, :80], ids[row, 80:]])[None]
        alone = chunked(model, text, OscarCache(model, "quarot:sink=8,recent=32"), 80)
        assert kl(alone[0, 80:], logits[row]).max() < 1e-5
    for _ in range(50):  # pages of dropped beams come back
        cache.reorder_cache(torch.tensor([0, 0, 1]))
        model(ids[:, :1], past_key_values=cache, position_ids=torch.tensor([[100]]))
        cache.crop(-1)


def test_beam_search_and_selection():
    model, ids = tiny(), tokens(20)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    cache = OscarCache(model, EXACT, max_tokens=64)
    out = model.generate(ids, past_key_values=cache, **options)
    model.set_attn_implementation("sdpa")
    own = model.generate(ids, **options)
    assert out.shape == own.shape
    score = [float(-model(o, labels=o).loss) for o in (out, own)]
    assert abs(score[0] - score[1]) < 0.01  # the same beam, or one as good
    cache = OscarCache(model, "quarot", max_tokens=64)
    batch = tokens(20, batch=2)
    chunked(model, batch, cache)
    cache.batch_select_indices(torch.tensor([1]))
    assert cache.batch_size == 1
    model(batch[1:, :1], past_key_values=cache)


def test_refusals_are_one_line():
    model, ids = tiny(), tokens(50)

    def refused(match, cache, kind=oscar_kv.OscarError, **given):
        with pytest.raises(kind, match=match) as refusal:
            model(**({"input_ids": ids} | given), past_key_values=cache)
        assert "\n" not in str(refusal.value)

    refused("50 tokens; max_tokens is 40", OscarCache(model, EXACT, max_tokens=40))
    refused("max_step_tokens is 30", OscarCache(model, EXACT, max_step_tokens=30))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    refused("pad on the left", OscarCache(model, EXACT), attention_mask=mask)
    refused("positions 7 to 56", OscarCache(model, EXACT), position_ids=torch.arange(7, 57)[None])
    refused("needs past_key_values=OscarCache", None)
    cache = OscarCache(model, EXACT)
    model(ids, past_key_values=cache)
    refused("the batch has 2 sequences, the cache 1", cache, input_ids=ids.repeat(2, 1))
    with pytest.raises(oscar_kv.UnsupportedError, match="cannot become one of 4"):
        cache.batch_repeat_interleave(4)
    with pytest.raises(oscar_kv.InvalidArgumentError, match="no room for more"):
        cache.reorder_cache(torch.tensor([0, 0]))
    cache = OscarCache(model, EXACT)
    model.set_attn_implementation("sdpa")
    refused("attends with 'sdpa'", cache)


def test_another_models_artefact_is_refused(artefact, tmp_path):
    path = tmp_path / "a.safetensors"
    artefact.save(path)
    with pytest.raises(oscar_kv.MismatchError, match="weights_hash"):
        OscarCache(tiny(), path)
    artefact.with_model("qwen2").save(path)
    with pytest.raises(oscar_kv.MismatchError, match="architecture"):
        OscarCache(tiny(), path)
    artefact.with_pairing("interleaved").save(path)
    with pytest.raises(oscar_kv.MismatchError, match="convert --pairing half_split"):
        OscarCache(tiny(), path)
    artefact.with_model("llama").save(path)
    assert OscarCache(tiny(), f"{path}:k4v4").get_seq_length() == 0
