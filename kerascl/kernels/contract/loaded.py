"""Loads that are all under way before the first is waited for."""

# `KCL_LOADED` stands between loads and the block that uses them.  NVIDIA's assembler moves loads
# down to their uses and these up to the loads, and keeps as few under way as registers for most
# work-items allow: no load passes what has an effect on memory, and no use a branch of which it
# does not know the outcome.  Lanes that are elsewhere take no part.
LOADED = """\
#ifdef KCL_PTX
#define KCL_LOADED uint here_; asm volatile("activemask.b32 %0;" : "=r"(here_) :: "memory"); \\
  asm volatile("bar.warp.sync %0;" :: "r"(here_) : "memory"); if (here_)
#else
#define KCL_LOADED
#endif
"""
