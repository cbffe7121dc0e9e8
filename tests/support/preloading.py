"""What a forked process has imported before its script begins: the libraries and our own modules.

A script is read again in each process, as `__main__`.
"""

import gc
import importlib
import sys
from pathlib import Path

gc.disable()  # nothing of all this is garbage
sys.path.append(str(Path(__file__).parent.parent))

LIBRARIES = [
    "accelerate.commands.launch",
    "datasets",
    "matplotlib.pyplot",  # of tensorboard
    "matplotlib.backends.backend_agg",
    "nibabel",
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.ImageDraw",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "psutil",
    "pytest",  # of functions of tests that are called in processes
    "safetensors.torch",
    "scipy.ndimage",
    "tensorboard",
    "tifffile",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.multiprocessing",
    "torch.utils.flop_counter",
    "torch.utils.tensorboard",
    "torch.utils.tensorboard._pytorch_graph",
    "transformers",
]
SCRIPTS = ["train", "predict"]

for module in LIBRARIES + SCRIPTS:
    importlib.import_module(module)
gc.enable()
