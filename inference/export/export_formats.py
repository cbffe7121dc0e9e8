"""The formats for other programs, by the names that --to takes."""

from inference.export.bioimageio import BioImageIo
from inference.export.export_format import ExportFormat
from inference.export.onnx import Onnx

_FORMATS: tuple[ExportFormat, ...] = (Onnx(), BioImageIo())
EXPORT_FORMATS: dict[str, ExportFormat] = {export_format.name: export_format for export_format in _FORMATS}
REMOVED_FORMATS = {  # name -> what to do instead
    "openvino": "OpenVINO reads the file of --to onnx",
    "torch": "use --to onnx, or `pip install .` and Predictor",
    "hub": "use --to onnx, or upload the model folder: Predictor and predict.py open it by its Hub id",
}
