"""Texts without what tells who wrote them: folders, user names, names of machines."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import kerascl

# Homes of any user, in the way of each system.
_HOMES = re.compile(r"(?:[A-Za-z]:)?[\\/]+(?:home|Users)[\\/]+[^\\/\s\"'<>|:]+")
# A user's or a machine's name may be a word that the text needs; one so short is left.
_LEAST = 3
_EVERYBODYS = {"root", "user", "admin", "administrator", "localhost", "runner"}


class Scrubber:
    """Takes this user's folders and names out of texts."""

    def __init__(self) -> None:
        package = Path(kerascl.__file__).resolve().parent.parent
        folders = {
            str(package): "<kerascl>", sys.prefix: "<python>", sys.base_prefix: "<python>",
            os.getcwd(): "<folder>", tempfile.gettempdir(): "<temporary>", str(Path.home()): "~",
        }  # fmt: skip
        # A folder's parts come before the folder; one near the root would take system paths along.
        self._folders = sorted(
            ((f, mark) for f, mark in folders.items() if len(Path(f).parts) > 1 and f != "/usr"),
            key=lambda pair: -len(pair[0]),
        )
        names = {platform.node(): "<machine>", platform.node().partition(".")[0]: "<machine>"}
        with contextlib.suppress(Exception):  # no name is known of some users
            names[getpass.getuser()] = "<user>"
        self._names = [
            (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), mark)
            for name, mark in names.items()
            if len(name) >= _LEAST and name.lower() not in _EVERYBODYS
        ]

    def text(self, text: str) -> str:
        """The text with marks in place of folders and names."""
        for folder, mark in self._folders:
            text = text.replace(folder, mark)
        text = _HOMES.sub("~", text)
        for name, mark in self._names:
            text = name.sub(mark, text)
        return text

    def everything(self, value: Any) -> Any:
        """The same of all texts in what JSON can hold; keys are the program's own."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.everything(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.everything(part) for part in value]
        return value
