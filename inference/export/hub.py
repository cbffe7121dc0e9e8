"""A model as a folder that transformers opens, on the Hub or on a disk."""

import json
import shutil
from pathlib import Path

from huggingface_hub import ModelCardData

from inference.export.export_format import MASKS_ARE_EQUAL, ExportFormat, Options
from unet.config import UNetConfig
from unet.lite import MODEL_TYPE
from unet.model import UNet

CODE = Path(__file__).with_name("templates") / "modeling_unet.py"
CARD = """---
{front_matter}
---

# U-Net

Classes: {classes}.

```python
from transformers import pipeline

segment = pipeline("image-segmentation", "path or Hub id of this model", trust_remote_code=True)
for part in segment("image.png"):
    print(part["label"], part["mask"].size)  # a picture that is white where the class is
```

`{code}` holds the network and the preprocessing; it needs torch, transformers and Pillow. Made by unet-accelerate,
whose `predict.py` gives the same masks.
"""


class Hub(ExportFormat):
    """A folder for `pipeline("image-segmentation", FOLDER, trust_remote_code=True)`."""

    runtime = "transformers"
    is_folder = True
    flags = ("license",)
    proof = MASKS_ARE_EQUAL

    def problem(self, config: UNetConfig) -> str | None:
        preprocess = config.preprocess
        if config.task is not None:
            return f"has the task {config.task['name']}; a pipeline of transformers segments images into classes"
        if config.dims == 3:
            return "takes volumes; a pipeline of transformers takes images"
        if config.encoder is not None and config.encoder["model_type"] != MODEL_TYPE:
            return "has an encoder of transformers; a folder for the Hub takes models without one, or with lite0"
        if len(set(preprocess.class_names)) < len(preprocess.class_names):
            return "has two classes of one name"
        if config.kernels or config.strides:
            return "has its own kernels or strides, which a folder for the Hub does not take"
        if preprocess.pixel_types not in ((), ("uint8",)) or config.in_channels not in (1, 3):
            kinds = f" of {' and '.join(preprocess.pixel_types)}" if preprocess.pixel_types else ""
            return f"takes {config.in_channels} channels{kinds}; a pipeline of transformers gives 3 of 8 bits"
        return None

    def write(self, model: UNet, path: Path, options: Options) -> None:
        config = model.config
        model._save_pretrained(path)  # its config.json is replaced
        shutil.copyfile(CODE, path / CODE.name)
        names = config.preprocess.class_names or tuple(f"class {index}" for index in range(config.num_classes))
        write_json(path / "config.json", network_config(config, names))
        write_json(path / "preprocessor_config.json", processor_config(config))
        data = ModelCardData(library_name="transformers", pipeline_tag="image-segmentation", license=options.license)
        card = CARD.format(front_matter=data.to_yaml(), classes=", ".join(names), code=CODE.name)
        (path / "README.md").write_text(card, encoding="utf-8")


def network_config(config: UNetConfig, names: tuple[str, ...]) -> dict:
    """The config.json of transformers."""
    code = CODE.stem
    network = f"{code}.UNetForSemanticSegmentation"
    return {
        "architectures": ["UNetForSemanticSegmentation"],
        "auto_map": {
            "AutoConfig": f"{code}.UNetConfig",
            "AutoModelForImageSegmentation": network,
            "AutoModelForSemanticSegmentation": network,
        },
        "model_type": "unet-accelerate",
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        "in_channels": config.in_channels,
        "base_channels": config.base_channels,
        "depth": config.depth,
        "norm": config.norm,
        "upsample": config.upsample,
        "block": config.block,
        "encoder": None if config.encoder is None else "lite0",
        "mean": config.preprocess.mean or (0.0,) * config.network_channels,
        "std": config.preprocess.std or (1.0,) * config.network_channels,
        "dtype": "float32",
    }


def processor_config(config: UNetConfig) -> dict:
    """The preprocessor_config.json of transformers."""
    preprocess = config.preprocess
    return {
        "auto_map": {"AutoImageProcessor": f"{CODE.stem}.UNetImageProcessor"},
        "image_processor_type": "UNetImageProcessor",
        "in_channels": config.in_channels,
        "image_size": preprocess.image_size,
        "scale": preprocess.scale,
        "detect_unit_range": preprocess.detect_unit_range,
    }


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
