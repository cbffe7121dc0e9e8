"""The parts of a training run beside the network and its data: checkpoints, memory, monitoring, reporting."""
