"""Measurements of a run while it goes on: throughput, FLOPs, profiler traces, trackers."""
