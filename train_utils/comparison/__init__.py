"""The comparison of runs: which settings differ, and how far their scores are apart."""
