"""How often masks agree with a model: learned from all areas of a review, by class, size and how sure the model is.

Module: train_utils/review/agreement.py.
"""

import math
import tracemalloc

import numpy as np
import pytest

from train_utils.review.agreement import Agreement
from train_utils.review.areas import IN_MASK, IN_PREDICTION, ComparedArea


def area_of(label: str, agrees: bool, pixels: int = 100, probability: float = 0.9, picture: str = IN_PREDICTION):
    return ComparedArea(picture, label, pixels, probability, agrees, None)


SHARES = {("car", IN_PREDICTION): 95, ("sign", IN_PREDICTION): 30, ("car", IN_MASK): 60}  # of 100 areas of each kind


@pytest.fixture(scope="module")
def of_kinds() -> tuple[dict, np.ndarray]:
    """The number of an area of each kind, and the probabilities of all areas."""
    agreement = Agreement()
    numbers = {}
    for (label, picture), share in SHARES.items():
        for area in range(100):
            numbers[label, picture] = agreement.add(area_of(label, area < share, picture=picture))
    assert len(agreement) == 300
    return numbers, agreement.probabilities()


@pytest.mark.parametrize(("label", "picture"), SHARES)
def test_masks_agree_as_often_as_areas_of_their_kind_have_before(of_kinds, label, picture):
    numbers, probabilities = of_kinds
    assert len(probabilities) == 300
    assert probabilities[numbers[label, picture]] == pytest.approx(SHARES[label, picture] / 100, abs=0.03)


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


def test_agreement_of_no_areas_has_no_probabilities():
    assert Agreement().probabilities().shape == (0,)


def test_one_area_says_little():
    agreement = Agreement()
    agreement.add(area_of("car", False, probability=1.0))
    (alone,) = agreement.probabilities()
    # the mode of the posterior with priors of N(3, 1) and N(0, 1): each coefficient is its mean less the probability
    assert math.log(alone / (1 - alone)) == pytest.approx(3 - 2 * alone, abs=1e-4)


@pytest.fixture
def denied() -> Agreement:
    """21 areas that a prediction was sure of, and no mask has."""
    agreement = Agreement()
    for _ in range(21):
        agreement.add(area_of("car", False, probability=1.0))
    return agreement


def test_many_areas_that_no_mask_has_are_improbable(denied):
    assert denied.probabilities()[0] < 0.2


def test_area_of_probability_zero_has_a_finite_one(denied):
    never = denied.add(area_of("car", False, probability=0.0))
    assert np.isfinite(denied.probabilities()[never])
