"""Runs that review masks: their data must be what they were, and volumes are read slice by slice.

Modules: train_utils/reporting/review/reviewed_run.py.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.reports import class_section
from support.volumes import RAS, write_nifti

from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import DataError
from train_utils.reporting.review import reviewed_run
from train_utils.reporting.review.reviewed_run import (
    ReviewedRun,
    open_reviewed_run,
    predicted_examples,
    predicted_slices,
)
from train_utils.settings.record import RunSettings

CPU = torch.device("cpu")
FINGERPRINT = "40 + 10 images (abc)"


@pytest.fixture
def recorded(monkeypatch) -> SimpleNamespace:
    """A run as it is recorded, `settings`, its data set as it is now, `info`, and what is opened: `data`, `models`."""
    settings = RunSettings(
        flags={"dataset": "photos", "val_fraction": 0.25, "unknown": 1},
        identity={"task": "classes", "data set": FINGERPRINT, "classes": ["a", "b"]},
    )
    info = SimpleNamespace(reader=SimpleNamespace(identity=("a", "b")), fingerprint=lambda: FINGERPRINT)
    data, models = [], []

    def load_dataset_info(config: DataConfig) -> SimpleNamespace:
        data.append((config.dataset, config.val_fraction))
        return info

    monkeypatch.setattr(reviewed_run, "read_settings", lambda folder: settings)
    monkeypatch.setattr(reviewed_run, "load_dataset_info", load_dataset_info)
    monkeypatch.setattr(reviewed_run.Predictor, "from_pretrained", lambda *arguments: models.append(arguments))
    return SimpleNamespace(settings=settings, info=info, data=data, models=models)


@pytest.mark.parametrize(("dataset", "path"), [(None, "photos"), ("elsewhere", "elsewhere")])
def test_a_run_is_opened_with_its_data_wherever_they_are_now(recorded, tmp_path, dataset, path):
    run = open_reviewed_run(tmp_path, dataset, CPU)
    assert run.name == str(tmp_path)
    assert run.info is recorded.info
    assert recorded.data == [(path, 0.25)]
    assert recorded.models == [(tmp_path / "model", CPU)]


def test_a_run_of_other_classes_is_refused(recorded, tmp_path):
    recorded.info.reader.identity = ("a", "c")
    with pytest.raises(DataError, match=r"^the masks have other classes now than in the run$"):
        open_reviewed_run(tmp_path, None, CPU)


@pytest.mark.parametrize("dataset", [None, "elsewhere"])
def test_a_run_of_other_images_is_refused(recorded, tmp_path, dataset):
    recorded.info.fingerprint = lambda: "39 + 10 images (abd)"
    with pytest.raises(DataError, match=r"^the data set has changed since the run") as error:
        open_reviewed_run(tmp_path, dataset, CPU)
    assert "it is 39 + 10 images (abd), and was 40 + 10 images (abc)" in str(error.value)


LABELS = np.arange(3 * 4 * 6).reshape(3, 4, 6) % 5


@pytest.fixture
def volume_slices(monkeypatch) -> SimpleNamespace:
    """The `slices` of a volume whose mask holds LABELS, and those that have been `predicted`."""
    record = {"image": "image", "target": "label", "name": "case"}
    opened = record, "header of image"
    reader = SimpleNamespace(
        shown_truth=lambda target: target + 5, read_volume=lambda *arguments: LABELS if arguments == opened else None
    )
    info = SimpleNamespace(reader=reader, val=SimpleNamespace(records=ListRecords([record], Metadata(dims=3))))
    monkeypatch.setattr(reviewed_run, "read_volume_header", lambda image, name: f"header of {image}")
    predicted = []

    def slices(image: str, name: str) -> Iterator[str]:
        for number in range(3):
            predicted.append(number)
            yield f"{name} {number}"

    run = ReviewedRun("run", info, SimpleNamespace(slices=slices))
    return SimpleNamespace(slices=predicted_slices(run, 0), predicted=predicted)


def test_slices_of_a_volume_are_looked_at_from_below_with_their_masks(volume_slices):
    probabilities, masks = zip(*volume_slices.slices, strict=True)
    assert probabilities == ("case 0", "case 1", "case 2")
    assert np.array_equal(np.stack(masks), LABELS + 5)


@pytest.fixture(
    params=[([1.0, 0.5, 3.0, 1.0], 1, 2), ([0.5, 1.0, 3.0, 1.0], 0, 2)],
    ids=["coarse rows", "coarse columns"],
)
def volume(request, tmp_path) -> SimpleNamespace:
    """A run of one volume whose voxels are longer along one axis of its slices: the run, voxels, axis, and factor."""
    sides, coarse_axis, factor = request.param
    voxels = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    labels = (voxels % 2).astype(np.uint8)
    affine = RAS @ np.diag(sides)
    image = VolumeFile((str(write_nifti(tmp_path / "image.nii", voxels, affine)),))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", labels, affine)),))
    records = ListRecords([{"image": image, "target": label, "name": "case"}], Metadata(dims=3))
    info = SimpleNamespace(reader=class_section("ab").reader, val=SimpleNamespace(records=records, bad={}))
    prediction = 1 - labels.transpose(2, 1, 0)
    run = ReviewedRun("run", info, SimpleNamespace(predict_rows=lambda source, name: prediction))
    return SimpleNamespace(run=run, slices=voxels.transpose(2, 1, 0), coarse_axis=coarse_axis, factor=factor)


@pytest.mark.parametrize(("place", "number"), [(0, 1), (1, 0)], ids=["upper", "lower"])
def test_slices_are_shown_as_radiologists_see_them_with_square_pixels(volume, place, number):
    example = predicted_examples(volume.run, 0, [1, 0])[place]
    shown = volume.slices[number].repeat(volume.factor, axis=volume.coarse_axis)[::-1, ::-1]
    assert example.name == f"slice {number}"
    assert np.array_equal(np.squeeze(example.image), shown)
    assert np.array_equal(example.truth, shown % 2)
    assert np.array_equal(example.pred, 1 - shown % 2)
