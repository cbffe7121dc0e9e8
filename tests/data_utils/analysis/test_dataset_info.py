"""What is known of a data set before the first step: its sizes, bad samples, fingerprint and what its network is told.

Modules: data_utils/analysis/dataset_info.py, data_utils/analysis/inspection.py,
data_utils/analysis/inspect_record.py, data_utils/analysis/normalization.py,
data_utils/config.py, train_utils/dataset.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder, write_splits
from support.inspections import records_of
from support.volumes import write_msd

from data_utils.analysis.dataset_info import (
    DatasetInfo,
    Split,
    measure,
)
from data_utils.analysis.findings import OpenedData, examine
from data_utils.analysis.normalization import Normalization
from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Record, Records
from runtime.errors import DataError
from tasks.classes.reader import ClassReader
from train_utils.check_data import check_data
from unet.config import Preprocess


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_fingerprint_changes_with_files_that_change(tmp_path, split):
    write_splits(tmp_path, 6, 3)
    fingerprints = [load_info(tmp_path).fingerprint()]
    files = [tmp_path / split / kind / "cell_02.png" for kind in ("images", "masks")]
    for file in files:
        picture = Image.open(file)
        picture.crop((0, 0, picture.width - 1, picture.height)).save(file)
    fingerprints.append(load_info(tmp_path).fingerprint())
    for file in files:
        file.rename(file.with_name("cell_02a.png"))
    fingerprints.append(load_info(tmp_path).fingerprint())
    for file in files:
        file.with_name("cell_02a.png").unlink()
    fingerprints.append(load_info(tmp_path).fingerprint())
    assert len(set(fingerprints)) == 4
    assert load_info(tmp_path).fingerprint() == fingerprints[-1]


CLASSES = "0=ground,255=cell"


def write_values(file: Path, count: int, start: int) -> None:
    """A mask of `count` values from `start` on, besides 0."""
    mask = np.zeros((40, 56), np.uint16)
    mask.flat[:400] = np.arange(400) % count + start
    Image.fromarray(mask).save(file)


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_of_many_values_outside_the_classes_are_ignored_on_request(tmp_path, split):
    write_splits(tmp_path, 4, 4)
    write_values(tmp_path / split / "masks" / "cell_01.png", 400, 1000)
    write_values(tmp_path / split / "masks" / "cell_02.png", 200, 2000)
    info = load_info(tmp_path, classes=CLASSES, outside="ignore")
    assert info.train.bad == info.val.bad == {}
    assert check_data(DataConfig(str(tmp_path), classes=CLASSES, outside="ignore"))[1] == 0


PRETRAINED = Preprocess(
    mean=(1.0,) * 3,
    std=(2.0,) * 3,
    scale=0.25,
    draft=True,
    class_names=("a", "b", "c"),
    class_values=(1, 2, 3),
    ignore_value=9,
    joined_values=((4, 1),),
    outside_class=0,
)


def info_of(config: DataConfig, sizes: np.ndarray, spacings: np.ndarray | None = None) -> DatasetInfo:
    """A data set of training images or volumes of these sizes, and of one to validate on."""
    dims = sizes.shape[1]
    train = Split(records_of(len(sizes), dims=dims), sizes, spacings=spacings)
    val = Split(records_of(1, dims=dims), sizes[:1])
    reader = SimpleNamespace(to_preprocess=dict)
    return DatasetInfo(config, train, val, reader, Normalization((7.0,), (2.0,), ("uint8",)))


@pytest.mark.parametrize(
    ("preprocess", "size"),
    [
        (Preprocess(), (30, 40)),
        (Preprocess(scale=0.5), (15, 20)),
        (Preprocess(image_size=(7, 8)), (7, 8)),
    ],
    ids=["whole", "scale", "image size"],
)
def test_the_usual_size_of_images_is_the_median_at_which_the_network_sees_them(preprocess, size):
    sizes = np.array([(10, 200), (30, 40), (50, 10)])
    info = info_of(DataConfig(image_size=(5, 6), crop_size=(3, 4)), sizes)
    assert info.usual_size(preprocess) == size


def test_a_network_of_volumes_is_told_of_their_spacing_unless_it_has_one():
    spacings = np.array([(4.0, 1.0, 1.0), (2.0, 1.0, 2.0), (2.0, 1.0, 1.0)])
    info = info_of(DataConfig(), np.array([(10, 20, 30), (10, 20, 30), (40, 20, 30)]), spacings)
    assert info.preprocess().spacing == (2, 1, 1)
    assert info.preprocess(Preprocess(spacing=(3.0, 3.0, 3.0))).spacing == (3, 3, 3)
    assert info.usual_size(Preprocess(spacing=(2.0, 0.5, 1.0))) == (20, 40, 30)


def test_volumes_are_cropped_around_what_is_not_background(tmp_path):
    info = load_info(write_msd(tmp_path, cases=3, shape=(6, 7, 8)), crop_size=(4, 4, 4))
    names = info.reader.class_map.names
    assert info.train.class_locations
    for locations in info.train.class_locations.values():
        assert 0 < len(locations) < len(names)


class Stream(Records):
    """Images with these masks in groups of these sizes, and the indices of those that were read."""

    def __init__(self, group_sizes: list[int], mask: np.ndarray) -> None:
        super().__init__(ListRows([{"image": mask, "target": mask, "name": "a"}] * sum(group_sizes)))
        self.rows.group_sizes = np.array(group_sizes)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Record:
        self.read.append(index)
        return super().__getitem__(index)


def test_at_least_128_images_of_a_stream_are_measured_as_many_of_each_group():
    stream = Stream([60, 50, 70], np.eye(2, dtype=np.uint8))
    config = DataConfig(task="classes", image_size=(8, 8))
    measure(examine(OpenedData(stream, stream, config, ClassReader, ((0, "a"), (1, "b")))))
    counts, _ = np.histogram(stream.read, [0, 60, 110, 180])
    assert counts.tolist() == [43, 43, 43]


def test_records_that_do_not_tell_when_they_change_are_looked_at_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for side in (4, 6):
        image, mask = np.full((side, side), side, np.uint8), np.eye(side, dtype=np.uint8)
        records = Records(ListRows([{"image": image, "target": mask, "name": "a"}] * 4))  # they have no key
        info = measure(examine(OpenedData(records, records, DataConfig(task="classes"), ClassReader)))
    assert info.train.sizes.tolist() == [[6, 6]] * 4
    assert info.normalization.mean == (6,)


def test_a_network_is_told_of_the_data_set_and_a_pretrained_one_keeps_its_normalization(tmp_path):
    small = load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), scale=0.5)
    own = small.preprocess()
    assert (own.mean, own.scale) == (small.normalization.mean, 0.5)
    assert (own.draft, own.turned, own.spacing) == (False, False, None)
    theirs = small.preprocess(PRETRAINED)
    assert (theirs.mean, theirs.std, theirs.scale, theirs.draft) == ((1.0,) * 3, (2.0,) * 3, 0.5, True)
    for preprocess in (own, theirs):
        assert (preprocess.class_values, preprocess.ignore_value, preprocess.joined_values) == ((0, 255), None, ())
    without_classes = replace(small, reader=SimpleNamespace(to_preprocess=dict)).preprocess(PRETRAINED)
    assert (without_classes.class_names, without_classes.class_values) == ((), ())
    assert without_classes.outside_class is None
    assert replace(small, config=replace(small.config, augment="strong")).preprocess().turned


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_that_cannot_be_used_are_bad_samples_where_one_of_a_split_is_left(tmp_path, split):
    write_splits(tmp_path, 4, 4)
    for number in (1, 2):
        write_values(tmp_path / split / "masks" / f"cell_0{number}.png", 200, 1000 * number)
    (tmp_path / split / "masks" / "cell_03.png").write_bytes(b"x")
    assert sorted(getattr(load_info(tmp_path, classes=CLASSES, on_bad_sample="skip"), split).bad) == [1, 2, 3]
    line = r"^3 of 4 pairs cannot be used: cell_03\.png: mask cannot be read .*cell_01\.png: mask values 1000, "
    with pytest.raises(DataError, match=line):
        load_info(tmp_path, classes=CLASSES)
    report, problems = check_data(DataConfig(str(tmp_path), classes=CLASSES))
    assert problems == 3
    assert "  unknown mask value: 2" in report
    (tmp_path / split / "masks" / "cell_00.png").write_bytes(b"x")
    with pytest.raises(DataError, match="4 of 4 pairs cannot be used"):
        load_info(tmp_path, classes=CLASSES, on_bad_sample="skip")
