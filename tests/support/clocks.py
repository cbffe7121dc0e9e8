"""Clocks of runs."""

from train_utils.schedule import Clock

NO_CLOCK = Clock(None, None, 0.0)  # of a run whose steps are counted
