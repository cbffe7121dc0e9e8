"""Classes with a side: in the mirror, left and right change places, in truth, in what is known, and in --tta."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.folders import write_folder

from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import TrainingDataset
from inference.views import swap_sides
from runtime.errors import SettingsError
from tasks import task_of_model
from tasks.overlapping.target import OverlapTarget
from train_utils.dataset import load_dataset_info
from unet.config import Preprocess, UNetConfig

ORGANS = ("heart", "left_lung", "right_lung")


def write_organs(folder, organs=ORGANS):
    """Pictures with the same organs: a heart in the middle, and lungs of different height at its sides."""
    (folder / "images").mkdir(parents=True)
    boxes = {"heart": np.s_[8:16, 8:16], "left_lung": np.s_[2:12, 16:22], "right_lung": np.s_[4:20, 2:8]}
    for number in range(4):
        Image.new("L", (24, 24), 40 * number).save(folder / "images" / f"{number}.png")
        for organ in organs:
            mask = np.zeros((24, 24), np.uint8)
            mask[boxes[organ]] = 255
            (folder / "masks" / organ).mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(folder / "masks" / organ / f"{number}.png")
    return folder


def dataset_of(folder, **options):
    info = load_dataset_info(DataConfig(str(folder), augment="basic", val_fraction=0.25, **options))
    return info, TrainingDataset(info.train, info, Preprocess())


def test_a_mirrored_image_calls_its_left_lung_the_right_one(tmp_path):
    info, dataset = dataset_of(write_organs(tmp_path))
    assert info.reader.class_partners == (0, 2, 1)
    assert "in the mirror left_lung and right_lung change places" in info.warnings
    mirrorings = set()
    for epoch in range(12):
        _, target, augmentation, *_ = dataset[Slot(0, epoch, (24, 24))]
        columns = {}
        for bit, organ in enumerate(ORGANS):
            columns[organ] = int((target.truth >> bit & 1).sum(dim=1).max())
        mirrorings.add(augmentation.is_mirrored)
        # the image is mirrored later: until then, the lung that is 10 pixels high goes by the other one's name
        assert int((target.truth >> 1 & 1).sum()) == (96 if augmentation.is_mirrored else 60)
        assert columns["heart"] == 8
    assert mirrorings == {True, False}


def test_known_pixels_of_the_left_are_those_of_the_right_in_the_mirror(tmp_path):
    folder = write_organs(tmp_path)
    rows = [f"{number}.png,heart;left_lung" for number in range(4)]
    (folder / "images" / "classes.csv").write_text("\n".join(["image,classes", *rows]) + "\n")
    info, _ = dataset_of(folder)
    target = info.reader.mirror(OverlapTarget(np.array([[0b011]], np.int32), np.array([[0b011]], np.int32)))
    assert target.truth.tolist() == [[0b101]]
    assert target.known.tolist() == [[0b101]]


def test_pairs_that_names_do_not_say_are_named_by_swap(tmp_path):
    folder = write_organs(tmp_path)
    reader = load_dataset_info(DataConfig(str(folder), swap="heart=left_lung")).reader
    assert reader.class_partners == (1, 0, 2)
    assert load_dataset_info(DataConfig(str(folder), swap="")).reader.class_partners == (0, 1, 2)


def test_swap_is_refused_where_classes_exclude_each_other(tmp_path):
    write_folder(tmp_path, 4, seed=0, size=(16, 24))
    with pytest.raises(SettingsError, match="--swap 0=7: for points and for classes that may overlap"):
        load_dataset_info(DataConfig(str(tmp_path), swap="0=7"))


def test_views_of_a_mirrored_image_are_given_back_their_names(tmp_path):
    info, _ = dataset_of(write_organs(tmp_path))
    task = info.reader.task("ce+dice", None)
    config = UNetConfig(num_classes=3, task=task.to_config(), preprocess=Preprocess(class_names=ORGANS))
    logits = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    assert swap_sides(task_of_model(config), logits).flatten().tolist() == [1, 3, 2]
