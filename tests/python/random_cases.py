"""Random cases for hypothesis, which shrinks what fails to its smallest form."""

from hypothesis import strategies as st

from attention_cases import Case


@st.composite
def random_cases(draw, max_len: int = 24, dtypes=("fp32",), headdims=st.integers(1, 40),
                 backward_only: bool = False) -> Case:
    q_form = draw(st.sampled_from(["dense", "used", "packed", "packed_used"]))
    k_forms = ["dense", "cache", "packed", "packed_used"] + ([] if backward_only else ["paged"])
    k_form = draw(st.sampled_from(k_forms))
    lens = draw(st.lists(st.tuples(st.integers(0, max_len), st.integers(0, max_len)),
                         min_size=1, max_size=4))
    packed = "packed" in q_form or "packed" in k_form
    cache = k_form in ("cache", "paged")
    sizes = st.integers(-1, max_len)
    appends = cache and not backward_only and draw(st.booleans())
    headdim = draw(headdims)
    rotary = draw(st.sampled_from([None, "halves", "interleaved"])) if appends else None
    if headdim < 2:
        rotary = None
    return Case(
        lens=tuple(lens), q_form=q_form, k_form=k_form, dtype=draw(st.sampled_from(dtypes)),
        nheads_k=draw(st.integers(1, 3)), group=draw(st.sampled_from([1, 2, 3, 5])),
        headdim=headdim, causal=draw(st.booleans()),
        window=draw(st.none() | st.tuples(sizes, sizes)),
        softmax_scale=draw(st.sampled_from([None, 0.125, 1.0, -0.5, 0.0])),
        softcap=draw(st.sampled_from([0.0, 0.0, 0.5, 30.0])), sinks=draw(st.booleans()),
        bias=None if packed else draw(st.sampled_from([None, "same", "fp32", "bool"])),
        bias_shape="".join(c for c in "bhqk" if draw(st.booleans())),
        alibi=draw(st.sampled_from([None, None, "heads", "batch"])),
        dropout_p=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])), dlse=draw(st.booleans()),
        leftpad=draw(st.integers(0, 3)) if k_form != "dense" else 0,
        page_size=draw(st.sampled_from([1, 3, 16])),
        cache_batch_idx=k_form == "cache" and not backward_only and draw(st.booleans()),
        seqlen_new=draw(st.integers(1, 4)) if appends else 0, rotary=rotary,
        rotary_pairs=draw(st.integers(1, headdim // 2)) if rotary else 1,
        layout=draw(st.sampled_from(["bshd", "bhsd", "sliced"])), seed=draw(st.integers(0, 999)))
