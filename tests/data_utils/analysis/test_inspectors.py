"""Looks at whole splits of images or volumes: settings of the other kind, values of all masks together."""

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder

from data_utils.analysis.check_data import check_data
from data_utils.analysis.inspect_volumes import VolumeInspection, VolumeSplitInspection
from data_utils.analysis.inspection import Problem, SplitInspection, pixels_by_labels, total_pixels
from data_utils.analysis.inspectors import ImageInspector, VolumeInspector, choose_inspector, inspect_split
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import DataError


@pytest.mark.parametrize("config", [DataConfig(image_size=(8, 8)), DataConfig(scale=0.5)], ids=["size", "scale"])
def test_sizes_of_images_are_refused_for_volumes(config):
    ImageInspector(has_classes=True).check_settings(config)
    with pytest.raises(DataError, match="--image-size and --scale are for images"):
        VolumeInspector(has_classes=True).check_settings(config)


@pytest.mark.parametrize("kind", ["ct", "z-score"])
def test_normalizations_of_volumes_are_refused_for_images(kind):
    VolumeInspector(has_classes=True).check_settings(DataConfig(normalization=kind))
    with pytest.raises(DataError, match=f"--normalization {kind} is for volumes, and the data are images"):
        ImageInspector(has_classes=True).check_settings(DataConfig(normalization=kind))


def test_settings_are_checked_as_data_are_loaded(tmp_path):
    with pytest.raises(DataError, match="--normalization ct is for volumes"):
        load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), normalization="ct")


@pytest.mark.parametrize(("dims", "kind"), [(2, ImageInspector), (3, VolumeInspector)], ids=["images", "volumes"])
@pytest.mark.parametrize("has_classes", [True, False])
def test_the_inspector_of_images_or_volumes_knows_whether_values_are_classes(dims, kind, has_classes):
    records = ListRecords([], Metadata(dims=dims))
    inspector = choose_inspector(records, has_classes=has_classes)
    assert type(inspector) is kind
    assert inspector.has_classes is has_classes


@pytest.fixture
def three_hundred_values():
    """Records of three masks of a hundred values each, all of which are different."""
    targets = [np.arange(first, first + 100, dtype=np.uint16)[None] for first in (0, 100, 200)]
    image = np.zeros((1, 100), np.uint8)
    return ListRecords([{"image": image, "target": target, "name": str(i)} for i, target in enumerate(targets)])


def test_masks_of_few_values_may_hold_too_many_together(three_hundred_values):
    with pytest.raises(DataError, match="the masks up to 2 hold more than 255 values: 0, 1, 2"):
        inspect_split(three_hundred_values, "reading", ImageInspector(has_classes=True))


def test_values_may_be_many_where_classes_have_names(three_hundred_values):
    inspection = inspect_split(three_hundred_values, "reading", ImageInspector(has_classes=True), has_names=True)
    assert len(total_pixels([(inspection, three_hundred_values)])) == 300


def test_values_may_be_many_where_they_are_no_classes(three_hundred_values):
    inspection = inspect_split(three_hundred_values, "reading", ImageInspector(has_classes=False))
    assert inspection.members.tolist() == [0, 1, 2]


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


def test_pixels_of_masks_are_counted_by_the_classes_that_images_are_labeled_for():
    check_labeled_pixels(inspect_split(LabeledRecords(), "reading", ImageInspector(has_classes=True)))


def test_classes_that_images_are_labeled_for_survive_the_cache():
    inspection = inspect_split(LabeledRecords(), "reading", ImageInspector(has_classes=True))
    check_labeled_pixels(SplitInspection.from_json(inspection.to_json()))


def test_images_with_problems_are_not_measured():
    images = [np.full((2, 2), value, np.uint8) for value in (3, 9, 5)]
    records = ListRecords([{"image": image, "target": image, "name": "a"} for image in images])
    inspection = SplitInspection.empty(3)
    inspection.exclude(1, Problem("unknown mask value", "a: is wrong"))
    inspector = ImageInspector(has_classes=True)
    assert inspector.normalization(records, inspection, DataConfig()).mean == (4,)


@pytest.mark.parametrize(("modality", "standardize"), [("CT", False), ("MRI", True)])
def test_volumes_are_normalized_by_their_modality(modality, standardize):
    inspection = VolumeSplitInspection.empty(1)
    values = np.float32([[1], [3]])
    size = (3, 4, 5)
    inspection.add(0, VolumeInspection(size, size, "uint8", "numbers", {0: 60}, spacing=(1, 1, 1), foreground=values))
    records = ListRecords([], Metadata(modality=modality))
    normalization = VolumeInspector(has_classes=True).normalization(records, inspection, DataConfig())
    assert normalization.standardize is standardize


def test_numbers_of_very_many_objects_are_no_problem(tmp_path):
    folder = write_folder(tmp_path, 4, seed=0)
    for file in (folder / "masks").iterdir():
        Image.fromarray(np.arange(40 * 56, dtype=np.uint16).reshape(40, 56) // 4).save(file)
    assert load_info(folder, task="objects").train.bad == {}
    assert check_data(DataConfig(str(folder), task="objects"))[1] == 0
