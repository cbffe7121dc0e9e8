"""One temperature for all logits, so that a model is as sure as it is right (Guo et al., ICML 2017, arXiv:1706.04599).

Logits divided by a temperature above 1 are less sure; the answers stay the same. The temperature is the one with the
least cross-entropy. The cross-entropy is added up for a row of temperatures at once, so that images are read once.
"""

import numpy as np

from unet.config import IGNORE_INDEX

# the temperatures that are tried: 1/8 to 8, each 9% above the one before
TEMPERATURES = 2 ** np.linspace(-3, 3, 49)
PIXELS = 20_000  # about so many pixels of an image are counted, spread over it
SMALLEST_PROBABILITY = 1e-30  # the logarithm of 0 is no number


class TemperatureFit:
    """The summed cross-entropy of images at each of TEMPERATURES."""

    def __init__(self) -> None:
        self.pixels = 0
        self.sums = np.zeros(len(TEMPERATURES))

    def add(self, probabilities: np.ndarray, mask: np.ndarray) -> None:
        """Count an image: probabilities (classes, H, W), mask (H, W) of class indices."""
        known_pixels = np.flatnonzero(mask.ravel() != IGNORE_INDEX)
        known_pixels = known_pixels[:: max(1, len(known_pixels) // PIXELS)]
        if not len(known_pixels):
            return
        labels = mask.ravel()[known_pixels]
        known_probs = probabilities.reshape(len(probabilities), -1)[:, known_pixels].astype(np.float64)  # (classes, n)
        # the logits, up to a constant for each pixel
        logits = np.log(np.maximum(known_probs, SMALLEST_PROBABILITY))
        label_logits = logits[labels, np.arange(len(known_pixels))]
        for index, temperature in enumerate(TEMPERATURES):
            # no overflow: the largest of these is at least -ln(classes) / temperature, and at most 0
            log_sums = np.log(np.exp(logits / temperature).sum(axis=0))
            self.sums[index] += (log_sums - label_logits / temperature).sum()
        self.pixels += len(known_pixels)

    def temperature(self) -> float:
        """The temperature with the least cross-entropy: the lowest point of a parabola through the best three."""
        best = int(self.sums.argmin())
        if best in (0, len(TEMPERATURES) - 1):
            return float(TEMPERATURES[best])
        left, middle, right = self.sums[best - 1 : best + 2]
        steps = 0.5 * (left - right) / (left - 2 * middle + right)
        ratio = TEMPERATURES[1] / TEMPERATURES[0]
        return float(TEMPERATURES[best] * ratio**steps)


def calibrate(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities (classes, ...) after all logits are divided by a temperature."""
    powers = np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY) ** (1 / temperature)
    return powers / powers.sum(axis=0)
