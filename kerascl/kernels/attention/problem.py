"""What attention kernels solve, and the pieces of source they share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kerascl import philox
from kerascl.dtypes import DType, bfloat16, float16, float32
from kerascl.kernels.contract.plan import Arg, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, index_type

MOST_FEATURES = 256
MOST_BITS = 256 << 20  # bytes of what dropout keeps that one kernel may leave for others
DTYPES: tuple[DType, ...] = (float16, bfloat16, float32)
LOG2_E = math.log2(math.e)
# The logit of a hidden key: finite, so that rows without any visible key become uniform.
NEGATIVE = "-2.3819763e38f"


@dataclass(frozen=True)
class Tensor:
    """Memory of four dimensions: its dtype, strides in elements (0 repeats), index of its start."""

    dtype: DType
    strides: tuple[int, int, int, int]
    offset: int = 0


@dataclass(frozen=True)
class Dropout:
    """Probabilities that are dropped at random between the softmax and the values.

    Those that are kept, times `factor`, are those that kerascl/philox.py says of an array
    (batch, heads, length, source) and `limit`: what `kerascl.ops.random.dropout` draws for all
    probabilities lying in memory.  Both passes draw the numbers, but see `KeptProblem`.

    Attributes:
        limit: of the word; limit / 2**32 is the chance of being kept.
        factor: of the probabilities that are kept.
        step, offset: of the memory of the key's two words (uint32), in elements.
        first: the number of the first four probabilities, in fours.
    """

    limit: int
    factor: float
    step: int = 1
    offset: int = 0
    first: int = 0


@dataclass(frozen=True)
class AttentionProblem:
    """softmax(q @ k^T * scale + bias) @ v for each head, or its gradients.

    Attributes:
        batch, length, source, width, depth: batch entries, queries, keys, features of queries and
            keys, features of values.
        heads, groups: heads of the queries; neighbours share one of the `groups` heads of keys.
        scale: factor of the products.
        causal: key s is hidden from query t < s.
        dtype: of the results, which are contiguous: (batch, length, heads, depth); the gradients
            (batch, length, heads, width), (batch, source, groups, width or depth).
        q, k, v: (batch, length or source, heads or groups, features).
        bias, mask: (batch, heads, length, source), or None; the mask is bool, False hides.
        grad: the gradient of the result; the problem is the backward one if it is there.
        precision: of products of float32: "high" (TF32 or better) or "highest".
        dropout: what becomes of the probabilities, None where all are kept.
    """

    batch: int
    length: int
    source: int
    heads: int
    groups: int
    width: int
    depth: int
    scale: float
    causal: bool
    dtype: DType
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    mask: Tensor | None = None
    grad: Tensor | None = None
    precision: str = "high"
    dropout: Dropout | None = None

    @property
    def kept(self) -> bool:
        """Whether what dropout keeps lies in memory, a bit for each probability: `KeptProblem`."""
        return False

    @property
    def far(self) -> bool:
        """Whether counters of dropout's numbers need more than 32 bits."""
        if (drop := self.dropout) is None:
            return False
        rows = self.batch * self.heads * self.length
        counters = drop.first + rows * philox.groups(self.source)
        return counters * (1 if philox.coarse(drop.limit) else philox.FOUR) > 2**32

    @property
    def index(self) -> str:
        """The C type of element indices."""
        sizes = {
            "q": (self.batch, self.length, self.heads, self.width),
            "k": (self.batch, self.source, self.groups, self.width),
            "v": (self.batch, self.source, self.groups, self.depth),
            "grad": (self.batch, self.length, self.heads, self.depth),
            "bias": (self.batch, self.heads, self.length, self.source),
            "mask": (self.batch, self.heads, self.length, self.source),
        }
        largest = [0]
        for name, shape in sizes.items():
            tensor = getattr(self, name)
            if tensor is not None:
                steps = zip(shape, tensor.strides, strict=True)
                largest.append(tensor.offset + sum(n * abs(s) for n, s in steps))
        rows = max(self.length * self.heads, self.source * self.groups)
        # room for results padded to whole tiles
        largest.append(2 * self.batch * rows * (max(self.width, self.depth) + 64))
        return index_type(*largest)

    @property
    def usable(self) -> bool:
        """Whether the kernels of this folder take it."""
        sizes = (self.batch, self.length, self.source, self.heads, self.groups)
        features = (self.width, self.depth)
        return (
            self.dtype in DTYPES
            and min(*sizes, *features) > 0
            and max(features) <= MOST_FEATURES
            and (self.bias is None or self.bias.dtype in DTYPES)
        )

    @property
    def logits(self) -> float:
        """About how many logits are computed."""
        whole = self.batch * self.heads * self.length * self.source
        if self.causal and self.mask is None and self.length > 1:
            return whole * min(1.0, 0.5 * (self.length + 64) / self.source)
        return whole

    @property
    def products(self) -> float:
        """Multiply-adds of all matrix products; backwards the logits are computed again."""
        if self.grad is None:
            return self.logits * (self.width + self.depth)
        return self.logits * (3 * self.width + 2 * self.depth)

    @property
    def nbytes(self) -> int:
        """About those that are read and written, each once, or twice backwards."""
        rows = self.batch * self.heads * self.length * (self.width + self.depth)
        keys = self.batch * self.groups * self.source * (self.width + self.depth)
        return self.dtype.itemsize * (rows + keys) * (1 if self.grad is None else 2)


@dataclass(frozen=True)
class KeptProblem(AttentionProblem):
    """One with dropout whose forward pass also leaves in "kept" which probabilities are kept, and
    whose backward pass finds that in the slot behind its other inputs.

    It is uint32 (batch, heads, length, `kept_words`), key s at bit s % 32 of word s // 32.  Bits of
    keys behind the last, and of those that are hidden from a query, are of no meaning.
    """

    @property
    def kept(self) -> bool:
        return True


def kept_words(source: int) -> int:
    """Words of a row of what dropout keeps: those of whole tiles of keys, of 64 or 128."""
    return ceil_div(source, 128) * 4


def kept_bytes(p: AttentionProblem) -> int:
    """Bytes of what dropout keeps."""
    return 4 * p.batch * p.heads * p.length * kept_words(p.source)


def shared_defines(p: AttentionProblem) -> str:
    """The macros that every attention source reads."""
    names = dict(
        WIDTH=p.width, DEPTH=p.depth, CAUSAL=int(p.causal), HAS_BIAS=int(p.bias is not None),
        HAS_MASK=int(p.mask is not None), NEGATIVE=NEGATIVE, LOWEST="-3.4028235e38f",
        LOG2E=f"{LOG2_E:.9g}f", HAS_DROPOUT=int(p.dropout is not None), FAR=int(p.far),
    )  # fmt: skip
    generator = ""
    if p.dropout is not None:
        names |= dict(COARSE=int(philox.coarse(p.dropout.limit)))
        generator = philox.SOURCE
    return "".join(f"#define {k} {v}\n" for k, v in names.items()) + generator


def extra_refs(p: AttentionProblem, first: str) -> list[Arg]:
    """The buffers of bias, mask and dropout's key, in slots from `first` on."""
    present = [x for x in (p.bias, p.mask, p.dropout) if x is not None]
    return [Ref(chr(ord(first) + k)) for k in range(len(present))]


def extra_scalars(p: AttentionProblem) -> list[Arg]:
    """Start and strides of bias and mask, and what dropout needs."""
    present = [x for x in (p.bias, p.mask) if x is not None]
    found: list[Arg] = [Scalar(p.index, n) for x in present for n in (x.offset, *x.strides)]
    if (drop := p.dropout) is not None:
        found += [Scalar("int", drop.offset), Scalar("int", drop.step)]
        found += [Scalar("ulong", drop.first), Scalar("uint", drop.limit)]
        found += [Scalar("float", drop.factor)]
    return found


def prelude_types(p: AttentionProblem) -> dict[str, DType]:
    """dtypes for `solver.prelude`."""
    return {"ACC": float32} | ({} if p.bias is None else {"BIAS": p.bias.dtype})
