"""The turned and mirrored copies of an image that --tta averages over."""

from itertools import combinations

from torch import Tensor, nn

from inference.decoding.decoder import Decoder
from inference.tiling.resizing import full_precision


def averaged_views(network: nn.Module, batch: Tensor, decoder: Decoder) -> Tensor:
    """Logits of a batch, averaged over the views that the network was trained on.

    They are the eight flips and quarter turns of images, or the eight mirrorings of volumes; or two, the batch as it is
    and mirrored left-right.
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
        if is_mirrored and not decoder.task.mirrors:
            continue
        view = batch.rot90(turn, (2, 3)).flip(axes)
        logits = full_precision(network(view).flip(axes).rot90(-turn, (2, 3)))
        if is_mirrored:
            logits = decoder.unmirrored(logits, dim=1)
        views.append(logits)
    return decoder.average(views, dim=1)
