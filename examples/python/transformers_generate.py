"""A model of Hugging Face transformers with foveal's attention: the same tokens as with "sdpa".

    python examples/python/transformers_generate.py [MODEL]

MODEL is a name or folder that transformers can load, with its tokenizer; without it a small model
with random weights is made.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import foveal.transformers

foveal.transformers.register()


def load(name):
    """A model, prompts of different lengths, padded on the left, and how to print tokens."""
    if name is None:
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2))
        mask = (torch.arange(12) >= torch.tensor([0, 5])[:, None]).long()
        ids = torch.randint(1, 128, mask.shape) * mask
        return model, dict(input_ids=ids, attention_mask=mask), lambda tokens: tokens.tolist()
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    inputs = tokenizer(["Attention is", "The eye moves, and what it looks at"],
                       return_tensors="pt", padding=True)
    return (AutoModelForCausalLM.from_pretrained(name), inputs,
            lambda tokens: tokenizer.batch_decode(tokens, skip_special_tokens=True))


def main(name=None):
    model, inputs, text = load(name)
    results = {}
    for implementation in ("sdpa", "foveal"):
        model.set_attn_implementation(implementation)
        results[implementation] = model.generate(**inputs, do_sample=False, max_new_tokens=20,
                                                 pad_token_id=0)
    print(text(results["foveal"]))
    assert torch.equal(results["sdpa"], results["foveal"])
    print("the same tokens as with sdpa")


if __name__ == "__main__":
    main(*sys.argv[1:2])
