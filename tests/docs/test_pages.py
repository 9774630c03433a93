"""The Python of the documentation runs, and prints what the pages say.

The blocks of a page are one program.  A ```text block right after one holds what it prints, to
the letter.  A comment `<!-- not run: why -->` before a block keeps it from running; it must still
parse.  Blocks that import JAX are left out where it is not installed (.ci/run has it).
"""

import contextlib
import importlib.util
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(
    r"(?P<not_run><!-- not run: [^>]+ -->\n)?^```python\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
OPTIONAL = {"jax"}
PAGES = sorted(p for p in DOCS.rglob("*.md") if "```python" in p.read_text(encoding="utf-8"))


def blocks(page):
    """(line, code, expected output or None, whether it runs) of each block of Python."""
    text = page.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    assert len(found) == text.count("```python"), "a block that no test sees"
    for match in found:
        line = text[: match.start("code")].count("\n")
        yield line, match["code"], match["output"], not match["not_run"]


def needs(code):
    """Which of OPTIONAL a block imports that is not installed."""
    found = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    return [n for n in found if n in OPTIONAL and importlib.util.find_spec(n) is None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for line, code, output, runs in blocks(page):
        compiled = compile("\n" * line + code, str(page), "exec")
        if not runs or needs(code):
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compiled, namespace)
        if output is not None:
            assert printed.getvalue().rstrip() == output.rstrip(), f"{page.name}, line {line + 1}"
