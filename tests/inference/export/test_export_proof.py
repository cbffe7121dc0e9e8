"""The proof of an exported file: what it is checked on, and how far its answers may differ.

Module: inference/export/proof.py.
"""

import numpy as np
import pytest
import torch

from inference.export import proof
from runtime.errors import ModelError
from unet import Preprocess, UNetConfig


def test_images_of_a_proof_have_the_brightness_of_the_training():
    deep = Preprocess(mean=(30_000.0, 500.0), std=(100.0, 50.0), pixel_types=("uint16",))
    images = proof.images_of(UNetConfig(2, 2, preprocess=deep), (2, 97, 131))
    assert images.shape == (2, 2, 97, 131)
    assert images.mean(axis=(0, 2, 3)) == pytest.approx([30_000, 500], rel=0.1)
    assert 50 < images[:, 0].std() < 200
    assert 25 < images[:, 1].std() < 100


EXPECTED_LOGITS = [torch.full((1, 2, 4, 4), -10.0), torch.zeros(1, 2, 5, 6)]


MINUS_TEN, ZERO = (logits.numpy() for logits in EXPECTED_LOGITS)


def check_answers(answers: list[np.ndarray]) -> None:
    """Check the answers of a runtime, which fails once there are no more."""
    batches = [np.zeros((1, 1, *logits.shape[2:])) for logits in EXPECTED_LOGITS]
    remaining = [*answers]

    def answer(images: np.ndarray) -> np.ndarray:
        if not remaining:
            raise RuntimeError("no such\nsize")
        return remaining.pop(0)

    proof.check_answers("onnxruntime", lambda: [answer], batches, EXPECTED_LOGITS, "; look")


def test_answers_may_differ_by_a_ten_thousandth_of_the_largest_logit():
    check_answers([MINUS_TEN + 0.0009, ZERO + 0.00009])


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ([MINUS_TEN, ZERO + 0.00012], r"answers differ from torch's by 1\.2e-04 at 5 x 6 pixels; look$"),
        ([MINUS_TEN - 0.0012, ZERO], r"answers differ from torch's by 1\.2e-04 at 4 x 4 pixels"),
        ([MINUS_TEN, ZERO * np.nan], "answers differ from torch's by nan at 5 x 6 pixels"),
        ([MINUS_TEN, ZERO[:, :1]], "answers differ from torch's by inf at 5 x 6 pixels"),
        ([MINUS_TEN], "onnxruntime cannot compute images of 5 x 6 pixels: no such size; look$"),
    ],
    ids=["small logits", "large logits", "no numbers", "a class too few", "one size"],
)
def test_answers_that_differ_or_are_missing_are_refused(answers, line):
    with pytest.raises(ModelError, match=line):
        check_answers(answers)
