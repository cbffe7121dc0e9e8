"""What compare.py says: which settings of runs differ, and how far their scores are apart."""
