"""The facts of a data set that must be known before the first step, and the mistakes in it."""
