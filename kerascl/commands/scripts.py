"""Running a user's script as `python script.py arguments` would."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def run_script(script: str, arguments: list[str]) -> int:
    """Run a script in this process as __main__; returns its exit status.

    Raises:
        FileNotFoundError: there is no such script.
    """
    path = Path(script)
    if not path.is_file():
        raise FileNotFoundError(f"there is no script {script}")
    argv, sys.argv = sys.argv, [script, *arguments]
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = argv
        sys.path.remove(str(path.parent))
    return 0
