"""Measurements of a run while it goes on: the log, the speed of steps, a trace of some, trackers."""
