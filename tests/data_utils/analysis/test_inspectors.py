"""Looks at whole splits of images or volumes: settings of the other kind, values of all masks together."""

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder
from support.volumes import write_decathlon

from data_utils.analysis.inspection import SplitInspection, pixels_by_labels
from data_utils.analysis.inspectors import Inspector, inspect_split
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from runtime.errors import DataError
from train_utils.check_data import check_data


@pytest.mark.parametrize("settings", [{"image_size": (8, 8)}, {"scale": 0.5}], ids=["size", "scale"])
def test_sizes_of_images_are_refused_for_volumes(tmp_path, settings):
    with pytest.raises(DataError, match="--image-size and --scale are for images"):
        load_info(write_decathlon(tmp_path), val_fraction=0.25, **settings)


@pytest.mark.parametrize("kind", ["ct", "z-score"])
def test_normalizations_of_volumes_are_refused_for_images(tmp_path, kind):
    with pytest.raises(DataError, match=f"--normalization {kind} is for volumes, and the data are images"):
        load_info(write_folder(tmp_path, 2, seed=0), normalization=kind)


@pytest.fixture
def three_hundred_values():
    """Records of three masks of a hundred values each, all of which are different."""
    targets = [np.arange(first, first + 100, dtype=np.uint16)[None] for first in (0, 100, 200)]
    image = np.zeros((1, 100), np.uint8)
    return ListRecords([{"image": image, "target": target, "name": str(i)} for i, target in enumerate(targets)])


def test_masks_of_few_values_may_hold_too_many_together(three_hundred_values):
    with pytest.raises(DataError, match="the masks up to 2 hold more than 255 values: 0, 1, 2"):
        inspect_split(three_hundred_values, "reading", Inspector())


class LabeledRecords(ListRecords):
    """Four images, of which three are labeled for some classes."""

    def __init__(self) -> None:
        mask = np.array([[0, 1]], np.uint8)
        super().__init__([{"image": mask, "target": mask, "name": str(number)} for number in range(4)])

    def label_set(self, i: int) -> tuple[str, ...] | None:
        return (None, ("a",), ("a", "b"), ("a",))[i]


def check_labeled_pixels(inspection: SplitInspection) -> None:
    assert inspection.members.tolist() == [0, 1, 2, 1]
    assert [content.labeled_for for content in inspection.contents] == [None, ("a",), ("a", "b")]
    assert pixels_by_labels([(inspection, LabeledRecords())]) == {
        None: {0: 1, 1: 1},
        ("a",): {0: 2, 1: 2},
        ("a", "b"): {0: 1, 1: 1},
    }


def test_classes_that_images_are_labeled_for_survive_the_cache():
    inspection = inspect_split(LabeledRecords(), "reading", Inspector())
    check_labeled_pixels(SplitInspection.from_json(inspection.to_json()))


def test_numbers_of_very_many_objects_are_no_problem(tmp_path):
    folder = write_folder(tmp_path, 4, seed=0)
    for file in (folder / "masks").iterdir():
        Image.fromarray(np.arange(40 * 56, dtype=np.uint16).reshape(40, 56) // 4).save(file)
    assert load_info(folder, task="objects").train.bad == {}
    assert check_data(DataConfig(str(folder), task="objects"))[1] == 0
