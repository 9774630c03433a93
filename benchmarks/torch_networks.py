"""PyTorch's networks that benchmarks compare with: torchvision's, and others of small sizes."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VISION = (
    "alexnet", "resnet18", "resnet50", "vgg16", "densenet161", "googlenet", "squeezenet1_0",
    "inception_v3", "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_large",
    "mobilenet_v3_small", "resnext50_32x4d", "wide_resnet50_2", "mnasnet1_0", "efficientnet_b0",
    "efficientnet_b4", "regnet_y_400mf", "convnext_small", "vit_b_16",
)  # fmt: skip
OTHERS = ("bert", "gpt2", "llama", "whisper_encoder", "unet", "lstm", "gru")
_AUXILIARY = {"googlenet": {"aux_logits": False, "init_weights": False},
              "inception_v3": {"aux_logits": False, "init_weights": False}}  # fmt: skip
# torch.onnx exports adaptive pools only where their results divide their inputs: alexnet's of 6 x 6
# pixels and vgg16's of 7 x 7 are as large as those, with these images.
_SMALLEST = {"alexnet": 224, "vgg16": 224, "inception_v3": 96}
_LARGE_BATCH = 2  # of images that are larger than those asked for
_VOCABULARY, _LENGTH, _WIDTH, _FEATURES = 96, 24, 64, 16


def of_torchvision():
    """torchvision.models, also where its wheel was built for another torch.

    Then its own operators cannot be loaded. No network here has one, but two must be known.
    """
    names = ("nms", "qnms")
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in names:
            library.define(f"{name}() -> Tensor")
        import torchvision
    return torchvision.models


def build(name: str, size: int, classes: int = 10) -> nn.Module:
    """A network with random weights, and nothing that is left to chance."""
    network = vision(name, size, classes) if name in VISION else _MAKERS[name](classes)
    for part in network.modules():
        if isinstance(part, nn.Dropout) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0
    return network.requires_grad_(True)  # Whisper's positions else have no gradient


def vision(name: str, size: int, classes: int) -> nn.Module:
    """A network of torchvision's for images of `size` pixels along each side.

    vit_b_16's head is zero there at the start: its weights are drawn, so that its outputs differ.
    """
    options = dict(_AUXILIARY.get(name, {}))
    if name == "vit_b_16":
        options["image_size"] = size
    network = getattr(of_torchvision(), name)(weights=None, num_classes=classes, **options)
    if name == "vit_b_16":
        nn.init.normal_(network.heads.head.weight, std=network.heads.head.in_features**-0.5)
    return network


def images_of(name: str, size: int) -> int:
    """The pixels along each side that a network gets where `size` are asked for."""
    return max(size, _SMALLEST.get(name, 0))


def example(name: str, size: int, batch: int, rng: np.random.Generator) -> np.ndarray:
    """What a network takes: images, int64 tokens, or rows of features."""
    if name in VISION:
        side = images_of(name, size)
        batch = min(batch, _LARGE_BATCH) if side >= 2 * size else batch
        return rng.normal(size=(batch, 3, side, side)).astype(np.float32)
    if name in ("bert", "gpt2", "llama"):
        # without 0, BERT's padding: torch gives its embedding no gradient, a file does not say so
        return rng.integers(1, _VOCABULARY, (batch, _LENGTH))
    if name == "unet":
        return rng.normal(size=(batch, 3, 32, 32)).astype(np.float32)
    if name == "whisper_encoder":
        return rng.normal(size=(batch, _FEATURES, 2 * _LENGTH)).astype(np.float32)
    return rng.normal(size=(batch, _LENGTH, _FEATURES)).astype(np.float32)


class Classified(nn.Module):
    """A network of transformers, the mean of whose last states is classified."""

    def __init__(self, body: nn.Module, width: int, classes: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # tokens get a mask, without which transformers looks for packed sequences by an operator
        # that torch.onnx does not have
        known = {} if x.is_floating_point() else {"attention_mask": torch.ones_like(x)}
        return self.head(self.body(x, **known).last_hidden_state.mean(1))


def transformer(kind: str, classes: int, attention: str = "eager", **config) -> nn.Module:
    """A model of transformers by its name there, from a configuration."""
    of_torchvision()  # which transformers imports where it is installed
    import transformers

    made = getattr(transformers, f"{kind}Config")(**config, use_cache=False)
    made._attn_implementation = attention
    name = "WhisperEncoder" if kind == "Whisper" else f"{kind}Model"
    if kind == "Whisper":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder as model
    else:
        model = getattr(transformers, name)
    options = {"add_pooling_layer": False} if kind == "Bert" else {}
    width = next(getattr(made, k) for k in ("hidden_size", "d_model", "n_embd") if hasattr(made, k))
    return Classified(model(made, **options), width, classes)


def _bert(classes: int) -> nn.Module:
    return transformer(
        "Bert", classes, vocab_size=_VOCABULARY, hidden_size=_WIDTH, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=4 * _WIDTH, max_position_embeddings=_LENGTH,
    )  # fmt: skip


def _gpt2(classes: int) -> nn.Module:
    return transformer(
        "GPT2", classes, vocab_size=_VOCABULARY, n_embd=_WIDTH, n_layer=2, n_head=4,
        n_positions=_LENGTH,
    )  # fmt: skip


def _llama(classes: int) -> nn.Module:
    return transformer(
        "Llama", classes, vocab_size=_VOCABULARY, hidden_size=_WIDTH, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=3 * _WIDTH,
        max_position_embeddings=_LENGTH,
    )  # fmt: skip


def _whisper(classes: int) -> nn.Module:
    return transformer(
        "Whisper", classes, num_mel_bins=_FEATURES, d_model=_WIDTH, encoder_layers=2,
        encoder_attention_heads=4, encoder_ffn_dim=4 * _WIDTH, max_source_positions=_LENGTH,
    )  # fmt: skip


class Recurrent(nn.Module):
    """Two layers in both directions, and a classifier of the last step (`kind` of torch.nn)."""

    def __init__(self, kind: type[nn.Module], classes: int):
        super().__init__()
        self.body = kind(_FEATURES, _WIDTH, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * _WIDTH, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[0][:, -1])


class _Block(nn.Module):
    """Residual convolutions with group normalisation that are told the time step."""

    def __init__(self, given: int, width: int):
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, given), nn.GroupNorm(8, width)
        self.a, self.b = (
            nn.Conv2d(given, width, 3, padding=1),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.skip = nn.Conv2d(given, width, 1) if given != width else nn.Identity()
        self.time = nn.Linear(_WIDTH, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.a(F.silu(self.first(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.b(F.silu(self.second(y)))


class _Attention(nn.Module):
    """Attention of all pixels to all."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, 2)
        weights = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1)
        return x + self.out((weights @ v).transpose(1, 2).unflatten(2, (x.shape[2], x.shape[3])))


class UNet(nn.Module):
    """A U-Net of denoising diffusion (Ho, Jain and Abbeel, 2020) with one step down, and the noise
    that it predicts classified, so that it trains as the others do.

    The time step of each image is a number in [0, 1) made from the image.
    """

    def __init__(self, classes: int, width: int = 32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = _Block(width, width)
        self.smaller = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle, self.attention = _Block(2 * width, 2 * width), _Attention(2 * width)
        self.larger = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = _Block(2 * width, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)
        self.head = nn.Linear(3 * 32 * 32, classes)
        rates = torch.exp(-torch.arange(_WIDTH // 2) * 9.2 / (_WIDTH // 2))
        self.register_buffer("rates", rates)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.sigmoid(x.mean((1, 2, 3)))[:, None] * self.rates
        time = self.time(torch.cat([torch.sin(angles), torch.cos(angles)], 1))
        high = self.down(self.first(x), time)
        low = self.attention(self.middle(self.smaller(high), time))
        low = self.larger(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.head(self.last(self.up(torch.cat([low, high], 1), time)).flatten(1))


_MAKERS = {
    "bert": _bert, "gpt2": _gpt2, "llama": _llama, "whisper_encoder": _whisper, "unet": UNet,
    "lstm": lambda classes: Recurrent(nn.LSTM, classes),
    "gru": lambda classes: Recurrent(nn.GRU, classes),
}  # fmt: skip
