"""`python -m kerascl COMMAND`: check and measure devices, report on them, profile, tune, ONNX."""

from __future__ import annotations

import argparse
import sys

from kerascl.commands import bench, check, devices, onnx, profile, report, tune
from kerascl.runtime.tables import console

COMMANDS = {
    "devices": devices, "check": check, "bench": bench, "profile": profile, "tune": tune,
    "report": report, "onnx": onnx,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kerascl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        about = (module.__doc__ or "").partition("\n")[0]
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(
            name, help=about, description=module.__doc__, formatter_class=formatter
        )
        module.add_arguments(command)
    options = parser.parse_args(arguments)
    return COMMANDS[options.command].run(options, console())


if __name__ == "__main__":
    sys.exit(main())
