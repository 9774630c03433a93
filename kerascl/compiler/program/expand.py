"""OpenCL C after its preprocessor: tokens without macros, which can be put beside other kernels'.

A translation unit's macros would meet those of the next; without them what is left is plain C.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_TOKEN = re.compile(
    r"""[A-Za-z_]\w*
    | \.?\d(?:[eEpP][+-]|[\w.])*
    | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
    | <<=|>>=|\.\.\.|\#\#|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\S""",
    re.VERBOSE,
)
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")


class Unsupported(ValueError):
    """Text that is left to the driver's own compiler."""


@dataclass(frozen=True)
class _Macro:
    params: tuple[str, ...] | None
    body: tuple[str, ...]


class _Token(NamedTuple):
    """A token, and the macros that it came from, which are not expanded in it again."""

    text: str
    hidden: frozenset[str] = frozenset()


def tokens(text: str) -> list[str]:
    """The tokens of a text without comments."""
    return _TOKEN.findall(text)


def is_word(token: str) -> bool:
    """Whether a token is an identifier or a keyword."""
    return _WORD.fullmatch(token) is not None


def expanded(source: str, options: Iterable[str]) -> list[str]:
    """The tokens of a translation unit after its preprocessor; a #pragma line is one token.

    Args:
        options: of the build; those that define macros are heeded.

    Raises:
        Unsupported: it asks for what only the driver knows.
    """
    unit = _Unit()
    for option in options:
        if option.startswith("-D"):
            name, _, value = option[2:].partition("=")
            unit.macros[name] = _Macro(None, tuple(tokens(value or "1")))
    text = _COMMENT.sub(lambda m: m.group(1) or " ", source.replace("\\\n", " "))
    for line in text.split("\n"):
        stripped = line.lstrip()
        if stripped.startswith("#"):
            unit.flush()
            unit.directive(stripped[1:].strip())
        elif unit.live:
            unit.pending.extend(tokens(line))
    unit.flush()
    return unit.out


class _Unit:
    def __init__(self) -> None:
        self.macros: dict[str, _Macro] = {}
        self.pending: list[str] = []
        self.out: list[str] = []
        # of each #if that is open: whether its branch is taken, whether one was, whether it may be
        self._open: list[tuple[bool, bool, bool]] = []

    @property
    def live(self) -> bool:
        """Whether the line at hand counts."""
        return all(taken for taken, _, _ in self._open)

    def flush(self) -> None:
        """Expand what came since the last directive."""
        if self.macros.keys().isdisjoint(self.pending):
            self.out.extend(self.pending)
        else:
            self.out.extend(t.text for t in self._expand([_Token(t) for t in self.pending]))
        self.pending = []

    def directive(self, line: str) -> None:
        """Obey a line; it begins behind its #."""
        name = line[: len(line) - len(line.lstrip("abcdefghijklmnopqrstuvwxyz"))]
        rest = line[len(name) :].strip()
        if name in ("if", "ifdef", "ifndef"):
            outer = self.live
            taken = outer and self._holds(name, rest)
            self._open.append((taken, taken, outer))
        elif name in ("elif", "else"):
            if not self._open:
                raise Unsupported(f"#{line}")
            _, done, outer = self._open.pop()
            taken = outer and not done and (name == "else" or self._holds("if", rest))
            self._open.append((taken, done or taken, outer))
        elif name == "endif":
            if not self._open:
                raise Unsupported(f"#{line}")
            self._open.pop()
        elif not self.live or not name:
            return
        elif name == "define":
            self._define(rest)
        elif name == "undef":
            self.macros.pop(rest.strip(), None)
        elif name == "pragma":
            self.out.append(f"#pragma {rest}")
        else:
            raise Unsupported(f"#{line}")

    def _define(self, rest: str) -> None:
        found = re.match(r"([A-Za-z_]\w*)(\(([^)]*)\))?(.*)", rest, re.DOTALL)
        if found is None:
            raise Unsupported(f"#define {rest}")
        params = None
        if found[2] is not None:
            params = tuple(p.strip() for p in found[3].split(",") if p.strip())
            if "..." in params:
                raise Unsupported(f"#define {rest}")
        self.macros[found[1]] = _Macro(params, tuple(tokens(found[4])))

    def _holds(self, name: str, rest: str) -> bool:
        if name != "if":
            word = rest.split()[0]
            self._known(word)
            return (word in self.macros) == (name == "ifdef")
        found: list[str] = []
        words = tokens(rest)
        at = 0
        while at < len(words):
            if words[at] == "defined":
                inner = words[at + 1] == "("
                word = words[at + 2] if inner else words[at + 1]
                self._known(word)
                found.append(str(int(word in self.macros)))
                at += 4 if inner else 2
            else:
                found.append(words[at])
                at += 1
        value = [t.text for t in self._expand([_Token(t) for t in found])]
        for word in value:
            if is_word(word):
                self._known(word)
        return constant(["0" if is_word(word) else word for word in value]) != 0

    def _known(self, word: str) -> None:
        """Compilers have macros of their own, of which nothing is known here."""
        own = word.startswith(("__", "cl_", "CL_")) and word != "__has_builtin"
        if own and word not in self.macros:
            raise Unsupported(f"a condition on {word}")

    def _expand(self, given: list[_Token]) -> list[_Token]:
        """Prosser's algorithm: macros within macros, each but once in what comes of it."""
        out: list[_Token] = []
        rest = given[::-1]
        while rest:
            token = rest.pop()
            macro = self.macros.get(token.text)
            if macro is None or token.text in token.hidden:
                out.append(token)
                continue
            hidden = token.hidden | {token.text}
            arguments: dict[str, list[_Token]] = {}
            if macro.params is not None:
                if not rest or rest[-1].text != "(":
                    out.append(token)
                    continue
                rest.pop()
                arguments = _arguments(token.text, macro.params, rest)
            rest.extend(reversed(self._substitute(macro, arguments, hidden)))
        return out

    def _substitute(
        self, macro: _Macro, arguments: Mapping[str, list[_Token]], hidden: frozenset[str]
    ) -> list[_Token]:
        out: list[_Token] = []
        body = macro.body
        whole: dict[str, list[_Token]] = {}
        at = 0
        while at < len(body):
            text = body[at]
            if text == "#" and macro.params is not None and body[at + 1] in arguments:
                said = " ".join(t.text for t in arguments[body[at + 1]])
                escaped = said.replace("\\", "\\\\").replace('"', '\\"')
                out.append(_Token(f'"{escaped}"'))
                at += 2
                continue
            if text == "##" and out and at + 1 < len(body):
                right = arguments.get(body[at + 1], [_Token(body[at + 1])])
                if right:
                    left = out.pop()
                    out.extend(_Token(t) for t in tokens(left.text + right[0].text))
                    out.extend(right[1:])
                at += 2
                continue
            if text in arguments:
                if at + 1 < len(body) and body[at + 1] == "##":
                    if not arguments[text]:  # nothing joined to what follows
                        out.append(_Token(""))
                    out.extend(arguments[text])
                else:
                    if text not in whole:
                        whole[text] = self._expand(list(arguments[text]))
                    out.extend(whole[text])
            else:
                out.append(_Token(text))
            at += 1
        return [
            _Token(text, own | hidden if own else hidden) for text, own in out if text
        ]


def _arguments(
    name: str, params: Sequence[str], rest: list[_Token]
) -> dict[str, list[_Token]]:
    """A macro call's arguments; takes them and the closing parenthesis off `rest`."""
    found: list[list[_Token]] = [[]]
    depth = 0
    while rest:
        token = rest.pop()
        if token.text == ")" and depth == 0:
            if not params and found == [[]]:
                return {}
            if len(found) != len(params):
                raise Unsupported(f"{name} takes {len(params)} arguments")
            return dict(zip(params, found, strict=True))
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    raise Unsupported(f"the arguments of {name} have no end")


_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")


def constant(words: Sequence[str], sizes: Mapping[str, int] | None = None) -> int:
    """The value of a constant expression over integers.

    Args:
        sizes: bytes of types, which `sizeof` then knows.

    Raises:
        Unsupported: it is none.
    """
    reader = _Constant(list(words), sizes or {})
    value = reader.ternary()
    if reader.at != len(reader.words):
        raise Unsupported(f"no constant: {' '.join(words)}")
    return value


class _Constant:
    def __init__(self, words: list[str], sizes: Mapping[str, int]) -> None:
        self.words, self.sizes, self.at = words, sizes, 0

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _take(self, wanted: str = "") -> str:
        word = self._peek()
        if not word or (wanted and word != wanted):
            raise Unsupported(f"no constant: {' '.join(self.words)}")
        self.at += 1
        return word

    def ternary(self) -> int:
        """condition ? one : other, or less."""
        value = self._level(0)
        if self._peek() != "?":
            return value
        self._take()
        one = self.ternary()
        self._take(":")
        other = self.ternary()
        return one if value else other

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._single()
        value = self._level(level + 1)
        while self._peek() in _LEVELS[level]:
            value = _apply(self._take(), value, self._level(level + 1))
        return value

    def _single(self) -> int:
        word = self._take()
        if word == "(":
            value = self.ternary()
            self._take(")")
            return value
        if word in ("!", "-", "+", "~"):
            value = self._single()
            return {"!": int(not value), "-": -value, "+": value, "~": ~value}[word]
        if word == "sizeof":
            self._take("(")
            size = self.sizes.get(self._take())
            self._take(")")
            if size is not None:
                return size
        found = _INTEGER.fullmatch(word)
        if found is None:
            raise Unsupported(f"no constant: {' '.join(self.words)}")
        digits = found[1]
        octal = len(digits) > 1 and digits.startswith("0") and digits.isdigit()
        return int(digits, 8 if octal else 0)


def _apply(operator: str, a: int, b: int) -> int:
    if operator in ("/", "%"):
        if b == 0:
            raise Unsupported("a division by zero")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operator == "/" else a - quotient * b
    return int(_BINARY[operator](a, b))


_BINARY: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: a != 0 or b != 0, "&&": lambda a, b: a != 0 and b != 0,
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
}  # fmt: skip
