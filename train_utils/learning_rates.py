"""How the learning rate falls. A new schedule is an entry of SCHEDULES."""

import math


def cosine(progress: float) -> float:
    """Half a period of the cosine (Loshchilov & Hutter 2017, arXiv:1608.03983)."""
    return (1 + math.cos(math.pi * progress)) / 2


def poly(progress: float) -> float:
    """The power 0.9 of what is left (Chen et al. 2018, arXiv:1606.00915)."""
    return (1 - progress) ** 0.9


def constant(progress: float) -> float:
    """The peak, to the end."""
    return 1.0


# the share of the peak, for a progress from 0 at the end of the warm-up to 1 at the end of the run
SCHEDULES = {"cosine": cosine, "poly": poly, "constant": constant}


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int, schedule: str) -> float:
    """The rate of optimizer step `step` (from 0): linear warm-up, then one of SCHEDULES.

    The rate depends on the progress alone: no state needs to be saved, and no scheduler advances once for each process.
    In a run by the clock all numbers are milliseconds.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * SCHEDULES[schedule](progress)
