"""`python -m kerascl.commands.reports.child PART`: one part of a report, in a process of its own.

The setting comes as JSON on standard input; what is found goes to standard output, a line each.
"""

from __future__ import annotations

import json
import os
import sys

from kerascl.commands.reports import checking, facts, networks, operations, rates, solvers
from kerascl.commands.reports.parts import Setting, serve
from kerascl.runtime import device as devices

ITEMS = {
    "facts": facts.items,
    "checks": checking.items,
    "rates": rates.items,
    "products": operations.products,
    "convolutions": operations.convolutions,
    "attention": operations.attention,
    "networks": networks.items,
    "solvers": solvers.items,
}


def main(part: str) -> None:
    """Run the part that has this name."""
    setting = Setting(**json.load(sys.stdin))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what drivers and Keras print is no answer

        def say(*words: object) -> None:
            print(json.dumps(words), file=answers, flush=True)

        if setting.device is not None:
            devices.set_default(str(setting.device))
        serve(ITEMS[part](setting), setting, say)


if __name__ == "__main__":
    main(sys.argv[1])
