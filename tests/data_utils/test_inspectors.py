"""Looks at whole splits of images or volumes: settings of the other kind, values of all masks together."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import load_info, write_folder
from PIL import Image

from data_utils.analysis.check_data import check_data
from data_utils.analysis.inspect_volumes import VolumeInspection, VolumeSplitInspection
from data_utils.analysis.inspection import Problem, SplitInspection, pixels_by_labels, total_pixels
from data_utils.analysis.inspectors import ImageInspector, VolumeInspector, choose_inspector, inspect_split
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import DataError


def test_settings_of_the_other_kind_of_records_are_refused(tmp_path):
    images = ImageInspector(has_classes=True)
    volumes = VolumeInspector(has_classes=True)
    for config in (DataConfig(image_size=(8, 8)), DataConfig(scale=0.5)):
        images.check_settings(config)
        with pytest.raises(DataError, match="--image-size and --scale are for images"):
            volumes.check_settings(config)
    volumes.check_settings(DataConfig(normalization="ct"))
    for kind in ("ct", "z-score"):
        with pytest.raises(DataError, match=f"--normalization {kind} is for volumes, and the data are images"):
            images.check_settings(DataConfig(normalization=kind))
    with pytest.raises(DataError, match="--normalization ct is for volumes"):
        load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), normalization="ct")


def test_the_inspector_of_images_or_volumes_knows_whether_values_are_classes():
    for dims, kind in ((2, ImageInspector), (3, VolumeInspector)):
        for has_classes in (True, False):
            inspector = choose_inspector(SimpleNamespace(metadata=Metadata(), dims=dims), has_classes=has_classes)
            assert type(inspector) is kind
            assert inspector.has_classes is has_classes


def test_masks_of_few_values_may_hold_too_many_together_unless_classes_have_names():
    targets = [np.arange(first, first + 100, dtype=np.uint16)[None] for first in (0, 100, 200)]
    image = np.zeros((1, 100), np.uint8)
    records = ListRecords([{"image": image, "target": target, "name": str(i)} for i, target in enumerate(targets)])
    inspector = ImageInspector(has_classes=True)
    with pytest.raises(DataError, match="the masks up to 2 hold more than 255 values: 0, 1, 2"):
        inspect_split(records, "reading", inspector)
    inspection = inspect_split(records, "reading", inspector, has_names=True)
    assert len(total_pixels([(inspection, records)])) == 300
    unlimited = inspect_split(records, "reading", ImageInspector(has_classes=False))
    assert unlimited.members.tolist() == [0, 1, 2]


def test_what_images_are_labeled_for_is_kept_with_what_their_masks_hold():
    class Labeled(ListRecords):
        def labeled(self, i: int) -> tuple[str, ...] | None:
            return (None, ("a",), ("a", "b"), ("a",))[i]

    mask = np.array([[0, 1]], np.uint8)
    records = Labeled([{"image": mask, "target": mask, "name": str(number)} for number in range(4)])
    inspection = inspect_split(records, "reading", ImageInspector(has_classes=True))
    for each in (inspection, SplitInspection.from_json(inspection.to_json())):
        assert each.members.tolist() == [0, 1, 2, 1]
        assert [content.labeled_for for content in each.contents] == [None, ("a",), ("a", "b")]
        assert pixels_by_labels([(each, records)]) == {
            None: {0: 1, 1: 1},
            ("a",): {0: 2, 1: 2},
            ("a", "b"): {0: 1, 1: 1},
        }


def test_images_with_problems_are_not_measured_and_volumes_are_by_their_modality():
    images = [np.full((2, 2), value, np.uint8) for value in (3, 9, 5)]
    records = ListRecords([{"image": image, "target": image, "name": "a"} for image in images])
    inspection = SplitInspection.empty(3)
    inspection.exclude(1, Problem("unknown mask value", "a: is wrong"))
    inspector = ImageInspector(has_classes=True)
    assert inspector.normalization(records, inspection, DataConfig()).mean == (4,)
    volumes = VolumeSplitInspection.empty(1)
    values = np.float32([[1], [3]])
    size = (3, 4, 5)
    volumes.add(0, VolumeInspection(size, size, "uint8", "numbers", {0: 60}, spacing=(1, 1, 1), foreground=values))
    for modality, standardize in (("CT", False), ("MRI", True)):
        scans = SimpleNamespace(metadata=Metadata(modality=modality))
        normalization = VolumeInspector(has_classes=True).normalization(scans, volumes, DataConfig())
        assert normalization.standardize is standardize


def test_numbers_of_very_many_objects_are_no_problem(tmp_path):
    folder = write_folder(tmp_path, 4, seed=0)
    for file in (folder / "masks").iterdir():
        Image.fromarray(np.arange(40 * 56, dtype=np.uint16).reshape(40, 56) // 4).save(file)
    assert load_info(folder, task="objects").train.bad == {}
    assert check_data(DataConfig(str(folder), task="objects"))[1] == 0
