"""foveal.transformers: masks as lengths, and models that generate the same tokens as with
transformers' own attention. The models are small, with random weights."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import masking_utils as masks  # noqa: E402

import foveal.transformers  # noqa: E402
from foveal._transformers_masks import Documents, Lengths, lengths_or_mask, read_mask  # noqa: E402

foveal.transformers.register()

SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2)
LAYERS = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"])


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=6))


def gemma2():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SIZES, **LAYERS, head_dim=256, attn_logit_softcapping=20.0))


def gemma3(head_dim=256):
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **SIZES, **LAYERS, head_dim=head_dim))


def gemma3_512():
    return gemma3(512)


def gpt_oss():
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **SIZES, **LAYERS, head_dim=16, num_local_experts=2, num_experts_per_tok=1))


# (model, the implementation that it is compared with): "sdpa" has neither softcap nor sinks.
MODELS = ((llama, "sdpa"), (mistral, "sdpa"), (gemma2, "eager"), (gemma3, "sdpa"),
          (gemma3_512, "sdpa"), (gpt_oss, "eager"))


def build(make):
    torch.manual_seed(0)
    return make().eval()


def prompts(left=5):
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (2, 13))
    mask = torch.ones_like(ids)
    mask[0, :left] = 0
    return ids * mask, mask


def generate(model, implementation, ids, mask, **options):
    model.set_attn_implementation(implementation)
    return model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=8,
                          pad_token_id=0, eos_token_id=None, **options)


@pytest.mark.parametrize("cache", (None, "static"))
@pytest.mark.parametrize("make,reference", MODELS)
def test_generates_the_same_tokens(make, reference, cache):
    model = build(make)
    ids, mask = prompts()
    options = {} if cache is None else dict(cache_implementation=cache)
    expected = generate(model, reference, ids, mask, **options)
    assert torch.equal(generate(model, "foveal", ids, mask, **options), expected)


@pytest.mark.parametrize("make,reference", MODELS)
def test_logits_of_padded_batches(make, reference):
    model = build(make)
    for flip in (False, True):  # Padding on the left and on the right.
        ids, mask = (t.flip(1) if flip else t for t in prompts())
        results = []
        for implementation in (reference, "foveal"):
            model.set_attn_implementation(implementation)
            with torch.no_grad():
                results.append(model(ids, attention_mask=mask).logits[mask.bool()])
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", (llama, mistral, gpt_oss))
def test_packed_documents_are_kept_apart(make):
    """By their positions, which gpt-oss does not tell apart, and by cu_seqlens."""
    model = build(make)
    model.set_attn_implementation("foveal")
    torch.manual_seed(2)
    documents = [torch.randint(3, 97, (1, n)) for n in (5, 9, 1, 4)]
    ids = torch.cat(documents, 1)
    positions = torch.cat([torch.arange(d.shape[1]) for d in documents])[None]
    expected = torch.cat([model(d, use_cache=False).logits for d in documents], 1)
    if make is not gpt_oss:
        packed = model(ids, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-4)
    bounds = torch.tensor([0, 5, 14, 15, 19], dtype=torch.int32)
    given = model(ids, position_ids=positions, use_cache=False, cu_seq_lens_q=bounds,
                  cu_seq_lens_k=bounds, max_length_q=9, max_length_k=9).logits
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def test_training_has_the_same_gradients():
    model = build(llama)
    ids, mask = prompts()
    gradients = []
    for implementation in ("sdpa", "foveal"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


def test_encoder_with_padding():
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4)).eval()
    ids, mask = (t.flip(1) for t in prompts())
    results = []
    for implementation in ("sdpa", "foveal"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            results.append(model(ids, attention_mask=mask).last_hidden_state[mask.bool()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_compiled_model():
    torch._dynamo.reset()
    model = build(llama)
    model.set_attn_implementation("foveal")
    ids, mask = prompts()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        actual = compiled(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)


def test_model_saved_and_loaded_by_name(tmp_path):
    model = build(llama)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path,
                                                               attn_implementation="foveal")
    assert loaded.config._attn_implementation == "foveal"
    ids, mask = prompts()
    assert torch.equal(generate(loaded, "foveal", ids, mask), generate(model, "sdpa", ids, mask))


def test_position_bias_and_float_masks():
    """What a layer may be given beside lengths, by the function itself."""
    module = torch.nn.Module().eval()
    q, k, v = (torch.randn(2, h, n, 8) for h, n in ((4, 5), (2, 7), (2, 7)))
    bias, visible = torch.randn(1, 4, 5, 7), torch.randn(2, 1, 5, 7) > -1
    masks_and_sums = ((visible, torch.where(visible, 0.0, float("-inf"))),
                      (torch.randn(2, 1, 5, 7).double(), None), (None, torch.zeros(1, 1, 5, 7)))
    for mask, added in masks_and_sums:
        added = mask.float() if added is None else added
        out, weights = foveal.transformers.attention_forward(
            module, q, k, v, mask, is_causal=False, position_bias=bias)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, bias + added, enable_gqa=True)
        assert weights is None and out.is_contiguous()
        torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


# -- Masks -----------------------------------------------------------------------------------------


def visible_by(found, batch, q_length, kv_length):
    """A mask's lengths as the matrix that they mean, bool [batch, q_length, kv_length]."""
    result = torch.zeros(batch, q_length, kv_length, dtype=torch.bool)
    if isinstance(found, Documents):
        flat, bounds = result.new_zeros(batch * q_length, batch * q_length), found.cu_seqlens_q
        for begin, end in zip(bounds.tolist(), bounds.tolist()[1:]):
            flat[begin:end, begin:end] = band(end - begin, end - begin, True, found.window)
        for b in range(batch):
            part = slice(b * q_length, (b + 1) * q_length)
            result[b] = flat[part, part]
        return result
    for b in range(batch):
        first, last, rows = (int(t[b]) for t in (found.leftpad_k, found.seqused_k, found.seqused_q))
        result[b, :rows, first:last] = band(rows, last - first, found.causal, found.window)
    return result


def band(rows, keys, causal, window):
    distance = torch.arange(keys) - (torch.arange(rows)[:, None] + keys - rows)
    seen = distance <= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return seen if window is None else seen & (distance > -window)


def padding(*runs, length):
    mask = torch.zeros(len(runs), length, dtype=torch.bool)
    for row, (begin, end) in zip(mask, runs):
        row[begin:end] = True
    return mask


def documents_function(*lengths):
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    position = torch.cat([torch.arange(n) for n in lengths])[None]
    causal = masks.causal_mask_function
    if hasattr(masks, "remap_positions_for_packed_sequence"):  # Of transformers 5.18 and later.
        causal = masks.remap_positions_for_packed_sequence(causal, position)
    return masks.and_masks(causal, masks.packed_sequence_mask_function(sequence))


WINDOW_3 = masks.sliding_window_causal_mask_function(3)
CASES = {
    "left padding": dict(q_length=6, kv_length=6,
                         attention_mask=padding((2, 6), (0, 6), length=6)),
    "right padding": dict(q_length=6, kv_length=6,
                          attention_mask=padding((0, 4), (0, 6), length=6)),
    "both": dict(q_length=6, kv_length=6, attention_mask=padding((1, 4), (0, 6), length=6)),
    "a sequence of padding": dict(q_length=4, kv_length=4,
                                  attention_mask=padding((0, 0), (1, 4), length=4)),
    "decode": dict(q_length=1, kv_length=6, q_offset=5,
                   attention_mask=padding((2, 6), (0, 6), length=6)),
    "more rows after a cache": dict(q_length=3, kv_length=7, q_offset=4,
                                    attention_mask=padding((0, 7), (0, 7), length=7)),
    "static cache": dict(q_length=1, kv_length=10, q_offset=torch.tensor(5),
                         allow_is_causal_skip=False,
                         attention_mask=padding((2, 6), (0, 6), length=6)),
    "static cache, first pass": dict(q_length=4, kv_length=10, q_offset=torch.tensor(0),
                                     attention_mask=padding((1, 4), (0, 4), length=4)),
    "window": dict(q_length=6, kv_length=6, mask_function=WINDOW_3, local_size=3),
    "window and padding": dict(q_length=6, kv_length=6, mask_function=WINDOW_3, local_size=3,
                               attention_mask=padding((2, 6), (0, 6), length=6)),
    "window over the end of a cache": dict(q_length=1, kv_length=3, q_offset=8, kv_offset=6,
                                           mask_function=WINDOW_3, local_size=3,
                                           attention_mask=padding((7, 9), (0, 9), length=9)),
    "encoder": dict(q_length=6, kv_length=6, mask_function=masks.bidirectional_mask_function,
                    allow_is_causal_skip=False, allow_is_bidirectional_skip=True,
                    attention_mask=padding((0, 4), (0, 6), length=6)),
    "documents": dict(batch_size=1, q_length=7, kv_length=7, allow_is_causal_skip=False,
                      mask_function=documents_function(3, 1, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_masks_become_lengths(name):
    case = dict(batch_size=2, q_offset=0, kv_offset=0, mask_function=masks.causal_mask_function)
    case |= CASES[name]
    found = foveal.transformers.attention_mask(**case)
    assert found.dtype == torch.int32
    read = read_mask(found)
    shape = (case["batch_size"], case["q_length"], case["kv_length"])
    expected = masks.sdpa_mask(**{**case, "allow_is_causal_skip": False,
                                  "allow_is_bidirectional_skip": False})[:, 0]
    rows = torch.ones(shape[:2], dtype=torch.bool)
    if isinstance(read, Lengths):  # Queries of padding may get anything.
        rows = torch.arange(shape[1]) < read.seqused_q[:, None]
    assert torch.equal(visible_by(read, *shape)[rows], expected[rows])


OTHER_CASES = {
    "chunks": dict(mask_function=masks.chunked_causal_mask_function(3, torch.zeros(2).int()),
                   local_size=3),
    "blocks": dict(mask_function=masks.or_masks(
        masks.causal_mask_function,
        masks.blockwise_overlay(torch.tensor([[-1, 0, 0, 0, -1, -1]] * 2))),
        allow_is_causal_skip=False),
    "holes": dict(attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()),
    "wanted as it is": dict(allow_is_causal_skip=False,
                            attention_mask=padding((2, 6), (0, 6), length=6)),
    "user's": dict(mask_function=masks.and_masks(
        masks.causal_mask_function, lambda b, h, q, kv: (q + kv) % 2 == 0), use_vmap=False,
        allow_is_causal_skip=False),
}


@pytest.mark.parametrize("name", OTHER_CASES)
def test_other_masks_stay_as_they_are(name):
    case = dict(batch_size=2, q_length=6, kv_length=6, q_offset=0, kv_offset=0,
                mask_function=masks.causal_mask_function) | OTHER_CASES[name]
    assert torch.equal(foveal.transformers.attention_mask(**case), masks.sdpa_mask(**case))


def test_no_mask_where_none_is_needed():
    case = dict(batch_size=2, q_length=6, kv_length=6, mask_function=masks.causal_mask_function)
    assert foveal.transformers.attention_mask(**case) is None
    full = padding((0, 6), (0, 6), length=6)
    assert foveal.transformers.attention_mask(**case, attention_mask=full) is None
    assert lengths_or_mask(2, 6, 6, 0, 0, dict(
        mask_function=masks.bidirectional_mask_function, attention_mask=full,
        allow_is_causal_skip=False, allow_is_bidirectional_skip=True)) is None
