"""How often masks agree with models on an area, learned from all areas of a review.

A model sees cars more reliably than signs, and large ones more reliably than small ones. An object that a mask lacks
means little if masks often lack such objects of the model, and much if they hardly ever do. Rottmann and
Reese (arXiv:2207.06104) call this meta classification: a logistic regression says from the numbers of a connected area
whether the mask agrees.
"""

import math
from array import array

import numpy as np

from train_utils.review.areas import ComparedArea

HIGHEST = 0.999  # a probability; the logit of 1 is no number
PRIOR_LOGIT = 3.0  # before any area is seen, a mask is expected to agree on nineteen of twenty


class Agreement:
    """Areas of masks and of predictions, added up over images; a class has areas of two kinds."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], int] = {}
        self._numbers = array("f")  # for each area: kind, log of its pixels, logit of its probability, agrees

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def add(self, area: ComparedArea) -> int:
        """Count an area, and return its number."""
        number = len(self)
        kind = self._kinds.setdefault((area.picture, area.label), len(self._kinds))
        probability = min(max(area.probability, 1 - HIGHEST), HIGHEST)
        logit = math.log(probability / (1 - probability))
        self._numbers.extend((kind, math.log(area.pixels), logit, area.agrees))
        return number

    def probabilities(self) -> np.ndarray:
        """The probability (areas,) that a mask agrees on each, from its class, its size and the model's certainty.

        Each kind of area has its own coefficients, added to the shared ones. All have a normal prior of variance 1, so
        that few areas change them little.
        """
        from scipy.optimize import minimize
        from scipy.special import expit

        if not len(self):
            return np.zeros(0)
        kinds, *numbers, agrees = np.array(self._numbers, np.float64).reshape(-1, 4).T
        kinds = kinds.astype(np.int64)
        columns = [np.ones(len(self))]
        for values in numbers:
            columns.append((values - values.mean()) / (values.std() or 1.0))
        inputs = np.stack(columns, axis=1)
        shape = (1 + len(self._kinds), len(columns))  # the first row is for all kinds, then a row for each
        prior = np.zeros(shape)
        prior[0, 0] = PRIOR_LOGIT

        def logits_of(coefficients: np.ndarray) -> np.ndarray:
            return (inputs * (coefficients[0] + coefficients[1 + kinds])).sum(axis=1)

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            """The negative logarithm of the posterior, and its gradient."""
            coefficients = flat.reshape(shape)
            logits = logits_of(coefficients)
            distance = coefficients - prior
            value = (np.logaddexp(0, logits) - agrees * logits).sum() + 0.5 * (distance**2).sum()
            errors = inputs * (expit(logits) - agrees)[:, None]
            gradient = distance.copy()
            gradient[0] += errors.sum(axis=0)
            for column in range(shape[1]):
                gradient[1:, column] += np.bincount(kinds, errors[:, column], minlength=len(self._kinds))
            return value, gradient.ravel()

        best = minimize(loss, prior.ravel(), jac=True, method="L-BFGS-B").x
        return expit(logits_of(best.reshape(shape)))
