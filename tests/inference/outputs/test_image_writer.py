"""Mask, overlay and probabilities of an image, strip by strip.

Modules: inference/outputs/images.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from inference.outputs.images import ImageWriter, PredictedImage, missing_reader
from inference.outputs.jobs import ImageJob
from PIL import Image

from data_utils.class_map import ClassMap
from data_utils.image_io.windowed import WindowedArray
from data_utils.visualize import to_rgb
from inference.decoding.decoder import Decoder
from inference.outputs import images
from inference.outputs.classes import ClassFormat
from tasks.classes import Classes

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)
TASK = Classes(CLASSES.names)


def test_mask_overlay_and_probabilities_of_an_image_are_written_strip_by_strip(tmp_path):
    output_format = ClassFormat(CLASSES)
    logits = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
    pixels = np.random.default_rng(0).integers(0, 60_000, (9, 6, 1)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", pixels[:, :, 0], photometric="minisblack")
    rows = logits.argmax(0).numpy().astype(np.uint8)
    taken = []
    sink = SimpleNamespace(add=lambda strip, missing, certainty: taken.append(strip))
    writer = ImageWriter(output_format, TASK, (".png", ".overlay.png", ".npy"))
    job = ImageJob(image=tmp_path / "a.tif", size=(9, 6), output=tmp_path / "out" / "a")
    writer.write(PredictedImage(job, (9, 6), WindowedArray(pixels)), logits.split(4, dim=1), sink)
    assert np.array_equal(np.asarray(Image.open(job.file(".png"))), np.uint8(CLASSES.values)[rows])
    assert np.array_equal(np.concatenate(taken), rows)
    assert [len(strip) for strip in taken] == [4, 4, 1]
    np.testing.assert_allclose(np.load(job.file(".npy")), logits.softmax(0).numpy(), rtol=1e-6)
    overlay = np.asarray(Image.open(job.file(".overlay.png")))
    strips = [slice(0, 4), slice(4, 8), slice(8, 9)]
    low, high = np.percentile(pixels, (1, 99))  # one brightness for all strips
    expected = [output_format.overlay(to_rgb(pixels[strip], (low, high)), rows[strip]) for strip in strips]
    assert np.array_equal(overlay, np.concatenate(expected))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.npy", "a.overlay.png", "a.png"]


class Repainted(ClassFormat):
    """Shows a prediction in other colors once it is read."""

    def for_prediction(self, decoder: Decoder) -> ClassFormat:
        return ClassFormat(ClassMap(CLASSES.names, ((1, 2, 3), (200, 30, 4), (5, 60, 200)), None))


def test_an_overlay_is_drawn_as_the_whole_prediction_asks_for(tmp_path):
    logits = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
    pixels = np.full((9, 6, 3), 90, np.uint8)
    job = ImageJob(image=tmp_path / "a.png", size=(9, 6), output=tmp_path / "out" / "a")
    writer = ImageWriter(Repainted(CLASSES), TASK, (".png", ".overlay.png"))
    writer.write(PredictedImage(job, (9, 6), WindowedArray(pixels)), [logits])
    repainted = Repainted(CLASSES).for_prediction(None)
    expected = repainted.overlay(pixels, logits.argmax(0).numpy().astype(np.uint8))
    assert np.array_equal(np.asarray(Image.open(job.file(".overlay.png"))), expected)


def test_the_brightness_of_an_overlay_is_that_of_rows_from_all_of_the_image(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "SAMPLED_ROWS", 2)
    pixels = np.arange(0, 4500, 500, dtype=np.uint16)[:, None, None].repeat(6, axis=1)
    job = ImageJob(image=tmp_path / "a.tif", size=(9, 6), output=tmp_path / "out" / "a")
    writer = ImageWriter(ClassFormat(CLASSES), TASK, (".png", ".overlay.png"))
    writer.write(PredictedImage(job, (9, 6), WindowedArray(pixels)), [torch.zeros(3, 9, 6)])
    overlay = np.asarray(Image.open(job.file(".overlay.png")))
    assert overlay[:, 0, 0].tolist() == pytest.approx(np.linspace(0, 255, 9), abs=1)


def test_an_overlay_of_real_numbers_is_equally_bright_in_all_strips(tmp_path):
    pixels = np.random.default_rng(0).random((9, 6, 1)).astype(np.float32) * np.arange(1, 10)[:, None, None]
    logits = torch.zeros(3, 9, 6)
    job = ImageJob(image=tmp_path / "a.npy", size=(9, 6), output=tmp_path / "out" / "sub" / "a")
    writer = ImageWriter(ClassFormat(CLASSES), TASK, (".png", ".overlay.png"))
    writer.write(PredictedImage(job, (9, 6), WindowedArray(pixels)), logits.split(2, dim=1))
    low, high = np.percentile(pixels, (1, 99))
    whole = to_rgb(pixels, (low, high))  # the first class is not drawn
    assert np.array_equal(np.asarray(Image.open(job.file(".overlay.png"))), whole)


def test_pixels_without_data_are_read_of_images_that_may_lack_some():
    holds_nothing = np.random.default_rng(0).random((9, 6, 1)) < 0.5
    pixels = np.ones((9, 6, 1), np.uint8)
    read_missing = missing_reader(WindowedArray(np.ma.array(pixels, mask=holds_nothing)))
    assert np.array_equal(read_missing(2, 5), holds_nothing[2:5, :, 0])
    assert missing_reader(WindowedArray(pixels)) is None
