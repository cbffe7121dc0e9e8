"""The section of each task, and the examples that all sections take from volumes.

Modules: train_utils/reporting/sections.py, train_utils/reporting/section.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from support.volumes import RAS, write_nifti

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import read_volume
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.classes import ClassReader
from data_utils.targets.objects import ObjectReader
from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.reader import TargetReader
from data_utils.targets.regions import RegionReader
from data_utils.visualize_volumes import busiest_voxel, orthogonal_slices
from tasks.regions import Region
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.objects import ObjectSection
from train_utils.reporting.overlapping import OverlapSection, RegionSection
from train_utils.reporting.section import Example
from train_utils.reporting.sections import new_section


@pytest.mark.parametrize(
    ("task", "reader", "kind"),
    [
        ("classes", ClassReader(ClassMap(("a", "b"), (0, 1), None)), ClassSection),
        ("overlapping", OverlapReader(("a", "b")), OverlapSection),
        ("regions", RegionReader((Region("a", (1,)),)), RegionSection),
        ("objects", ObjectReader(), ObjectSection),
    ],
)
def test_each_task_has_its_section(task, reader, kind):
    assert type(new_section(SimpleNamespace(reader=reader, config=DataConfig("d", task=task)))) is kind


TWO_CLASSES = ClassReader(ClassMap(("a", "b"), (0, 1), 9))  # 9 is unknown


def volume_example(
    image: VolumeFile, label: VolumeFile, pred: np.ndarray, task: str = "classes", reader: TargetReader = TWO_CLASSES
) -> Example:
    """The example of a data set of one volume."""
    records = ListRecords([{"image": image, "target": label, "name": "case"}])
    records.metadata = Metadata(dims=3)
    split = Split(records, np.array([(4, 5, 6)]), spacings=np.ones((1, 3)))
    normalization = Normalization((1.0,), (1.0,), ("float32",))
    info = DatasetInfo(DataConfig("d", task=task), split, split, reader, normalization)
    return new_section(info).example(info, 0, SimpleNamespace(predict_rows=lambda source, name: pred))


def test_a_volume_is_shown_by_three_planes_where_its_mask_holds_most(tmp_path):
    spacing = (3.0, 1.0, 1.0)
    affine = RAS @ np.diag([1.0, 1.0, 3.0, 1.0])
    channels = np.random.default_rng(0).integers(0, 200, (2, 6, 5, 4)).astype(np.float32)
    labels = np.zeros((6, 5, 4), np.uint8)
    labels[4, 1:4, 1:3] = 1
    labels[0] = 9
    files = [write_nifti(tmp_path / f"image{number}.nii", voxels, affine) for number, voxels in enumerate(channels)]
    image = VolumeFile(tuple(map(str, files)))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", labels, affine)),))
    pred = np.arange(120).reshape(4, 5, 6) % 2
    example = volume_example(image, label, pred)
    stored, header = read_volume(image, "case")
    truth = np.where(labels == 9, 255, labels).transpose(2, 1, 0)
    center = busiest_voxel(truth)
    assert stored.shape == (4, 5, 6, 2)
    assert header.spacing == spacing
    assert example.name == "case"
    np.testing.assert_array_equal(example.image, orthogonal_slices(stored, center, spacing))
    np.testing.assert_array_equal(example.truth, orthogonal_slices(truth, center, spacing, fill=255))
    shown = orthogonal_slices(pred.astype(np.uint8), center, spacing, fill=255)
    np.testing.assert_array_equal(example.pred, shown)
    assert example.pred.dtype == example.truth.dtype
