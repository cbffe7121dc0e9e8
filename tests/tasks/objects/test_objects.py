"""Objects: how deep pixels lie in them, the loss, and what a model keeps of the task.

Modules: tasks/objects/loss.py, tasks/objects/target.py.
"""

import numpy as np
import pytest
import torch
from support.objects import target_of

from tasks import task_of_model
from tasks.classes.loss import Classes
from tasks.classes.target import ClassTarget
from tasks.objects.loss import Objects
from tasks.objects.target import ObjectTarget, normalized_depth
from unet.config import UNetConfig

TASK = Objects(Classes(("background", "a", "b")), smallest=4, fills_holes=True)


def test_depth_falls_to_the_border_of_each_object_alike():
    ids = np.zeros((1, 20, 40), int)
    ids[0, 2:17, 2:17] = 5
    ids[0, 2:9, 17:24] = 7  # it touches the other one
    depth = normalized_depth(torch.from_numpy(ids), torch.ones(1, 20, 40, dtype=torch.bool))[0].numpy()
    assert depth[9, 9] == 1
    assert depth[5, 20] == 1
    assert depth[9, 2] == depth[9, 16] == pytest.approx(1 / 8, abs=0.06)
    assert depth[5, 17] == pytest.approx(1 / 4)
    assert (depth[ids[0] == 0] == 0).all()
    assert (depth[ids[0] > 0] > 0).all()


def test_depth_around_a_hole_grows_in_octagons():
    ids = torch.ones(1, 15, 15, dtype=torch.long)
    ids[0, 7, 7] = 0
    depth = normalized_depth(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    pixels = (depth / depth[7, 8]).round()[7:11, 7:11]  # the first one beside the hole is one pixel deep
    assert pixels.tolist() == [[0, 1, 2, 3], [1, 2, 3, 3], [2, 3, 3, 4], [3, 3, 4, 5]]


def test_unknown_pixels_do_not_end_an_object():
    ids = torch.ones(1, 8, 30, dtype=torch.long)
    is_known = torch.ones(1, 8, 30, dtype=torch.bool)
    is_known[:, :, 20:] = False
    ids[:, :, 20:] = 0
    depth = normalized_depth(ids, is_known)
    assert (depth[:, :, :20] == 1).all()
    assert (depth[:, :, 20:] == 0).all()
    assert torch.equal(normalized_depth(ids.flip(2), is_known.flip(2)), depth.flip(2))


def test_depth_of_a_volume_uses_all_axes():
    ids = torch.zeros(1, 9, 9, 9, dtype=torch.long)
    ids[0, 1:8, 1:8, 1:8] = 3
    depth = normalized_depth(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    assert depth[4, 4, 4] == 1
    assert depth[1, 4, 4] == depth[4, 4, 7] == 0.25


def test_depth_is_counted_up_to_twenty_pixels():
    ids = torch.zeros(1, 63, 63, dtype=torch.long)
    ids[0, 1:62, 1:62] = 1
    depth = normalized_depth(ids, torch.ones(1, 63, 63, dtype=torch.bool))[0, 31]
    assert depth[[0, 1, 10, 19, 20, 31]].tolist() == pytest.approx([0, 1 / 20, 10 / 20, 19 / 20, 1, 1])


PARTLY_KNOWN = target_of([[1, 1, 0, 0]], mask=[[1, 255, 0, 0]])


def test_the_host_reads_nothing_of_a_device_to_render_objects():
    device = torch.device("meta")  # it has no values: reading one raises
    assert Objects().render(Objects().unknown_batch((2, 6, 4), device)).depth.device == device


def test_depth_is_learned_where_pixels_are_known():
    task = Objects()
    target = target_of([[0, 0, 1, 1, 1]], mask=[[0, 0, 1, 1, 255]])
    rendered = task.render(target)
    logits = torch.randn(1, 3, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    depth = rendered.depth[0, 0].double()
    chance = logits[0, 2, 0].sigmoid()
    errors = -(depth * chance.log() + (1 - depth) * (1 - chance).log())
    assert depth.tolist() == [0, 0, 0.5, 1, 0]
    assert task.partial(logits, rendered)[-1].item() == pytest.approx(errors[:4].sum().item())
    assert task.counts(target)[-1] == 4


def test_classes_of_objects_are_learned_as_those_of_pixels():
    task = Objects()
    logits = torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = task.classes.partial(logits[:, :2], ClassTarget(PARTLY_KNOWN.mask.long()))
    for ours, theirs in zip(task.partial(logits, task.render(PARTLY_KNOWN))[:-1], expected, strict=True):
        assert torch.equal(ours, theirs)


def test_objects_of_a_crop_without_background_are_numbered_from_1():
    filled = ObjectTarget(np.ones((1, 2), np.uint8), np.array([[4, 9]], np.int32)).renumber()
    assert filled.ids.tolist() == [[1, 2]]


def test_a_model_of_an_earlier_version_fills_no_holes():
    earlier = {name: value for name, value in TASK.to_config().items() if name != "fills_holes"}
    restored = task_of_model(UNetConfig(num_classes=4, task=earlier))
    assert restored.to_config() == {**earlier, "fills_holes": False}
