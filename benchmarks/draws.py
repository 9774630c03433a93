"""What several draws of weights and inputs say of a network that validate.py compares.

Differences are relative norms by column: kerascl's (`found`) and those of PyTorch in float32
(`known`), both from PyTorch in float64.
"""

COLUMNS = ("outputs", "loss", "gradient", "worst", "steps")
_WORSE = 4  # times PyTorch's own difference in float32
_FLOOR = 2e-6  # float32's rounding after a network: no difference is asked to be smaller

Differences = dict[str, float]


def too_large(found: Differences, known: Differences) -> list[str]:
    """The columns in which kerascl is further off than rounding explains; NaN always is."""
    return [c for c in COLUMNS if not found[c] <= _WORSE * max(known[c], _FLOOR)]


def not_rounding(again: Differences, known: Differences) -> list[str]:
    """The columns in which two runs of one draw differ by more than another order of sums may."""
    return [c for c in COLUMNS if not again[c] <= max(known[c], _FLOOR)]


def judged(draws: list[dict]) -> dict:
    """The last draw, with what all say.

    Args:
        draws: of each "found", "known", what was too large ("bad"), and by how much a second run
            differed where that was too much ("unsteady").

    Returns:
        The last one's "found" and "known"; "bad", what was too large in all; "unsteady", the worst
        of all draws; "draws", how many; "earlier", the columns too large in the draws before, each
        with the worst [found, known].
    """
    bad = [c for c in COLUMNS if all(c in draw["bad"] for draw in draws)]
    unsteady: Differences = {}
    earlier: dict[str, list[float]] = {}
    for draw in draws:
        for column, value in draw["unsteady"].items():
            if not value <= unsteady.get(column, 0.0):  # NaN is the worst
                unsteady[column] = value
    for draw in draws[:-1]:
        for column in draw["bad"]:
            own = [draw["found"][column], draw["known"][column]]
            if column not in earlier or not own[0] <= earlier[column][0]:
                earlier[column] = own
    last = draws[-1]
    return {
        "found": last["found"], "known": last["known"], "bad": bad, "unsteady": unsteady,
        "draws": len(draws), "earlier": earlier,
    }  # fmt: skip


def earlier_text(row: dict) -> str:
    """The worst figures of earlier draws, as a cell of a table."""
    return ", ".join(f"{c} {own:.1e} ({known:.1e})" for c, (own, known) in row["earlier"].items())


def wrong_text(row: dict) -> str:
    """What makes a network fail, as a cell of a table; "" if nothing."""
    said = [", ".join(row["bad"])] if row["bad"] else []
    if row["unsteady"]:
        parts = ", ".join(f"{c} by {value:.1e}" for c, value in row["unsteady"].items())
        said.append(f"differs from run to run: {parts}")
    return "; ".join(said)
