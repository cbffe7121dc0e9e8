"""Prediction: a trained model applied to images of any size, and the files that it writes."""

from inference.predictor import Predictor

__all__ = ["Predictor"]
