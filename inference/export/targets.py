"""The formats for other programs, by the names that --to takes."""

from inference.export.bioimageio import BioImageIo
from inference.export.hub import Hub
from inference.export.onnx import Onnx
from inference.export.openvino import OpenVino
from inference.export.target import Target
from inference.export.torch import Torch

TARGETS: dict[str, Target] = {target.name: target for target in (Onnx(), Torch(), Hub(), OpenVino(), BioImageIo())}
