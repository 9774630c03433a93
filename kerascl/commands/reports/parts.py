"""What a report consists of: parts, each a list of items that can fail without each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

NAMED = 4  # items that are named where the time is up for more

Row = dict[str, Any]
Tell = Callable[[Row], None]
Say = Callable[..., None]


@dataclass(frozen=True)
class Item:
    """One thing to find out.

    Attributes:
        name: of it, in one line.
        run: called with what takes each row that it finds.  A row with a text in "wrong" says
            that the device computed something wrongly.
    """

    name: str
    run: Callable[[Tell], None]


@dataclass
class Setting:
    """What a part is told.

    Attributes:
        device: index in the order of `find_devices`, or None where there is none.
        quick: little of everything.
        seconds: after which a part begins no other item.
        first: number of the first item; those before were done by a process that died.
        problems: of the solvers to race, as `tuning.database.to_json` gives them.
    """

    device: int | None
    quick: bool = False
    seconds: float = 60.0
    first: int = 0
    problems: list[Row] = field(default_factory=list)


def serve(items: Iterable[Item], setting: Setting, say: Say) -> None:
    """Run items one after the other, and say what comes of each.

    `say` is called with ("items", count), ("begun", number, name), ("row", row), ("failed", text),
    ("left", count, names of the first of them) where the time is up, and ("done",).
    """
    begun, listed = time.monotonic(), list(items)
    say("items", len(listed))
    for number, item in enumerate(listed):
        if number < setting.first:
            continue
        if time.monotonic() - begun > setting.seconds:
            left = listed[number:]
            say("left", len(left), [item.name for item in left[:NAMED]])
            break
        say("begun", number, item.name)
        try:
            item.run(lambda row: say("row", row))
        except Exception as error:
            say("failed", said(error))
    say("done")


def said(error: BaseException) -> str:
    """An exception in a few lines: what it is, and the frames of ours that it came through."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "kerascl" in code.co_filename:
            file = "kerascl" + code.co_filename.rpartition("kerascl")[2].replace("\\", "/")
            frames.append(f"{file}:{trace.tb_lineno}")
        trace = trace.tb_next
    text = str(error).strip().replace("\r", "")
    if len(text) > 1500:  # a compiler's log: how it begins and ends
        text = f"{text[:1000]}\n…\n{text[-400:]}"
    text = f"{type(error).__name__}: {text}"
    return text + (f"\n(at {', '.join(frames[-3:])})" if frames else "")
