"""What the folder of an encoder says: normalization, license, channels.

Modules: train_utils/settings/encoder.py.
"""

import json

import pytest
import torch
from support.encoders import backbone, write_encoder

from runtime.errors import ModelError
from train_utils.settings.encoder import load_encoder, read_license, read_normalization, with_channels


def test_the_built_in_encoder_sees_images_as_in_its_pretraining():
    lite = load_encoder("lite0", pretrained=False)
    assert lite.mean == (127.0,) * 3
    assert lite.std == (128.0,) * 3
    assert lite.depth == 5
    assert lite.weights is None
    assert lite.config["num_channels"] == 3


SCALED = (tuple(255 * value for value in (0.485, 0.456, 0.406)), tuple(255 * value for value in (0.229, 0.224, 0.225)))


@pytest.mark.parametrize(
    ("family", "content", "expected"),
    [
        ("bit", {"image_mean": [0.5, 0.25, 0.125], "image_std": [1, 2, 4]}, ((127.5, 63.75, 31.875), (255, 510, 1020))),
        ("resnet", {"image_mean": [0.5, 0.25, 0.125], "do_normalize": False}, ((0, 0, 0), (255, 255, 255))),
        ("bit", {"do_normalize": None}, ((127.5,) * 3, (127.5,) * 3)),
    ],
    ids=["both", "scaled alone", "not said"],
)
def test_images_are_normalized_as_an_encoders_folder_says(tmp_path, family, content, expected):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    assert read_normalization(str(tmp_path), family) == expected


@pytest.mark.parametrize(("front", "expected"), [("license: mit", "mit"), ("license: [a, b]", None), ("{", None)])
def test_the_license_of_an_encoder_is_that_of_its_card(tmp_path, front, expected):
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n# Card\n")
    assert read_license(str(tmp_path)) == expected


def test_an_encoder_takes_other_numbers_of_channels_where_its_family_can():
    assert with_channels({"num_channels": 3, "depth": 4}, 5) == {"num_channels": 5, "depth": 4}
    config = {"num_channels": 3, "stem_channels": [3, 8, 16]}
    assert with_channels(config, 2) == {"num_channels": 2, "stem_channels": [2, 8, 16]}
    assert config["stem_channels"] == [3, 8, 16]
    with pytest.raises(ModelError, match="takes grey or RGB images, these have 5 channels"):
        with_channels({"_name_or_path": "x", "license": None}, 5)


def test_weights_in_half_precision_are_loaded_in_single_precision(tmp_path):
    backbone("resnet").half().save_pretrained(tmp_path)
    weights = load_encoder(str(tmp_path), pretrained=True).weights
    assert weights["embedder.embedder.convolution.weight"].dtype == torch.float32


def test_weights_that_are_no_safetensors_are_not_opened(tmp_path):
    folder = write_encoder(tmp_path / "resnet")
    (folder / "model.safetensors").unlink()
    torch.save(backbone("resnet").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="its weights cannot be loaded"):
        load_encoder(str(folder), pretrained=True)
