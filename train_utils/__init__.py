"""What a training run needs beside the network and its data: checkpoints, memory, monitoring, reporting."""
