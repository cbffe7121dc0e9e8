"""Images that are labeled for some classes: what is unknown in them, what is drawn of them, and what is reported.

Modules: tasks/overlapping/reader.py.
"""

import numpy as np
import pytest
from support.data_sets import load_info
from support.overlaps import SIZE as OVERLAPS
from support.overlaps import write_overlaps
from support.partly_labeled import CLASSES, SIZE, banded_info, write_bands

from data_utils.analysis.content import content_key
from data_utils.config import DataConfig
from data_utils.loading.crops import crop_window
from data_utils.loading.dataset import TrainingDataset
from train_utils.check_data import check_data

BAND = SIZE[0] // 4 * SIZE[1]  # pixels of a class


@pytest.fixture(scope="module")
def twelve_images(tmp_path_factory):
    """Twelve images of four classes in bands; and those where a third is labeled for car, and a third not for it."""
    folder = write_bands(tmp_path_factory.mktemp("twelve"), [f"{i:02}" for i in range(12)])
    plain = banded_info(folder, crop_size=(4, 4))
    rows = [f"{i:02},{('car', 'dog;person', 'car;dog;person')[i % 3]}" for i in range(12)]
    (folder / "classes.csv").write_text("image,classes\n" + "\n".join(rows))
    return plain, banded_info(folder, crop_size=(4, 4))


@pytest.fixture(scope="module")
def car_sample(twelve_images):
    """The data set, its training images, and the index and the target of one that is labeled for car alone."""
    _, data = twelve_images
    dataset = TrainingDataset(data.train, data, data.preprocess())
    index = next(i for i in range(len(data.train)) if data.train.records.label_set(i) == ("car",))
    return data, dataset, index, dataset.load(index)[1]


def test_pixels_count_only_where_their_class_is_labeled_and_keys_change_with_the_labels(twelve_images):
    plain, data = twelve_images
    assert len(set(plain.reader.class_pixels)) == 1
    assert data.reader.class_pixels == (4 * BAND, 8 * BAND, 8 * BAND, 8 * BAND)
    assert data.reader != plain.reader
    assert content_key([plain.train.records]) != content_key([data.train.records])


def test_a_target_knows_the_class_that_its_image_is_labeled_for(car_sample):
    data, _, index, target = car_sample
    assert np.flatnonzero(data.reader.label_sets.flags[int(target.label_set)]).tolist() == [1]
    assert np.unique(data.reader.known_labels(target)).tolist() == [1, 255]
    window = data.reader.read(data.train.records[index], SIZE, window=((0, 4), (0, 4)))
    assert window.label_set == int(target.label_set)


def are_crops_chosen_among(labels: np.ndarray, car_sample: tuple) -> bool:
    """Whether crops of the sample are those that would be chosen among these labels."""
    _, dataset, index, target = car_sample
    for seed in range(20):
        window = dataset.choose_window(index, target, (4, 4), np.random.default_rng(seed))
        if crop_window(labels, 255, (4, 4), np.random.default_rng(seed)) != window:
            return False
    return True


def test_crops_are_chosen_among_the_classes_that_their_image_is_labeled_for(car_sample):
    data, _, _, target = car_sample
    assert are_crops_chosen_among(data.reader.known_labels(target), car_sample)
    assert not are_crops_chosen_among(target.mask, car_sample)


def test_an_image_that_is_labeled_for_nothing_is_unknown_and_warned_of(tmp_path):
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text("image,classes\na,\nb,car\nc,car;dog;person\n")
    info = banded_info(folder)
    is_unknown = {}
    for split in (info.train, info.val):
        for record in split.records:
            is_unknown[record["name"]] = bool((info.reader.read(record, SIZE).mask == 255).all())
    assert is_unknown == {"a.png": True, "b.png": False, "c.png": False}
    assert any(line.startswith("1 image is labeled for no class") for line in info.warnings)


def test_the_report_counts_images_that_are_labeled_for_each_class_and_names_what_to_check(tmp_path):
    write_bands(tmp_path / "train", ["a", "b", "c", "d"])
    write_bands(tmp_path / "val", ["e", "f"])
    (tmp_path / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,\ne,car\nf,car\n")
    report, problems = check_data(DataConfig(str(tmp_path), classes="0=background,1=car,2=dog", ignore_index="3"))
    assert problems == 0
    assert "images that are labeled for each class, of 6\n         1   16.667 %  background" in report
    assert "\n         4   66.667 %  car\n         2   33.333 %  dog\n" in report
    assert "to check: 1 image has no row in classes.csv, which means labeled for all classes: d.png" in report
    assert "to check: 1 image is labeled for no class, useless for training and scores: c.png" in report
    assert "to check: no validation image is labeled for dog, which cannot be scored" in report


def test_damaged_masks_are_not_counted_among_those_that_are_labeled(tmp_path):
    write_bands(tmp_path / "train", ["a", "b", "c", "d", "damaged"])
    write_bands(tmp_path / "val", ["e", "f"])
    table = "image,classes\na,car\nb,car\nc,car;dog;person\nd,\ndamaged,\n"
    (tmp_path / "train" / "classes.csv").write_text(table)
    for name in ("b", "damaged"):
        (tmp_path / "train" / "masks" / f"{name}.png").write_bytes(b"")
    report, _ = check_data(DataConfig(str(tmp_path), classes=CLASSES))
    assert "images that are labeled for each class, of 5\n         3   60.000 %  background\n" in report
    assert "to check: 1 image is labeled for no class, useless for training and scores: d.png" in report


def overlapping_targets(data) -> dict:
    """The targets of both splits by the names of their images."""
    targets = {}
    for split in (data.train, data.val):
        for record in split.records:
            targets[record["name"]] = data.reader.read(record, OVERLAPS)
    return targets


def test_classes_that_overlap_are_known_and_counted_where_an_image_is_labeled_for_them(tmp_path):
    """Six images of classes that overlap; and the same where every second is labeled for the first class alone."""
    write_overlaps(tmp_path, 6, seed=0)
    plain = load_info(tmp_path)
    first, second, third = plain.reader.class_names
    rows = [f"{number:02},{(f'{second};{third}', first)[number % 2]}" for number in range(6)]
    (tmp_path / "classes.csv").write_text("image,classes\n" + "\n".join(rows))
    data = load_info(tmp_path)
    whole_targets = overlapping_targets(plain)
    for name, target in overlapping_targets(data).items():
        bits = (0b110, 0b001)[int(name[:2]) % 2]
        assert (target.known == bits).all()
        assert (target.truth == whole_targets[name].truth & bits).all()
    pixels = np.zeros(3, int)
    for target in overlapping_targets(data).values():
        pixels += [(target.truth >> bit & 1).sum() for bit in range(3)]
    assert data.reader.class_pixels == tuple(pixels.tolist())
    assert data.reader.class_pixels != plain.reader.class_pixels
    assert data.reader.shares == pytest.approx(tuple(pixels / (3 * OVERLAPS[0] * OVERLAPS[1])))


def test_a_region_is_known_and_counted_where_an_image_is_labeled_for_all_of_it(tmp_path):
    """Three images of two regions: labeled for one class of the larger, for the smaller, and for both."""
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text("image,classes\na,1\nb,2;3\nc,1;2;3\n")
    data = load_info(folder, val_fraction=0.34, regions="whole=1+2+3;pets=2+3")
    known_bits = {}
    for split in (data.train, data.val):
        for record in split.records:
            known_bits[record["name"]] = set(np.unique(data.reader.read(record, SIZE).known).tolist())
    assert known_bits == {"a.png": {0}, "b.png": {2}, "c.png": {3}}
    assert data.reader.class_pixels == (3 * BAND, 2 * 2 * BAND)
