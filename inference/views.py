"""The turned and mirrored copies of an image that predictions average over, by themselves or with --tta."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from inference.tiling.resizing import Forward, strips_at_sizes
from runtime.device import full_precision, upload
from tasks.task import Task
from unet.config import UNetConfig


def predict_strips(
    forward: Forward, images: Tensor, sizes: Sequence[Sequence[int]], config: UNetConfig, task: Task
) -> Iterator[Iterator[Tensor]]:
    """`strips_at_sizes`, averaged over images and their mirror images if the task predicts so.

    The whole image is mirrored, not each of its tiles, so that tiles stay exact.
    """
    images_strips = strips_at_sizes(forward, images, sizes, config)
    if not task.averages_mirrored:
        yield from images_strips
        return
    mirrored_strips = strips_at_sizes(forward, images.flip(-1), sizes, config)
    for strips, mirrored in zip(images_strips, mirrored_strips, strict=True):
        pairs = zip(strips, (mirror_back(task, logits) for logits in mirrored), strict=True)
        yield (average(task, pair) for pair in pairs)


def average_views(network: nn.Module, batch: Tensor, task: Task) -> Tensor:
    """Logits of a batch, averaged over the views that the network was trained on.

    They are the eight flips and quarter turns of images, or the eight mirrorings of volumes; or two: the batch itself
    and its left-right mirror image.
    """
    turns: list[tuple[int, tuple[int, ...]]] = []  # the number of quarter turns, and the axes to mirror
    if not network.config.preprocess.turned:
        turns += [(0, ()), (0, (batch.ndim - 1,))]
    elif batch.ndim == 4:
        for turn in range(4):
            turns += [(turn, ()), (turn, (3,))]
    else:  # a volume is only mirrored: its axes may differ in spacing
        for count in range(4):
            turns += [(0, axes) for axes in combinations((2, 3, 4), count)]
    views = []
    for turn, axes in turns:
        is_mirrored = len(axes) % 2 == 1
        if is_mirrored and not task.mirrors:
            continue
        view = batch.rot90(turn, (2, 3)).flip(axes)
        logits = full_precision(network(view).flip(axes).rot90(-turn, (2, 3)))
        if is_mirrored:
            logits = swap_sides(task, logits)
        views.append(logits)
    return average(task, views)


def average(task: Task, logits: Sequence[Tensor]) -> Tensor:
    """The averaged logits of several networks or views, (B, outputs, *spatial) each."""
    return task.mean_of_views(logits) if len(logits) > 1 else logits[0]


def mirror_back(task: Task, logits: Tensor) -> Tensor:
    """Logits of the image itself, from logits of its left-right mirror image."""
    return swap_sides(task, logits.flip(-1))


def swap_sides(task: Task, logits: Tensor) -> Tensor:
    """Logits that were mirrored back, with outputs swapped whose meanings a mirror swaps."""
    if not task.partners:
        return logits
    return logits.index_select(1, upload(torch.tensor(task.partners), logits.device))
