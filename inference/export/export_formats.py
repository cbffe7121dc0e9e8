"""The formats for other programs, by the names that --to takes."""

from inference.export.bioimageio import BioImageIo
from inference.export.export_format import ExportFormat
from inference.export.hub import Hub
from inference.export.onnx import Onnx
from inference.export.openvino import OpenVino
from inference.export.torch import Torch

_FORMATS: tuple[ExportFormat, ...] = (Onnx(), Torch(), Hub(), OpenVino(), BioImageIo())
EXPORT_FORMATS: dict[str, ExportFormat] = {export_format.name: export_format for export_format in _FORMATS}
