"""Pytorch-UNet checkpoints: the same logits and masks as the original, refusals, and training that starts from one.

The reference below is the original's network and predict.py, written from the names and shapes in its checkpoints.

Modules: train_utils/settings/starting_point.py.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from support.in_process import run_train
from support.launches import predict
from support.pytorch_unet import pytorch_unet_checkpoint

from inference import Predictor
from inference.models import load_model
from runtime.errors import ModelError
from unet import UNet, UNetConfig


def reference_logits(weights: dict, x: torch.Tensor) -> torch.Tensor:
    """The original's forward pass in evaluation mode, (B, 3, H, W) in 0..1 -> (B, classes, H, W)."""
    weights = {name: value.to(x.dtype) for name, value in weights.items()}

    def double_conv(name: str, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in ((f"{name}.double_conv.0", f"{name}.double_conv.1"), (f"{name}.double_conv.3",) * 2):
            norm = norm.replace(".3", ".4")
            x = F.conv2d(x, weights[f"{conv}.weight"], weights.get(f"{conv}.bias"), padding=1)
            statistics = (weights[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
            x = F.batch_norm(x, *statistics).relu()
        return x

    depth = sum(name.startswith("down") and name.endswith("double_conv.0.weight") for name in weights)
    skips = [double_conv("inc", x)]
    for level in range(1, depth + 1):
        skips.append(double_conv(f"down{level}.maxpool_conv.1", F.max_pool2d(skips[-1], 2)))
    x = skips.pop()
    for number in range(1, depth + 1):
        skip, name = skips.pop(), f"up{number}.up"
        if f"{name}.weight" in weights:
            x = F.conv_transpose2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride=2)
        else:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        height, width = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        x = double_conv(f"up{number}.conv", torch.cat([skip, x], dim=1))
    return F.conv2d(x, weights["outc.conv.weight"], weights["outc.conv.bias"])


def reference_mask(weights: dict, image: Image.Image, scale: float) -> np.ndarray:
    """The original's predict.py: (H, W) class indices."""
    width, height = image.size
    resized = image.resize((int(scale * width), int(scale * height)), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized).transpose(2, 0, 1)
    pixels = pixels / 255 if (pixels > 1).any() else pixels.copy()
    logits = reference_logits(weights, torch.from_numpy(pixels)[None].float())
    logits = F.interpolate(logits, (height, width), mode="bilinear")
    mask = logits.argmax(dim=1) if logits.shape[1] > 1 else torch.sigmoid(logits[:, 0]) > 0.5
    return mask[0].long().numpy()


def photo(height: int, width: int, *, levels: int = 256, seed: int = 0) -> Image.Image:
    """A picture of large waves, with values below `levels`."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width][..., None] / rng.uniform(4, 12, (2, 1, 1, 3))
    waves = (1 + np.sin(x + rng.uniform(0, 6, 3)) * np.cos(y)) / 2
    return Image.fromarray((waves * levels).clip(0, levels - 1).astype(np.uint8))


@pytest.fixture
def save(tmp_path):
    """Write entries as `torch.save` does, and give the path."""

    def write(entries: object, name: str = "model.pth") -> Path:
        torch.save(entries, tmp_path / name)
        return tmp_path / name

    return write


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_logits_are_the_originals(save, classes, bilinear, prefix):
    weights = pytorch_unet_checkpoint(classes, bilinear=bilinear)
    model = load_model(save({prefix + name: value for name, value in weights.items()}))
    assert not model.training
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 67, 90), dtype=np.uint8))
    with torch.inference_mode():
        expected = reference_logits(weights, images.double() / 255)
        assert expected.std() > 2
        assert (model.double()(images) - expected).abs().max() < 1e-12  # float64
        expected = reference_logits(weights, images / 255)
        # float32: the last place of values of 12 is 1e-6; measured 0
        assert (load_model(save(weights))(images) - expected).abs().max() < 1e-5


def test_one_sigmoid_becomes_the_equivalent_softmax_of_two_classes(save):
    weights = pytorch_unet_checkpoint(1)
    model = load_model(save(weights)).double()
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (1, 3, 48, 64), dtype=np.uint8))
    with torch.inference_mode():
        expected = reference_logits(weights, images.double() / 255).sigmoid()[:, 0]
        probabilities = model(images).softmax(dim=1)
    assert probabilities.shape[1] == 2
    assert (probabilities[:, 1] - expected).abs().max() < 1e-14  # float64: measured 1e-16
    assert 0.05 < (probabilities.argmax(dim=1) == 1).double().mean() < 0.95


def test_biases_of_older_versions_are_kept_in_the_batch_norm(save):
    weights = pytorch_unet_checkpoint(2, bias=True)
    images = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (1, 3, 48, 48), dtype=np.uint8))
    with torch.inference_mode():
        expected = reference_logits(weights, images.double() / 255)
        without = {name: value for name, value in weights.items() if not name.endswith(("0.bias", "3.bias"))}
        assert (reference_logits(without, images.double() / 255) - expected).abs().max() > 0.1
        assert (
            load_model(save(weights)).double()(images) - expected
        ).abs().max() < 2e-6  # means are float32: measured 3e-7


@pytest.mark.parametrize(
    ("classes", "mask_values", "scale"),
    [
        (1, [0, 255], None),
        (1, None, 1.0),
        (2, [[0, 0, 0], [255, 128, 0]], None),
        (3, [0, 100, 200], 1.0),
    ],
)
def test_predict_writes_the_masks_that_the_original_writes(save, tmp_path, classes, mask_values, scale):
    weights = pytorch_unet_checkpoint(classes, seed=classes)
    photos = {
        "even": photo(64, 96),
        "odd": photo(97, 71, seed=1),
        "dark": photo(66, 50, levels=2, seed=2),
    }
    with torch.inference_mode():  # logits around 0, so that masks hold every class
        x = torch.from_numpy(np.asarray(photos["even"]).transpose(2, 0, 1).copy())[None] / 255
        weights["outc.conv.bias"] -= reference_logits(weights, x).mean(dim=(0, 2, 3))
    path = save(weights if mask_values is None else weights | {"mask_values": mask_values})
    (tmp_path / "photos").mkdir()
    for name, image in photos.items():
        image.save(tmp_path / "photos" / f"{name}.png")
    flags = [] if scale is None else ["--scale", str(scale)]
    result = predict(path, [tmp_path / "photos"], tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    values = np.array(mask_values or range(max(classes, 2)), np.uint8)
    with torch.inference_mode():
        expected = {name: reference_mask(weights, image, scale or 0.5) for name, image in photos.items()}
    assert np.unique(np.concatenate([mask.ravel() for mask in expected.values()])).size == len(values)
    for name, mask in expected.items():
        written = np.asarray(Image.open(tmp_path / "out" / f"{name}.png"))
        np.testing.assert_array_equal(written, values[mask], err_msg=name)


def test_the_scale_is_that_of_each_checkpoint_of_an_ensemble(save):
    first = save(pytorch_unet_checkpoint(3))
    second = Path(shutil.copy(first, first.with_name("second.pth")))
    predictor = Predictor.from_pretrained(first, ensemble=[second], scale=0.25)
    assert [network.config.preprocess.scale for network in predictor.networks] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("mask_values", "expected"),
    [
        ([0, 255], (0, 255, 1)),  # a class that no mask held: the first free value
        ([0.0, 1.0, 2.0], (0, 1, 2)),
        ([[0, 0, 0, 255], [9, 8, 7, 255]], ((0, 0, 0), (9, 8, 7), (1, 1, 1))),
        ([0, 65535], (0, 65535, 1)),
        (None, (0, 1, 2)),
    ],
)
def test_every_class_gets_a_mask_value(save, mask_values, expected):
    entries = pytorch_unet_checkpoint(3, depth=1) | ({} if mask_values is None else {"mask_values": mask_values})
    assert load_model(save(entries)).config.preprocess.class_values == expected


@pytest.mark.parametrize(
    "mask_values",
    [
        [],
        "01",
        [0, 0],
        [0, 65536],
        [[0, 0], [1, 1]],
        [[0, 0, 0], 5],
        [None, 1],
        [[0, 0, -1], [1, 1, 1]],
    ],
)
def test_mask_values_that_mean_nothing_are_refused(save, mask_values):
    with pytest.raises(ModelError, match=r"model.pth: its mask_values .* neither numbers nor colors"):
        load_model(save(pytorch_unet_checkpoint(2, depth=1) | {"mask_values": mask_values}))


@pytest.mark.parametrize(("name", "write"), [("theirs.safetensors", save_file), ("theirs.pt", torch.save)])
def test_checkpoints_of_a_pytorch_unet_load_whatever_they_are_called(tmp_path, name, write):
    weights = pytorch_unet_checkpoint(2, depth=2)
    write(weights, tmp_path / name)
    images = torch.full((1, 3, 16, 16), 200.0)
    with torch.inference_mode():
        difference = load_model(tmp_path / name)(images) - reference_logits(weights, images / 255)
    assert difference.abs().max() < 1e-6  # float32: measured 0


def test_a_damaged_safetensors_file_is_refused(tmp_path):
    (tmp_path / "theirs.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"theirs\.safetensors: is damaged, or is not a checkpoint$"):
        load_model(tmp_path / "theirs.safetensors")


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_wants_to_run_code_is_refused_and_runs_none(tmp_path, fails_with, zipped):
    entries = pytorch_unet_checkpoint(2, depth=1) | {"mask_values": Malicious(tmp_path / "ran")}
    torch.save(entries, tmp_path / "model.pth", _use_new_zipfile_serialization=zipped)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    line = "model.pth: refused, unpickling it would run code (posix.mkdir)"
    fails_with(predict(tmp_path / "model.pth", [tmp_path / "a.png"], tmp_path / "out"), line, 1)
    with pytest.raises(ModelError, match=re.escape(line)):
        run_train(tmp_path / "run", "--init-from", tmp_path / "model.pth")
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "model.pth", weights_only=False)  # the file would have, had it been let
    assert (tmp_path / "ran").exists()


def test_a_whole_pickled_network_is_refused(save):
    with pytest.raises(ModelError, match=r"refused, unpickling it would run code \(torch.nn.modules.conv.Conv2d\)"):
        load_model(save(torch.nn.Conv2d(1, 1, 1)))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_file_ends_in_a_one_line_error(tmp_path, zipped):
    path = tmp_path / "model.pth"
    torch.save(pytorch_unet_checkpoint(2, depth=1), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[: int(share * len(whole))] for share in (0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999)]
    damaged += [whole[:length] for length in range(300)]
    damaged += [rng.bytes(size) for size in (1, 2, 5, 100, 1000)] + [b"hello world", b"PK\x03\x04", b"\x80\x02}"]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"model.pth: [^\n]*$"):
            load_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: [1, 2], "holds a list, expected a state dict"),
        (
            lambda w: (
                {k: v for k, v in w.items() if k != "inc.double_conv.1.running_mean"}
                | {"inc.double_conv.0.bias": torch.zeros(4)}
            ),
            'Missing key.* "stem.norm1.running_mean"',
        ),
        (lambda w: {}, "is not a Pytorch-UNet checkpoint: it lacks inc.double_conv.0.weight"),
        (lambda w: w | {"epoch": 3}, "holds 'epoch', which is not a weight"),
        (lambda w: w | {"outc.conv.bias": torch.full((2,), torch.nan)}, "weights are no finite numbers"),
        (lambda w: w | {"extra": torch.zeros(3)}, 'Unexpected key.* "extra"'),
        (lambda w: w | {"up1.up.bias": torch.zeros(3)}, "size mismatch for ups.0.up.bias"),
        (lambda w: UNet(UNetConfig(base_channels=4, depth=1)).state_dict(), "holds weights without a config.json"),
        (lambda w: {f"module.{k}": v for k, v in UNet(UNetConfig(depth=1)).state_dict().items()}, "config.json"),
    ],
)
def test_a_file_that_is_no_pytorch_unet_is_refused(save, change, message):
    with pytest.raises(ModelError, match=message):
        load_model(save(change(pytorch_unet_checkpoint(2, depth=1))))


def test_a_checkpoint_that_is_missing_is_refused():
    with pytest.raises(ModelError, match=r"nowhere/x.pth: no such file"):
        load_model("nowhere/x.pth")


def test_training_starts_from_the_checkpoint_with_its_preprocessing(save, tiny_folder, tmp_path):
    weights = pytorch_unet_checkpoint(2)
    path = save(weights | {"mask_values": [0, 255]})
    short = ["--max-steps", "1", "--learning-rate", "1e-9", "--tracker", "none", "--num-workers", "0"]
    output = run_train(tmp_path / "run", "--dataset", tiny_folder, "--init-from", path, *short).output
    assert output.count(f"start: {path}, 118 of 118 weights copied") == 1
    trained, source = load_model(tmp_path / "run" / "model"), load_model(path)
    assert trained.config.preprocess.std == (255.0,) * 3
    assert trained.config.preprocess.detect_unit_range is True
    images = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (1, 3, 64, 64), dtype=np.uint8))
    for name, weight in trained.named_parameters():
        # one step moves a weight by 1e-9, which is lost in float32 where a weight is larger than 0.02
        torch.testing.assert_close(weight, source.get_parameter(name), atol=3e-9, rtol=0)
    with torch.inference_mode():
        assert (source(images) - reference_logits(weights, images / 255)).abs().max() < 1e-5
