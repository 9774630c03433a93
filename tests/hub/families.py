"""Tiny models of keras-hub's families, with weights that are the same under every backend."""

import zlib

import numpy as np

VOCABULARY, LENGTH, BATCH = 97, 24, 2
SAMPLERS = ("greedy", "beam", "contrastive")
PROMPTS = (5, 9)

_SIZES = dict(
    vocabulary_size=VOCABULARY, num_layers=2, hidden_dim=32, intermediate_dim=48, dropout=0.0
)
_GROUPED = dict(num_query_heads=4, num_key_value_heads=2)
_GEMMA = {**_SIZES, **_GROUPED, "head_dim": 8}

# name -> (the backbone's class, that of the task, and the configuration)
FAMILIES = {
    "GPT-2": (
        "GPT2Backbone",
        "GPT2CausalLM",
        {**_SIZES, "num_heads": 4, "max_sequence_length": LENGTH},
    ),
    "Llama 3": ("Llama3Backbone", "Llama3CausalLM", {**_SIZES, **_GROUPED}),
    "Gemma": ("GemmaBackbone", "GemmaCausalLM", _GEMMA),
    "Gemma 2": (
        "GemmaBackbone",
        "GemmaCausalLM",
        {
            **_GEMMA,
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
            "attention_logit_soft_cap": 50.0,
            "final_logit_soft_cap": 30.0,
            "use_sliding_window_attention": True,
            "sliding_window_size": 8,
        },
    ),
    "Gemma 3": (
        "Gemma3Backbone",
        "Gemma3CausalLM",
        {
            **_GEMMA,
            "image_size": 16,
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
            "use_sliding_window_attention": True,
            "sliding_window_size": 8,
        },
    ),
    "Mistral": ("MistralBackbone", "MistralCausalLM", {**_SIZES, **_GROUPED, "sliding_window": 8}),
    "Qwen 2": ("QwenBackbone", "QwenCausalLM", {**_SIZES, **_GROUPED}),
    "Qwen 3": ("Qwen3Backbone", "Qwen3CausalLM", {**_SIZES, **_GROUPED, "head_dim": 8}),
    "Phi 3": ("Phi3Backbone", "Phi3CausalLM", {**_SIZES, **_GROUPED}),
    "T5": ("T5Backbone", "T5Seq2SeqLM", {**_SIZES, "num_heads": 4}),
    "BART": (
        "BartBackbone",
        "BartSeq2SeqLM",
        {**_SIZES, "num_heads": 4, "max_sequence_length": LENGTH},
    ),
}


def model(name, dtype="float32", quantize="none"):
    """A model of a family, with weights of its own, of a policy of dtypes and perhaps quantised."""
    import keras
    import keras_hub

    backbone, task, sizes = FAMILIES[name]
    backbone = getattr(keras_hub.models, backbone)(**sizes, dtype=dtype)
    made = getattr(keras_hub.models, task)(backbone=backbone, preprocessor=None)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for weight in made.weights:
        # large enough that tokens differ clearly in probability
        values = rng.standard_normal(weight.shape) * (0.2 if len(weight.shape) > 1 else 0.1)
        if len(weight.shape) < 2:
            values += np.asarray(keras.ops.convert_to_numpy(weight), "float32")
        weight.assign(values)
    if quantize != "none":
        made.quantize(quantize)
    return made


def inputs(name, length, total=LENGTH, batch=BATCH):
    """Prompts of so many tokens; those of a batch differ by one token in length."""
    rng = np.random.default_rng(length)
    tokens = rng.integers(1, VOCABULARY, (batch, total)).astype("int32")
    mask = np.arange(total) < length + np.arange(batch)[:, None] % 2
    given = {"token_ids": np.where(mask, tokens, 0), "padding_mask": mask}
    if name == "Gemma 3":  # as its preprocessor gives text without images
        given["images"] = np.zeros((batch, 0, 16, 16, 3), "float32")
        given["vision_mask"] = np.zeros((batch, total), "int32")
        given["vision_indices"] = np.zeros((batch, 0), "int32")
    if "Seq2Seq" not in FAMILIES[name][1]:
        return given
    context = rng.integers(1, VOCABULARY, (batch, total)).astype("int32")
    return {
        "encoder_token_ids": context,
        "encoder_padding_mask": np.ones(context.shape, bool),
        "decoder_token_ids": given["token_ids"],
        "decoder_padding_mask": mask,
    }


def tokens_of(found):
    """The tokens that `generate` gave."""
    key = "token_ids" if "token_ids" in found else "decoder_token_ids"
    return np.asarray(found[key])
