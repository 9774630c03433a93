"""What MkDocs does not: pages of the API reference, and files outside docs/ that pages link to."""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"<code>(?:kc|kerascl)\.([\w.]+)(\(\))?</code>")
_anchors: dict[str, str] = {}


def on_files(files, config):
    """Add the reference, the project's own pages, and each file that a page links to."""
    made = []
    for name, title, text in reference.pages():
        files.append(File.generated(config, f"reference/{name}", content=text))
        made.append({title: f"reference/{name}"})
        for anchor in re.findall(r"\{ #kerascl\.([\w.]+) \}", text):
            _anchors[anchor] = f"reference/{name[:-3]}/#kerascl.{anchor}"
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = made
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{name}", content=text))
    for file in list(files):
        if file.is_documentation_page():
            for _, target, _ in _LINK.findall(file.content_string):
                path = _in_tree(file.src_uri, target)
                source = _on_site(path)
                if source.startswith("source/") and source not in files.src_uris:
                    if (ROOT / path).is_file():
                        data = (ROOT / path).read_bytes()
                        files.append(File.generated(config, source, content=data))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links that lead outside docs/ lead to the copies on the site."""

    def moved(match):
        target = _on_site(_in_tree(page.file.src_uri, match[2]))
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"{match[1]}{posixpath.relpath(target, here)}{match[3]}"

    return _LINK.sub(moved, markdown)


def on_page_content(html, page, config, files):
    """Names of the library in running text lead to the reference."""
    if page.file.src_uri.startswith("reference/"):
        return html

    def linked(match):
        anchor = _anchors.get(match[1])
        if anchor is None:
            return match[0]
        return f'<a href="{root}{anchor}">{match[0]}</a>'

    root = posixpath.relpath("/", "/" + page.url) + "/"
    # Not inside headings, whose text is in the table of contents, nor inside links.
    parts = re.split(r"(<h\d.*?</h\d>|<a .*?</a>|<pre.*?</pre>)", html, flags=re.DOTALL)
    return "".join(p if k % 2 else _CODE.sub(linked, p) for k, p in enumerate(parts))


def _in_tree(page: str, target: str) -> str:
    """The path in the project's tree that a page's link means."""
    home = "" if page.startswith("project/") else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(home, target))


def _on_site(path: str) -> str:
    """Where the site has a file of the project's tree."""
    if path in PAGES:
        return f"project/{path}"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}"
