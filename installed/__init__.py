"""U-Nets for images and volumes: `Predictor.from_pretrained("runs/x/model")("cell.png").mask`."""

from inference import Predictor

__all__ = ["Predictor"]
