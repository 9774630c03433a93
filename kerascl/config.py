"""Every environment variable that kerascl reads: one place, one table.

| variable | default | meaning |
|---|---|---|
| KERASCL_DEVICE | strongest GPU, else CPU | device by index ("1"), kind ("gpu:0") or part of its name |
| KERASCL_CACHE_DIR | the platform's cache folder | where built programs and tuning records are kept; "" turns it off |
| KERASCL_PRECISION | high | float32 matrix work: "high" (matrix units allowed) or "highest" (true float32) |
| KERASCL_MEMORY_LIMIT | none | most device memory in MiB that kerascl may take |
| KERASCL_DEBUG | 0 | 1 prints each program built; 2 also its source; 3 waits after each launch; from 1 on, indices out of range raise IndexError, those of captured functions after the run; bodies of loops are not looked into |
| KERASCL_CHECK | 1 | 0 skips the check of a driver at its first use; so does 2, which also measures none of the device's rates (for processes that test a driver beside others) |
| KERASCL_CAPTURE | 1 | 0 runs train, test and predict steps eagerly |
| KERASCL_MATRIX | 1 | 0 leaves all matrix units aside, as if the device had none |
| KERASCL_WGMMA | 1 | 0 disables the kernels for NVIDIA's warpgroup matrix instructions |
| KERASCL_ADDRESSES | 1 | 0 always passes memory objects to kernels, even where plain addresses are faster (NVIDIA) |
| KERASCL_COPY_QUEUE | 1 | 0 copies the batches of captured steps in the order of all other commands, where they could travel beside the step before (GPUs with memory of their own) |
| KERASCL_SOLVERS | none | comma-separated name prefixes: matching solvers are preferred where they apply, or avoided with a leading minus (for comparisons) |
| KERASCL_RESIDENT | 1 | 0 never makes one launch of many in loops whose end depends on values (text generation), as is done where a self-test passes (NVIDIA) and of small launches on CPUs; 2 does so on any device by a single work-group (for tests); 3 chooses kernels as 1 does and launches each by itself, as `kerascl profile` wants |
| KERASCL_PIECE_BYTES | 1/32 of the device's memory | results of large products of which only losses, gradients and the like are made, row by row, are computed in pieces of about so many bytes, 24 at most, of 256 rows at least; 0 computes them at once |
| KERASCL_BUILD_THREADS | number of cores | threads that build OpenCL programs |
"""

import os


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {text!r}") from None


def device() -> str:
    """The device asked for, or ""."""
    return os.environ.get("KERASCL_DEVICE", "").strip()


def cache_dir() -> str | None:
    """The cache folder asked for; None means the platform's default, "" means no cache."""
    return os.environ.get("KERASCL_CACHE_DIR")


def set_cache_dir(folder: str) -> None:
    """Use another cache folder, in this process and those that it begins."""
    os.environ["KERASCL_CACHE_DIR"] = folder


def precision() -> str:
    """ "high" or "highest"."""
    text = os.environ.get("KERASCL_PRECISION", "high").strip().lower() or "high"
    if text not in ("high", "highest"):
        raise ValueError(f"KERASCL_PRECISION must be 'high' or 'highest', got {text!r}")
    return text


def memory_limit() -> int | None:
    """Most bytes of device memory to take, or None."""
    mib = _integer("KERASCL_MEMORY_LIMIT", 0)
    return mib * 2**20 if mib > 0 else None


def debug() -> int:
    """0 to 3; see the table above."""
    return _integer("KERASCL_DEBUG", 0)


def capture() -> bool:
    """Whether Keras' step functions are captured."""
    return _integer("KERASCL_CAPTURE", 1) != 0


def check() -> bool:
    """Whether a driver is checked at its first use."""
    return _integer("KERASCL_CHECK", 1) == 1


def measures() -> bool:
    """Whether the rates of a device are measured at its first use."""
    return _integer("KERASCL_CHECK", 1) != 2


def matrix() -> bool:
    """Whether matrix units may be used."""
    return _integer("KERASCL_MATRIX", 1) != 0


def wgmma() -> bool:
    """Whether kernels with warpgroup matrix instructions may be tried."""
    return _integer("KERASCL_WGMMA", 1) != 0


def addresses() -> int:
    """Device addresses as kernel arguments: 0 never, 1 where a self-test passes, 2 untested, 3 as 1
    where another process is about to keep the result."""
    return _integer("KERASCL_ADDRESSES", 1)


def copy_queue() -> bool:
    """Whether copies may have a queue of their own."""
    return _integer("KERASCL_COPY_QUEUE", 1) != 0


def resident() -> int:
    """Launches whose work-groups stay: 0 never, 1 where a self-test passes, 2 of one group, 3 as 1
    but each kernel of them by itself."""
    return _integer("KERASCL_RESIDENT", 1)


def solvers() -> tuple[str, ...]:
    """Prefixes of solver names that are preferred to cost models and tuning records."""
    return tuple(part for part in _solvers() if not part.startswith("-"))


def avoided_solvers() -> tuple[str, ...]:
    """Prefixes of solver names that are taken only where no other solver applies."""
    return tuple(part[1:] for part in _solvers() if part.startswith("-"))


def _solvers() -> list[str]:
    parts = os.environ.get("KERASCL_SOLVERS", "").split(",")
    return [part.strip() for part in parts if part.strip(" -")]


def piece_bytes() -> int | None:
    """Bytes of a piece of a large product that nobody wants whole; 0 for no pieces, None for a part
    of the device's memory."""
    nbytes = _integer("KERASCL_PIECE_BYTES", -1)
    return nbytes if nbytes >= 0 else None


def build_threads() -> int:
    """How many threads build programs."""
    return max(1, _integer("KERASCL_BUILD_THREADS", os.cpu_count() or 1))
