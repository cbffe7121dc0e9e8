"""Which validation images are shown, and how.

Module: train_utils/reporting/samples.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.reports import class_section

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRows, Metadata, Records
from runtime.errors import ImageError
from tasks.classes.reader import ClassReader
from tasks.classes.scores import ClassScores
from train_utils.reporting.samples import report_pictures, report_share, sample_panels, save_pictures


def data_set(images: int, dims: int = 2, bad: tuple[int, ...] = (), shape: tuple[int, int] = (4, 6)) -> DatasetInfo:
    """Grey images of which the n-th is n all over; their masks hold 0 and 1."""
    mask = np.zeros(shape, np.uint8)
    mask[:, 3:] = 1
    records = []
    for index in range(images):
        image = np.full(shape, index, np.uint8)
        records.append({"image": image, "target": Image.fromarray(mask), "name": f"i{index}"})
    listed_records = Records(ListRows(records))
    listed_records.metadata = Metadata(dims=dims)
    split = Split(listed_records, np.full((images, 2), shape), dict.fromkeys(bad, "cut"))
    reader = ClassReader(ClassMap(("a", "b"), (0, 1), None), class_pixels=(1, 1))
    config = DataConfig(on_bad_sample="skip")
    return DatasetInfo(config, split, split, reader, Normalization((1.0,), (1.0,), ("uint8",)))


@pytest.mark.parametrize(
    ("images", "dims", "processes", "takes_pictures", "share"),
    [
        (32, 2, 1, False, 24 / 32),
        (32, 2, 2, False, 24 / 16),
        (4, 3, 1, False, 1),
        (1, 2, 2, False, 1.5),
        (32, 2, 2, True, 24 / (16 + 12)),
        (3, 2, 2, True, 4.5 / (2 + 4.5)),
        (4, 3, 1, True, 4 / (4 + 2)),
    ],
)
def test_a_run_by_the_clock_knows_how_long_its_report_takes_beside_an_evaluation(
    images, dims, processes, takes_pictures, share
):
    assert report_share(data_set(images, dims), processes, takes_pictures=takes_pictures) == share


def predictor_of(broken: str = "", shape: tuple[int, int] = (4, 6)) -> SimpleNamespace:
    """A predictor of background that cannot read one image, and notes the names of the others."""
    predicted: list[str] = []

    def labels(source: object, name: str) -> np.ndarray:
        if name == broken:
            raise ImageError(f"{name}: cut")
        predicted.append(name)
        return np.zeros(shape, np.uint8)

    return SimpleNamespace(labels=labels, predicted=predicted)


@pytest.mark.parametrize(
    ("images", "dims", "shown"),
    [(22, 2, "i0 i3 i6 i9 i12 i15 i18 i21"), (3, 2, "i0 i1 i2"), (3, 3, "i0 i2")],
    ids=["eight of 22", "all of three", "two volumes"],
)
def test_pictures_are_spread_from_the_first_image_to_the_last(images, dims, shown):
    assert list(sample_panels(data_set(images, dims), predictor_of(), class_section("ab"))) == shown.split()


def scores_of(comparisons: list[float]) -> ClassScores:
    """The scores of images with these values of mean IoU."""
    return ClassScores("ab", torch.zeros(2, 2), torch.tensor(comparisons)[:, None])


def test_images_that_cannot_be_used_have_no_picture():
    assert list(sample_panels(data_set(4, bad=(0, 2)), predictor_of("i3"), class_section("ab"))) == ["i1"]


def test_pictures_of_large_images_are_reduced_to_1024_pixels():
    shape = (1500, 3072)
    panels = sample_panels(data_set(1, shape=shape), predictor_of(shape=shape), class_section("ab"))
    assert panels["i0"].shape == (500, 4 * 1024 + 3 * 2, 3)  # four pictures with lines between them


def test_an_image_that_cannot_be_read_ends_a_run_that_skips_none():
    info = replace(data_set(4), config=DataConfig(on_bad_sample="error"))
    with pytest.raises(ImageError, match="i1: cut"):
        sample_panels(info, predictor_of("i1"), class_section("ab"))
    with pytest.raises(ImageError, match="i1: cut"):
        report_pictures(info, predictor_of("i1"), class_section("ab"), scores_of([0.5] * 4))


@pytest.mark.parametrize(("more", "shown"), [(0, "5 3 0 4 1"), (4, "5 3 0 8 9 10 1")])
def test_the_worst_images_come_first_without_those_that_cannot_be_read(more, shown):
    comparisons = [0.5, 0.9, 0.1, 0.4, 0.8, 0.2, 0.0, 0.81, 0.82, 0.83, 0.84][: 7 + more]
    info = data_set(7 + more, bad=(2,))
    predictor = predictor_of("i6")
    panels, views = report_pictures(info, predictor, class_section("ab"), scores_of(comparisons))
    assert len(predictor.predicted) == len(set(predictor.predicted))  # an image that is shown twice is predicted once
    assert set(panels) <= set(predictor.predicted)
    assert list(views) == [f"i{index}: mean IoU {comparisons[int(index)]:.4f}" for index in shown.split()]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sub/b.PNG", "sub/b.png"),
        ("a.tif", "a.png"),
        ("../c", "c.png"),
        ("/d.jpg", "d.png"),
        ("e" * 200 + "d" * 100, f"{'e' * 200}.png"),
        ("1.2.840", "1.2.840.png"),
        ("f\x1bg", "f\\x1bg.png"),
    ],
)
def test_a_picture_is_named_after_its_image_within_its_folder(tmp_path, name, file):
    save_pictures(tmp_path / "shown", {name: np.zeros((4, 6, 3), np.uint8)})
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.png")] == [Path("shown") / file]
