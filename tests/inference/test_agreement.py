"""How often masks agree with a model: learned from all areas of a review, by class, size and how sure the model is.

Module: inference/review/agreement.py.
"""

import math
import tracemalloc

import numpy as np
import pytest

from inference.review.agreement import Agreement
from inference.review.areas import IN_MASK, IN_PREDICTION, ComparedArea


def area_of(label: str, agrees: bool, pixels: int = 100, probability: float = 0.9, picture: str = IN_PREDICTION):
    return ComparedArea(picture, label, pixels, probability, agrees, None)


def test_masks_agree_by_class_and_picture_as_often_as_they_have_before():
    agreement = Agreement()
    numbers = {}
    for label, picture, share in (("car", IN_PREDICTION, 95), ("sign", IN_PREDICTION, 30), ("car", IN_MASK, 60)):
        for area in range(100):
            numbers[label, picture] = agreement.add(area_of(label, area < share, picture=picture))
    probabilities = agreement.probabilities()
    assert len(probabilities) == len(agreement) == 300
    assert probabilities[numbers["car", IN_PREDICTION]] == pytest.approx(0.95, abs=0.03)
    assert probabilities[numbers["sign", IN_PREDICTION]] == pytest.approx(0.30, abs=0.03)
    assert probabilities[numbers["car", IN_MASK]] == pytest.approx(0.60, abs=0.03)


def test_the_unit_of_a_size_says_nothing():
    """Three times the logarithm of all sizes is the same order and the same spread, but for its unit."""
    rng = np.random.default_rng(0)
    usual, cubed = Agreement(), Agreement()
    for _ in range(60):
        pixels, agrees = int(rng.integers(2, 100)), bool(rng.random() < 0.7)
        usual.add(area_of("car", agrees, pixels))
        cubed.add(area_of("car", agrees, pixels**3))
    assert usual.probabilities() == pytest.approx(cubed.probabilities(), abs=1e-3)


def test_an_area_takes_sixteen_bytes():
    area = area_of("car", True)
    agreement = Agreement()
    tracemalloc.start()
    for _ in range(20_000):
        agreement.add(area)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 16 * 20_000 <= size < 24 * 20_000


@pytest.mark.parametrize(("name", "small", "large"), [("pixels", 20, 2000), ("probability", 0.6, 0.95)])
def test_masks_agree_more_often_where_they_have_before(name, small, large):
    rng = np.random.default_rng(0)
    agreement = Agreement()
    for value, share in ((small, 0.2), (large, 0.9)):
        for _ in range(200):
            agreement.add(area_of("car", rng.random() < share, **{name: value}))
    probabilities = agreement.probabilities()
    assert probabilities[0] == pytest.approx(0.2, abs=0.07)
    assert probabilities[-1] == pytest.approx(0.9, abs=0.07)


def test_few_areas_say_little_and_a_probability_of_one_or_zero_is_a_number():
    agreement = Agreement()
    assert agreement.probabilities().shape == (0,)
    agreement.add(area_of("car", False, probability=1.0))
    (alone,) = agreement.probabilities()
    # the mode of the posterior with priors of N(3, 1) and N(0, 1): each coefficient is its mean less the probability
    assert math.log(alone / (1 - alone)) == pytest.approx(3 - 2 * alone, abs=1e-4)
    for _ in range(20):
        agreement.add(area_of("car", False, probability=1.0))
    assert agreement.probabilities()[0] < 0.2
    never = agreement.add(area_of("car", False, probability=0.0))
    assert np.isfinite(agreement.probabilities()[never])
