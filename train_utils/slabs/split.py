"""Volumes that several processes share: whether a network can be trained so, and what changes in it."""

from functools import partial

from accelerate import Accelerator

from runtime.errors import SettingsError
from runtime.launch import SHARDING
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.compilation import compiles
from train_utils.slabs.cut import Slabs
from train_utils.slabs.layers import cut_input, slab_layer
from train_utils.slabs.loss import SlabLoss
from train_utils.slabs.mesh import Mesh
from unet.model import UNet

FLAG = "--processes-per-volume"
FEWEST_STRIDES = 2  # least length of a slab at the lowest level: neighbors need a border slice, and norms two values


def check_slabs(accelerator: Accelerator, network: UNet, mesh: Mesh, shortest: int, sync_batchnorm: str) -> None:
    """Raise SettingsError if several processes cannot share a volume with this network.

    Args:
        shortest: the smallest first side of the training images at the network's input.
    """
    if mesh.size == 1:
        return
    config = network.config
    if config.encoder is not None:
        raise SettingsError(f"{FLAG} works with the plain U-Net only; give --encoder none")
    if accelerator.distributed_type in SHARDING:
        raise SettingsError(f"{FLAG} does not work with {accelerator.distributed_type.value}; use a profile of DDP")
    if compiles(accelerator):
        raise SettingsError(f"{FLAG} does not work with torch.compile; leave out --dynamo_backend")
    if config.upsample == "bilinear_aligned":
        raise SettingsError(f"{FLAG} does not work with --upsample bilinear_aligned, which looks at whole images")
    if sync_batchnorm == "off" and config.norm == "batch":
        raise SettingsError(f"{FLAG} needs batch norm over all slabs; leave out --sync-batchnorm off")
    divisor = config.divisors[0]
    fewest_slices = FEWEST_STRIDES * divisor * mesh.size
    if shortest < fewest_slices:
        raise SettingsError(
            f"{FLAG} {mesh.size} needs {fewest_slices} or more slices along the first axis,"
            f" {FEWEST_STRIDES * divisor} for each process, but training images have {shortest}; give a smaller number"
            " or a larger --crop-size"
        )


def split_volumes(network: UNet, task: Task, mesh: Mesh) -> StepLoss:
    """Let the processes of a group share each volume, and return the loss that goes with it.

    The network's layers are changed in place: on slabs they then compute what they would compute on whole volumes.
    """
    if mesh.size == 1:
        return StepLoss(task, network.head_strides)
    slabs = Slabs(mesh, network.config.divisors[0])
    for name, layer in list(network.named_modules()):
        changed = slab_layer(layer, slabs)
        if changed is not None:
            network.set_submodule(name, changed)
    network.register_forward_pre_hook(partial(cut_input, slabs))
    return SlabLoss(task, network.head_strides, slabs)
