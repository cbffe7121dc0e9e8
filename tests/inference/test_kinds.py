"""Masks and points have writers, scorers and truth of their own."""

from pathlib import Path

import pytest
from inference.kinds import new_output_kind
from inference.outputs.images import ImageWriter
from inference.outputs.jobs import MASK, OVERLAY
from inference.outputs.volumes import VolumeWriter
from inference.scoring.truth import ImageScorer
from inference.scoring.volume import VolumeScorer
from inference.true_masks import TruthFolder
from support.points import landmarks

from inference.outputs.objects import ObjectFormat
from inference.outputs.points import PointFormat, PointImageWriter, PointVolumeWriter
from inference.outputs.requested_outputs import RequestedOutputs
from inference.scoring.points import PointScorer, TruePoints
from tasks.objects import Objects

LANDMARKS = landmarks("long", "pixels")
POINTS = PointFormat(LANDMARKS)
CELLS = ObjectFormat(("nothing", "cell"))


def test_points_have_one_scorer_for_images_or_volumes():
    kind = new_output_kind(RequestedOutputs(POINTS, LANDMARKS, (".csv",), boundary=True))
    assert kind.image_scorer == PointScorer(LANDMARKS, ".csv")
    assert kind.volume_scorer == PointScorer(LANDMARKS, ".csv")


@pytest.mark.parametrize("has_boundary", [False, True])
def test_masks_have_a_scorer_for_images_beside_one_for_volumes(has_boundary):
    task = Objects()
    kind = new_output_kind(RequestedOutputs(CELLS, task, (MASK,), boundary=has_boundary))
    assert kind.image_scorer == ImageScorer(CELLS, task, has_boundary)
    assert kind.volume_scorer == VolumeScorer(CELLS, task, has_boundary)


def test_outputs_of_images_have_the_extensions_of_those_of_volumes():
    task = Objects()
    extensions = (MASK, OVERLAY)
    masks = new_output_kind(RequestedOutputs(CELLS, task, extensions))
    assert masks.image_writer == ImageWriter(CELLS, task, extensions)
    assert masks.volume_writer == VolumeWriter(CELLS, task, extensions)
    points = new_output_kind(RequestedOutputs(POINTS, LANDMARKS, extensions))
    assert points.image_writer == PointImageWriter(POINTS, LANDMARKS, extensions)
    assert points.volume_writer == PointVolumeWriter(POINTS, LANDMARKS, extensions)


@pytest.mark.parametrize("reads_places", [False, True])
def test_true_masks_of_a_folder_are_read_as_the_model_reads_its_own(reads_places):
    kind = new_output_kind(RequestedOutputs(CELLS, Objects(), (MASK,)))
    truth = kind.truth(Path("masks"), "_mask", reads_places=reads_places)
    assert truth == TruthFolder(Path("masks"), "_mask", object_classes=("cell",), reads_places=reads_places)


def test_the_truth_of_points_is_a_table():
    kind = new_output_kind(RequestedOutputs(POINTS, LANDMARKS, (".csv",)))
    assert kind.truth(Path("t.csv"), None, reads_places=False) == TruePoints(Path("t.csv"), LANDMARKS)
