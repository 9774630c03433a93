"""Elementwise operations and reductions of one's own, from expressions of OpenCL C.

They are operations like the built-in ones: they fuse with what stands around them, and serve
eagerly, in captured functions, under `grad` and `vmap`, on every device.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kerascl import dtypes
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.batch import note
from kerascl.core.context import current, device
from kerascl.core.op import REGISTRY, Kind, Op, ReductionSpec, register
from kerascl.core.tape import pause
from kerascl.core.types import Axes, Gradients, Outputs
from kerascl.dtypes import DType, DTypeLike, as_dtype
from kerascl.ops.declare import as_array, broadcast, cast_to, convert
from kerascl.ops.views import expand_to, reshape_to

# grad(g, y, *inputs): tuples g and y where there are several outputs.
Gradient: TypeAlias = Callable[..., Any]

_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\([^(){};]*\)\s*\{")
_NAMED = re.compile(
    r"#[ \t]*define[ \t]+(\w+)|__constant\s[^;=(]*?\b(\w+)\s*(?:\[[^;]*?)?="
    r"|\btypedef\b[^;]*?\b(\w+)\s*;"
)
_RESERVED = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else",
    "enum", "float", "for", "global", "goto", "half", "if", "inline", "int", "kernel", "local",
    "long", "private", "register", "restrict", "return", "short", "signed", "sizeof", "static",
    "struct", "switch", "typedef", "uchar", "uint", "ulong", "union", "unsigned", "ushort",
    "void", "volatile", "while", "bool", "T",
}  # fmt: skip


def identifiers(names: str | Sequence[str], what: str) -> tuple[str, ...]:
    """Names of parameters, from a list or from text with spaces or commas.

    Raises:
        ValueError: for what is no name in C, a word of the language, or there twice.
    """
    found = tuple(names.replace(",", " ").split() if isinstance(names, str) else names)
    for name in found:
        if not _WORD.fullmatch(name) or name in _RESERVED or name.startswith("kcl_"):
            raise ValueError(f"{what}: {name!r} cannot be the name of a parameter")
    if len(set(found)) < len(found) or not found:
        raise ValueError(f"{what}: parameters {found} must be at least one, and all different")
    return found


def note_gradient(
    name: str, grad: Gradient | None, inputs: tuple[Array, ...], outputs: Outputs
) -> None:
    """Record a derivative that a user gave, checked when it is used."""

    def vjp(g: Outputs, y: Outputs, *inputs: Array) -> Gradients:
        if grad is None:
            raise NotImplementedError(
                f"{name} has no gradient: give grad=, or keep it out with kerascl.stop_gradient"
            )
        found = grad(g, y, *inputs)
        several = tuple(found) if isinstance(found, list | tuple) else (found,)
        if len(several) != len(inputs):
            raise ValueError(
                f"{name}: grad gave {len(several)} gradients for {len(inputs)} inputs; it must "
                "give one for each, None where there is none"
            )
        return tuple([None if d is None else _fitted(name, d, x)
                      for d, x in zip(several, inputs, strict=True)])  # fmt: skip

    note(current.tapes, vjp, inputs, outputs)


def _fitted(name: str, d: ArrayLike, x: Array) -> Array:
    found = as_array(d)
    try:
        if rules.broadcast(found.shape, x.shape) != x.shape:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name}: grad gave a gradient of shape {found.shape} for an input of shape {x.shape}"
        ) from None
    return cast_to(expand_to(found, x.shape), x.dtype)


def lies_on(arrays: Sequence[Array]) -> Any:
    """The device that arrays lie on: the current one, for constants."""
    return next((x.device for x in arrays if x._node.device is not None), None) or device()


class Elementwise:
    """What `elementwise` gives: called with as many arrays as it has inputs."""

    def __init__(
        self,
        name: str,
        codes: tuple[str, ...],
        inputs: tuple[str, ...],
        helpers: str,
        grad: Gradient | None,
        dtype: DType | None,
        single: bool,
    ):
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"{name}({', '.join(inputs)}), made by kerascl.elementwise."
        self._codes = codes
        self._inputs = inputs
        self._helpers = helpers
        self._grad = grad
        self._dtype = dtype
        self._single = single
        told = repr((name, codes, inputs, helpers, None if dtype is None else dtype.name))
        self._digest = hashlib.sha256(told.encode()).hexdigest()[:12]
        self._ops: dict[tuple[DType, Any], list[tuple[Op, DType]]] = {}

    def __call__(self, *args: ArrayLike) -> Any:
        """The result for arrays that broadcast; a tuple for several expressions."""
        name = self.__name__
        if len(args) != len(self._inputs):
            raise TypeError(f"{name} takes {len(self._inputs)} arrays, got {len(args)}")
        arrays, common = convert(args)
        arrays, shape = broadcast(arrays)
        given = tuple([expand_to(x, shape) for x in arrays])
        with pause():
            ops = self.operations(common, lies_on(given))
            found = tuple([apply(op, given, (), shape, result) for op, result in ops])
        outputs = found[0] if self._single else found
        if current.tapes:
            note_gradient(name, self._grad, given, outputs)
        return outputs

    def __repr__(self) -> str:
        return f"<kerascl.elementwise {self.__name__}({', '.join(self._inputs)})>"

    def operations(self, common: DType, on: Any) -> list[tuple[Op, DType]]:
        """The operations for inputs of one dtype, which the device's compiler has taken, and their
        dtypes."""
        ops = self._ops.get((common, on))
        if ops is None:
            ops = self._ops[common, on] = self._declare(common, on)
        return ops

    def _declare(self, common: DType, on: Any) -> list[tuple[Op, DType]]:
        result = self._dtype or common
        prefix = f"kcu_{self._digest}_{common.name}_"
        helpers, codes = _apart(self._helpers, self._codes, self._inputs, prefix)
        helpers = _typed(helpers, common.compute)
        names = [f"{prefix}{k}" for k in range(len(codes))]
        parameters = ", ".join(f"const {common.compute} {p}" for p in self._inputs)
        functions = [
            _function(f, _typed(code, common.compute), parameters, result)
            for f, code in zip(names, codes, strict=True)
        ]
        calls = ", ".join(f"kcl_p{k}" for k in range(len(self._inputs)))
        title = self.__name__
        trial = [_PRAGMA if common.is_double or result.is_double else "", dtypes.PRELUDE]
        trial += [f'#line 1 "{title} helpers"\n{helpers}\n']
        for k, text in enumerate(functions):
            part = title if self._single else f"{title} output {k}"
            trial.append(text.replace("\n", f'\n#line 1 "{part}"\n', 1))
        outs = "".join(f"  kcl_out[{k}] = {f}({calls});\n" for k, f in enumerate(names))
        given = ", ".join(f"{common.compute} kcl_p{k}" for k in range(len(self._inputs)))
        trial.append(
            f'#line 1 "kerascl"\n__kernel void kcl_trial(__global {result.compute}* kcl_out, '
            f"{given}) {{\n{outs}}}\n"
        )
        current.engine.check_source("".join(trial), "kcl_trial", title, on)
        own = tuple(h for h in (helpers and helpers + "\n",) if h)
        return [
            (_operation(f, (*own, text), len(self._inputs), self._codes[k]), result)
            for k, (f, text) in enumerate(zip(names, functions, strict=True))
        ]


_PRAGMA = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"


def _operation(function: str, helpers: tuple[str, ...], count: int, code: str) -> Op:
    known = REGISTRY.get(function)
    if known is not None:
        return known
    call = f"{function}({', '.join('{' + str(k) + '}' for k in range(count))})"
    # about what calls and operators cost: it decides what is computed twice rather than stored
    cost = 2 + 8 * code.count("(") + code.count("*") + code.count("/")
    return register(Op(function, Kind.POINTWISE, call, helpers, cost=cost))


def _function(name: str, code: str, parameters: str, result: DType) -> str:
    """A C function of an expression, or of statements that return; the code begins its second
    line."""
    head = f"inline {result.compute} {name}({parameters}) {{"
    if re.search(r"\breturn\b", code):
        if result.is_bool:
            raise ValueError("a bool result needs an expression, not statements")
        return f"{head}\n{code}\n}}\n"
    return f"{head} return (\n{code}\n){' != 0' if result.is_bool else ''}; }}\n"


def _typed(text: str, ctype: str) -> str:
    return re.sub(r"\bT\b", ctype, text)


def _apart(
    helpers: str, codes: tuple[str, ...], inputs: tuple[str, ...], prefix: str
) -> tuple[str, tuple[str, ...]]:
    """Helpers and code in which what the helpers define has names that nothing else has."""
    defined = {m.group(1) for m in _FUNCTION.finditer(helpers)} - _RESERVED
    defined |= {n for m in _NAMED.finditer(helpers) for n in m.groups() if n}
    defined -= set(inputs)
    if not defined:
        return helpers, codes
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, defined))) + r")\b")

    def renamed(text: str) -> str:
        return pattern.sub(lambda m: prefix + m.group(1), text)

    return renamed(helpers), tuple(map(renamed, codes))


def elementwise(
    name: str,
    code: str | Sequence[str],
    inputs: str | Sequence[str] = "x",
    *,
    grad: Gradient | None = None,
    helpers: str = "",
    dtype: DTypeLike | None = None,
) -> Elementwise:
    """An elementwise operation from an expression of OpenCL C.

    ```python
    softsign = kerascl.elementwise(
        "softsign", "x / (1 + fabs(x))", grad=lambda g, y, x: g / (1 + kerascl.abs(x)) ** 2
    )
    polar = kerascl.elementwise("polar", ("r * cos(t)", "r * sin(t)"), "r t")
    ```

    It fuses with what stands around it, and is compiled once, alone, at its first call for a dtype,
    so that errors name the lines of `code`.  Declaring it again, in a notebook's cell, is fine.

    Args:
        name: for messages and profiles.
        code: an expression over the inputs, or statements that `return`; several give several
            results.  `T` is the type that the inputs are computed in: their common dtype's, float
            for float16, bfloat16 and float8, int for bool.
        inputs: the parameters' names, as a list or with spaces between.
        grad: `grad(g, y, *inputs)`: the gradients of the inputs (one, or as many as there are
            inputs, None for none) as array code; g is that of the result y, tuples where there are
            several.  Without it, differentiating raises.
        helpers: C functions, macros and constants that `code` uses; no other operation sees them.
        dtype: of the results; by default the inputs' common dtype.

    Returns:
        A function of as many arrays, which broadcast and are promoted as everywhere.

    Raises:
        ValueError: for parameters that are no names; from a gradient, when `grad` gives too many or
            too few, or shapes that do not fit.
        TypeError: from the call, for another number of arrays.
        NotImplementedError: from a gradient, without `grad`.
        kerascl.CompileError: from the call, with the lines of `code` that do not compile.
    """
    single = isinstance(code, str)
    codes = (code,) if isinstance(code, str) else tuple(code)
    if not codes or not all(isinstance(c, str) and c.strip() for c in codes):
        raise ValueError(f"elementwise {name!r}: code must be an expression, or several")
    parameters = identifiers(inputs, f"elementwise {name!r}")
    chosen = None if dtype is None else as_dtype(dtype)
    return Elementwise(name, codes, parameters, helpers, grad, chosen, single)


class Reduction:
    """What `reduction` gives: called with its arrays, `axis` and `keepdims`."""

    def __init__(
        self,
        name: str,
        before: Elementwise | None,
        combine: Elementwise,
        op: Op,
        after: Elementwise | None,
        count: int,
        grad: Gradient | None,
    ):
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"{name}, a reduction over `axis`, made by kerascl.reduction."
        self._before, self._combine, self._op, self._after = before, combine, op, after
        self._count = count
        self._grad = grad

    def __call__(self, *args: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
        """The reduction of arrays that broadcast, over `axis` (None: all; an int or a tuple)."""
        if len(args) != self._count:
            raise TypeError(f"{self.__name__} takes {self._count} arrays, got {len(args)}")
        arrays, common = convert(args)
        arrays, shape = broadcast(arrays)
        given = tuple([expand_to(x, shape) for x in arrays])
        axes = rules.axes_tuple(axis, len(shape))
        kept = tuple([1 if a in axes else n for a, n in enumerate(shape)])
        with pause():
            self._combine.operations(common, lies_on(given))  # it must compile alone, too
            x = given[0] if self._before is None else self._before(*given)
            y: Array = apply(self._op, (x,), (axes,), kept, common) if axes else x
            y = y if self._after is None else self._after(y)
        if current.tapes:
            note_gradient(self.__name__, self._grad, given, y)
        if keepdims:
            return y
        return reshape_to(y, tuple([n for a, n in enumerate(shape) if a not in axes]))

    def __repr__(self) -> str:
        return f"<kerascl.reduction {self.__name__}>"


def _number(value: float) -> str:
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(value)


def reduction(
    name: str,
    map: str,
    combine: str,
    identity: float | int | str,
    finish: str | None = None,
    inputs: str | Sequence[str] = "x",
    *,
    grad: Gradient | None = None,
    helpers: str = "",
) -> Reduction:
    """A reduction from expressions of OpenCL C.

    ```python
    norm = kerascl.reduction(
        "norm", "x * x", "a + b", 0, "sqrt(a)", grad=lambda g, y, x: g * x / y
    )
    norm(x, axis=1)
    ```

    Elements are combined in an order that depends on the device, so `combine` must be associative
    and commutative.  float16, bfloat16 and float8 are reduced in float.

    Args:
        name: for messages and profiles.
        map: what to reduce: an expression over the inputs, as in `elementwise`.
        combine: an expression over `a` and `b`, two mapped or combined elements.
        identity: what changes nothing when combined: a number, or an expression such as "INFINITY".
        finish: an expression over `a`, the reduced value; by default that itself.
        inputs: the parameters' names; several arrays broadcast against each other.
        grad: `grad(g, y, *inputs)`, see `elementwise`; g and y keep the reduced axes with size 1.
        helpers: C functions that `map` and `finish` use.

    Returns:
        A function of the arrays, `axis=` and `keepdims=`, whose result has the inputs' dtype.

    Raises:
        ValueError, TypeError, NotImplementedError, kerascl.CompileError: as `elementwise`.
    """
    parameters = identifiers(inputs, f"reduction {name!r}")
    plain = len(parameters) == 1 and map.strip() == parameters[0]
    before = None if plain else elementwise(f"{name} map", map, parameters, helpers=helpers)
    after = None if finish is None else elementwise(f"{name} finish", finish, "a", helpers=helpers)
    words = {w for w in _WORD.findall(combine) if w not in {"a", "b"}}
    alone = elementwise(f"{name} combine", combine, "a b")
    start = identity if isinstance(identity, str) else _number(identity)
    told = hashlib.sha256(repr((name, combine, start)).encode()).hexdigest()[:12]

    def joined(other: str) -> str:
        places = {"a": "s0", "b": other}
        return "s0 = " + re.sub(r"\b[ab]\b", lambda m: places[m.group()], combine) + ";"

    def spec(dtype: DType) -> ReductionSpec:
        exact = dtype.is_integer or dtype.is_bool
        return ReductionSpec((("acc", start),), joined("x"), joined("t0"), block=0 if exact else 16)

    if words & {"s0", "t0", "x", "r"}:
        raise ValueError(f"reduction {name!r}: combine may name a and b only, and functions of C")
    key = f"kcu_{told}_reduction"
    op = REGISTRY.get(key) or register(Op(key, Kind.REDUCTION, reduction=spec))
    return Reduction(name, before, alone, op, after, len(parameters), grad)
