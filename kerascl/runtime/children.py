"""Child processes of Python: they import what this process would import."""

from __future__ import annotations

import os
import sys


def environment(**more: str) -> dict[str, str]:
    """The environment of a child, with variables besides this process' own.

    `python -c` and `python -m` look for modules in the current folder first, where another user
    (/tmp) may have put some; a child gets this process' path instead.
    """
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": path} | more
