"""What fits into memory: estimates, trials before the first step, and smaller micro-batches after a shortage."""
