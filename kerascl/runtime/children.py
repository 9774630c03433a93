"""Child processes of Python: they import what this process would import."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# kerascl's package stands there without what `import kerascl` loads, most of which compiles graphs:
# a second that whoever waits for a child would see.
_LIGHT = """
import sys, types
package = sys.modules["kerascl"] = types.ModuleType("kerascl")
package.__path__ = [{folder!r}]
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def light(module: str, *arguments: str) -> list[str]:
    """The command that runs a module that needs no more of kerascl than it imports."""
    text = _LIGHT.format(folder=str(Path(__file__).parents[1]), module=module)
    return [sys.executable, "-c", text, *arguments]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child, with variables besides this process' own.

    `python -c` and `python -m` look for modules in the current folder first, where another user
    (/tmp) may have put some; a child gets this process' path instead.
    """
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": path} | more


def testing(**more: str) -> dict[str, str]:
    """The environment of a child that tests a driver, with variables besides.

    It checks nothing at its own first use, and measures no rates: others use the device beside it.
    """
    return environment(KERASCL_CHECK="2", **more)
