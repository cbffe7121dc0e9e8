"""Clocks of runs."""

from train_utils.schedule import Clock

NO_CLOCK = Clock()  # of a run whose steps are counted
