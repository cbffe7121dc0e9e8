"""The views that --tta averages: mirrored where training has mirrored, turned where it has turned."""

import pytest
import torch
from torch import Tensor, nn

from inference.views import average_views, predict_strips
from tasks.classes.loss import Classes
from tasks.landmarks.loss import Landmarks
from unet.config import Preprocess, UNetConfig


class Seen(nn.Module):
    """A network whose logits are its input; it remembers the inputs."""

    def __init__(self, *, dims: int, turned: bool) -> None:
        super().__init__()
        self.config = UNetConfig(dims=dims, preprocess=Preprocess(turned=turned))
        self.inputs: list[Tensor] = []

    def forward(self, batch: Tensor) -> Tensor:
        self.inputs.append(batch)
        return batch


@pytest.mark.parametrize(
    ("shape", "turned", "mirrors"),
    [
        ((1, 2, 3, 4), False, [(), (3,)]),
        ((1, 2, 3, 4, 5), False, [(), (4,)]),
        ((1, 2, 3, 4, 5), True, [(), (2,), (3,), (4,), (2, 3), (2, 4), (3, 4), (2, 3, 4)]),
    ],
    ids=["image", "volume", "mirrored volume"],
)
def test_views_are_mirrored_along_these_axes(shape, turned, mirrors):
    batch = torch.randn(shape)
    network = Seen(dims=len(shape) - 2, turned=turned)
    logits = average_views(network, batch, Classes(("a", "b")))
    torch.testing.assert_close(logits.softmax(1), batch.softmax(1))
    assert len(network.inputs) == len(mirrors)
    for view, axes in zip(network.inputs, mirrors, strict=True):
        assert torch.equal(view, batch.flip(axes))


@pytest.mark.parametrize(("mirrors", "views"), [(True, 8), (False, 4)])
@pytest.mark.parametrize("shape", [(1, 2, 3, 4, 5), (1, 2, 3, 3)], ids=["volume", "image"])
def test_views_with_an_odd_number_of_mirrored_axes_swap_sides(shape, mirrors, views):
    """Where nothing mirrors, such views are left out."""
    batch = torch.randn(shape)
    network = Seen(dims=len(shape) - 2, turned=True)
    task = Landmarks(("left", "right"), partners=(1, 0), mirrors=mirrors)
    logits = average_views(network, batch, task)
    expected = (batch + batch[:, [1, 0]]) / 2 if mirrors else batch
    torch.testing.assert_close(logits, expected)
    assert len(network.inputs) == views


@pytest.mark.parametrize("task", [Classes(("a", "b", "c")), Landmarks(("left", "right", "tail"), partners=(1, 0, 2))])
def test_points_alone_are_read_from_the_mirror_image_too(task):
    logits = torch.randn(2, 3, 4, 5)
    images = predict_strips(lambda images: images, logits, [(4, 5)] * 2, UNetConfig(3, 3), task)
    averaged = torch.cat([torch.cat(list(strips), dim=2) for strips in images])
    expected = (logits + logits[:, [1, 0, 2]]) / 2 if task.name == "landmarks" else logits
    torch.testing.assert_close(averaged, expected)
