"""The network: sizes, parameters, equality with a written-out reference and with Pytorch-UNet, saving and loading.

Modules: unet/model.py, unet/model_files.py, unet/blocks.py, unet/config.py, unet/recompute.py.
"""

import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from support.networks import LITE, randomized, tiny

from inference import Predictor
from runtime.errors import ModelError
from unet import Preprocess, UNet, UNetConfig
from unet.blocks import DoubleConv, Up, norm_layer
from unet.model import DeeplySupervisedUNet
from unet.model_files import layer_counts, weights_problem


def reference(weights: list[torch.Tensor], x: torch.Tensor, depth: int) -> torch.Tensor:
    """Pytorch-UNet's forward written out with functions, taking the tensors of its state dict in order."""
    queue = iter(weights)

    def double_conv(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = F.conv2d(x, next(queue), padding=1)
            scale, shift, mean, variance, _ = (next(queue) for _ in range(5))
            x = F.relu(
                (x - mean.view(-1, 1, 1)) / (variance.view(-1, 1, 1) + 1e-5).sqrt() * scale.view(-1, 1, 1)
                + shift.view(-1, 1, 1)
            )
        return x

    skips = [double_conv(x)]
    for _ in range(depth):
        skips.append(double_conv(F.max_pool2d(skips[-1], 2)))
    x = skips.pop()
    for skip in reversed(skips):
        x = F.conv_transpose2d(x, next(queue), next(queue), stride=2)
        dy, dx = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        x = double_conv(torch.cat([skip, F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])], dim=1))
    return F.conv2d(x, next(queue), next(queue))


@pytest.mark.parametrize(("upsample", "parameters"), [("transpose", 31_037_698), ("bilinear", 17_263_042)])
def test_default_has_the_published_number_of_parameters(upsample, parameters):
    with torch.device("meta"):
        model = UNet(UNetConfig(upsample=upsample))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("size", [(16, 16), (17, 23), (31, 64), (33, 100)])
def test_the_network_equals_the_reference_from_its_least_size_on(size):
    model = randomized(UNet(UNetConfig(base_channels=4, depth=4)))
    x = torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = reference(list(model.state_dict().values()), x, depth=4)
    assert expected.std(dim=(2, 3)).min() > 1e-3  # the logits differ from pixel to pixel
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-13)  # float64: measured 4e-16


@pytest.mark.skipif("PYTORCH_UNET" not in os.environ, reason="set PYTORCH_UNET to a checkout of milesial/Pytorch-UNet")
@pytest.mark.parametrize("bilinear", [False, True])
def test_network_equals_pytorch_unet(bilinear, monkeypatch):
    monkeypatch.syspath_prepend(os.environ["PYTORCH_UNET"])
    ours_in_memory = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "unet"}
    try:
        from unet.unet_model import UNet as Theirs
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "unet"]:
            del sys.modules[name]
        sys.modules.update(ours_in_memory)
    theirs = Theirs(3, 2, bilinear=bilinear).eval()
    ours = UNet(UNetConfig(upsample="bilinear_aligned" if bilinear else "transpose")).eval()
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    for size in [(16, 16), (17, 31), (96, 65), (130, 127)]:
        x = torch.rand(1, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)  # float32, sums in another order


@pytest.mark.parametrize("norm", ["batch", "group", "instance"])
@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (15, 16), (16, 16), (31, 7), (33, 47)])
def test_any_size_comes_back_at_its_own_size(norm, upsample, size):
    model = UNet(UNetConfig(in_channels=1, num_classes=3, base_channels=4, norm=norm, upsample=upsample)).eval()
    with torch.no_grad():
        logits = model(torch.randint(0, 256, (1, 1, *size), dtype=torch.uint8))
    assert logits.shape == (1, 3, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("outputs", [4, 6])
def test_a_residual_block_adds_its_input_before_the_last_relu(outputs):
    block = DoubleConv(4, outputs, "batch", "residual", (3, 3)).double().eval()
    x = torch.randn(2, 4, 9, 7, dtype=torch.float64)
    y = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    shortcut = x if outputs == 4 else F.conv2d(x, block.shortcut.weight)
    torch.testing.assert_close(block(x), F.relu(y + shortcut), rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", ["plain", "residual"])
def test_all_blocks_of_a_network_are_of_its_kind(block):
    blocks = [module for module in UNet(tiny(block=block)).modules() if isinstance(module, DoubleConv)]
    assert [module.shortcut is not None for module in blocks] == [block == "residual"] * 5


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (2, 1), (6, 1), (48, 8), (64, 32), (256, 32)])
def test_groups_are_at_most_thirty_two_of_two_channels_or_more(channels, groups):
    assert norm_layer("group", channels, 2).num_groups == groups


@pytest.mark.parametrize(("inputs", "skip", "outputs", "middle"), [(16, 16, 4, 8), (16, 6, 4, 6), (8, 8, 8, 8)])
def test_interpolated_features_are_halved_in_two_steps(inputs, skip, outputs, middle):
    options = {"norm": "batch", "block": "plain", "kernel": (3, 3), "stride": (2, 2)}
    up = Up(inputs, skip, outputs, upsample="bilinear", **options)
    assert up.conv.conv1.in_channels == inputs + skip
    assert up.conv.conv1.out_channels == middle
    assert up.conv.conv2.out_channels == outputs


@pytest.mark.parametrize("kind", [UNet, DeeplySupervisedUNet])
def test_dropout_falls_on_the_lowest_level_in_training(kind):
    network = kind(tiny(depth=3, dropout=0.5))
    shapes = []
    network.dropout.register_forward_hook(lambda layer, inputs, output: shapes.append(tuple(output.shape)))
    network.train()(torch.rand(1, 1, 32, 48))
    assert shapes == [(1, 16, 4, 6)]
    assert network.dropout.p == 0.5
    network.eval()
    images = torch.rand(1, 1, 32, 48)
    assert network(images).equal(network(images))


def test_dropout_falls_on_the_coarsest_features_of_an_encoder():
    network = UNet(tiny(depth=5, encoder=LITE, in_channels=3, dropout=0.5)).train()
    images = torch.rand(1, 3, 64, 64)
    assert not network(images).equal(network(images))


def test_a_small_image_is_padded_with_its_border():
    model = randomized(UNet(UNetConfig(base_channels=4, depth=3)))
    x = torch.randn(1, 3, 5, 20, dtype=torch.float64)
    with torch.no_grad():
        logits, zeros = model(x), model(F.pad(x, (0, 0, 0, 11)))[:, :, :5]
        expected = model(F.pad(x, (0, 0, 0, 11), mode="replicate"))[:, :, :5]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-13)  # float64: measured 0
    assert (logits - zeros).abs().max() > 1e-5  # and what is padded with is seen: measured 2e-4


@pytest.mark.parametrize(("norm", "padded"), [("instance", (8, 8)), ("batch", (4, 4)), ("group", (4, 4))])
def test_a_single_value_at_the_lowest_level_is_padded_for_instance_norm(norm, padded):
    assert stem_size(norm, (4, 4)) == padded


@pytest.mark.parametrize("norm", ["instance", "batch", "group"])
@pytest.mark.parametrize(
    ("size", "padded"), [((4, 8), (4, 8)), ((3, 9), (8, 9))], ids=["two values suffice", "a side would vanish"]
)
def test_a_side_that_would_vanish_is_padded(norm, size, padded):
    assert stem_size(norm, size) == padded


@pytest.mark.parametrize("norm", ["instance", "batch", "group"])
def test_an_image_is_padded_to_multiples_of_the_coarsest_stride_of_an_encoder(norm):
    assert stem_size(norm, (20, 70), depth=5, encoder=LITE) == (32, 96)


@pytest.mark.parametrize(("norm", "padded"), [("instance", (64, 64)), ("batch", (32, 32)), ("group", (32, 32))])
def test_a_single_value_of_an_encoder_is_padded_for_instance_norm(norm, padded):
    assert stem_size(norm, (20, 30), depth=5, encoder=LITE) == padded


def stem_size(norm: str, size: tuple[int, int], **options) -> tuple[int, int]:
    """The size that an image has when it comes to the first block."""
    network = UNet(tiny(norm=norm, **options)).eval()
    sizes = []
    network.stem.register_forward_pre_hook(lambda stem, inputs: sizes.append(tuple(inputs[0].shape[2:])))
    network(torch.rand(1, 1, *size))
    return sizes[0]


def test_model_normalizes_raw_pixels_itself():
    preprocess = Preprocess(mean=(100.0, 50.0, 7.0), std=(10.0, 20.0, 3.0))
    plain = randomized(UNet(UNetConfig(base_channels=4)))
    normalizing = UNet(UNetConfig(base_channels=4, preprocess=preprocess)).double().eval()
    normalizing.load_state_dict(plain.state_dict())
    x = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    by_hand = (x.double() - torch.tensor([100.0, 50.0, 7.0]).view(3, 1, 1)) / torch.tensor([10.0, 20.0, 3.0]).view(
        3, 1, 1
    )
    with torch.no_grad():
        torch.testing.assert_close(normalizing(x), plain(by_hand), rtol=0, atol=1e-13)  # float64: measured 0
        assert (normalizing(x) - plain(x.double())).abs().max() > 1e-2  # unnormalized pixels: measured 0.05


def test_pixels_in_double_precision_are_normalized_before_they_are_rounded():
    torch.manual_seed(0)
    far = UNet(tiny(preprocess=Preprocess(mean=(2.0**24,)))).eval()
    near = UNet(tiny()).eval()
    near.load_state_dict(far.state_dict())
    image = torch.randint(0, 2, (1, 1, 8, 8)).double()
    with torch.inference_mode():
        assert torch.equal(far(image + 2**24), near(image))


@pytest.mark.parametrize("norm", ["batch", "group", "instance"])
def test_a_saved_model_comes_back(tmp_path, norm):
    preprocess = Preprocess(
        scale=0.5,
        mean=(1.5, 2.5),
        std=(3.0, 4.0),
        class_names=("road", "car"),
        class_values=((0, 0, 0), (128, 64, 128)),
        ignore_value=(255, 255, 255),
        joined_values=(((64, 0, 128), 1),),
        pixel_types=("uint8",),
        bands=("B04", "B03"),
    )
    config = UNetConfig(2, 2, base_channels=4, depth=2, norm=norm, dropout=0.1, preprocess=preprocess)
    model = UNet(config).to(memory_format=torch.channels_last).eval()
    model.save_pretrained(tmp_path)
    loaded = UNet.from_pretrained(tmp_path)
    assert loaded.config == config
    assert not loaded.training
    x = torch.rand(1, 2, 20, 24)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=1e-5)  # channels-last rounds differently: 2e-6
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert len({file.stat().st_mode for file in tmp_path.iterdir()}) == 1  # who may read one may read all
    assert json.loads((tmp_path / "config.json").read_text())["preprocess"]["class_names"] == ["road", "car"]


def test_a_loaded_model_is_in_evaluation_mode(model):
    assert not any(module.training for module in UNet.from_pretrained(model).modules())


def test_a_saved_file_says_whose_tensors_it_holds(tmp_path):
    UNet(tiny()).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers and others ask for it


def test_entries_of_config_json_are_sorted(tmp_path):
    UNet(tiny()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for entries in (config, config["preprocess"]):
        assert list(entries) == sorted(entries)


def test_a_saved_file_may_be_read_by_others(tmp_path):
    UNet(tiny()).save_pretrained(tmp_path)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_whole_numbers_in_config_json_are_as_good_as_others(model, photos, tmp_path):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    config["preprocess"] |= {"mean": [90, 90, 90], "std": [50, 50, 50]}
    (folder / "config.json").write_text(json.dumps(config))
    whole, exact = (Predictor.from_pretrained(path)(photos / "a.png") for path in (folder, model))
    np.testing.assert_array_equal(whole.probabilities, exact.probabilities)


def test_the_numbers_of_preprocessing_are_floats():
    preprocess = Preprocess(scale=1, mean=[1], std=[2], spacing=[3, 1, 1], clip=[-1000, 400])
    numbers = [preprocess.scale, *preprocess.mean, *preprocess.std, *preprocess.spacing, *preprocess.clip]
    assert all(type(number) is float for number in numbers)


@pytest.fixture
def saved(tmp_path) -> Path:
    """The folder of a model."""
    UNet(UNetConfig(base_channels=2, depth=1)).save_pretrained(tmp_path)
    return tmp_path


def check_refused(folder: Path, reason: str) -> None:
    """The model is refused in one line that begins with its folder."""
    with pytest.raises(ModelError, match=reason) as error:
        UNet.from_pretrained(folder)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)


def test_damaged_weights_are_refused(saved):
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    check_refused(saved, "model.safetensors is damaged")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_no_finite_number_is_refused(saved, value):
    model = UNet.from_pretrained(saved)
    model.head.conv.weight.data[0, 0] = value
    model.save_pretrained(saved)
    check_refused(saved, r"is damaged: 1 weights are no finite numbers, such as head\.conv\.weight")


def test_missing_weights_are_refused(saved):
    (saved / "model.safetensors").unlink()
    check_refused(saved, "has no model.safetensors")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"base_channels": 4}, "model.safetensors has other shapes in "), ({"norm": "layer"}, "norm is 'layer'")],
)
def test_a_config_that_does_not_fit_is_refused(saved, changes, reason):
    settings = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(settings | changes))
    check_refused(saved, reason)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_is_refused(saved, content):
    (saved / "config.json").write_text(content)
    check_refused(saved, "config.json is damaged")


def test_a_missing_config_is_refused_with_where_train_writes_it(saved):
    (saved / "config.json").unlink()
    check_refused(saved, "has no config.json; give the folder RUN/model that train.py writes$")


def test_the_folder_of_a_run_is_refused_with_that_of_its_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    check_refused(tmp_path, "has no config.json; .*/model has$")


def test_a_checkpoint_is_refused_with_the_best_model_of_its_run(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    check_refused(checkpoint, f"the best model of this run is {tmp_path}/model$")


@pytest.mark.parametrize("folder", ["", "checkpoints/step-00000001"], ids=["run", "checkpoint"])
def test_a_model_that_lacks_the_same_file_is_not_recommended(tmp_path, folder):
    (tmp_path / "model").mkdir()
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    check_refused(tmp_path / folder, "has no config.json; give the folder RUN/model that train.py writes$")


def test_files_of_a_model_on_the_hub_are_those_of_its_revision(tmp_path, monkeypatch):
    UNet(UNetConfig(1, 2, base_channels=1, depth=1)).save_pretrained(tmp_path)
    calls = []

    def download(repo_id: str, filename: str, **options: object) -> str:
        calls.append((repo_id, filename, options["revision"], options["token"]))
        return str(tmp_path / filename)

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    monkeypatch.setattr("unet.model.hf_hub_download", download)
    model = UNet.from_pretrained("someone/cells", revision="v2", token="hf_x")
    assert not model.training
    assert {(name, *rest) for name, _, *rest in calls} == {("someone/cells", "v2", "hf_x")}
    assert {file for _, file, *_ in calls} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"depth": 1000}, "has fewer than 1,000 layers or 2 channels"),
        ({"num_classes": 10**9}, "has fewer than 2 layers or 1,000,000,000 channels"),
        ({"in_channels": 10**5}, "has fewer than 2 layers or 100,000 channels"),
        (
            {"encoder": LITE | {"num_hidden_layers": 5000, "depths": [2, 7000]}},
            "has fewer than 7,000 layers or 2 channels",
        ),
        (
            {"encoder": LITE | {"num_blocks": 8000, "hidden_size": 10**6}},
            "has fewer than 8,000 layers or 2 channels",
        ),
    ],
    ids=["layers", "classes", "channels", "layers of an encoder", "blocks of an encoder"],
)
def test_weights_are_compared_before_a_network_of_any_size_is_built(settings, problem):
    assert weights_problem(UNet, tiny(**settings), UNet(tiny()).state_dict()) == problem


def test_weights_of_a_config_have_no_problem():
    assert weights_problem(UNet, tiny(), UNet(tiny()).state_dict()) is None


def test_a_network_that_cannot_be_built_here_is_told_in_our_words():
    def refuse(config: UNetConfig) -> UNet:
        raise ModelError("transformers is not installed")

    with pytest.raises(ModelError, match=r"^transformers is not installed$"):
        weights_problem(refuse, tiny(), UNet(tiny()).state_dict())


def test_missing_weights_are_named():
    weights = {name: value for name, value in UNet(tiny()).state_dict().items() if "stem" not in name}
    problem = weights_problem(UNet, tiny(), weights)
    assert problem.startswith("lacks stem.conv1.weight, stem.conv2.weight, stem.norm1.bias, ...")


def test_unknown_weights_are_named():
    weights = UNet(tiny()).state_dict() | {"more": torch.ones(1)}
    assert weights_problem(UNet, tiny(), weights) == "has unknown more"


def test_weights_of_another_length_are_named():
    weights = UNet(tiny()).state_dict() | {"head.conv.bias": torch.ones(3)}
    assert weights_problem(UNet, tiny(), weights) == "has other shapes in head.conv.bias"


def test_weights_with_exchanged_axes_are_named():
    weights = UNet(tiny()).state_dict()
    weights["stem.conv1.weight"] = weights["stem.conv1.weight"].transpose(0, 1)
    assert weights_problem(UNet, tiny(), weights) == "has other shapes in stem.conv1.weight"


@pytest.mark.parametrize("error", [OSError, ValueError, TypeError, RuntimeError, RecursionError])
def test_an_error_of_loading_takes_one_line_with_the_name_of_the_model(saved, monkeypatch, error):
    def refuse(**options: object) -> None:
        raise error("no\n  weights")

    monkeypatch.setattr(UNet, "_from_pretrained", refuse)
    with pytest.raises(ModelError, match=r": cannot be loaded: no weights$"):
        UNet.from_pretrained(saved)


def test_an_error_in_our_words_is_left_as_it_is(saved, monkeypatch):
    def refuse(**options: object) -> None:
        raise ModelError("transformers is not installed")

    monkeypatch.setattr(UNet, "_from_pretrained", refuse)
    with pytest.raises(ModelError, match=r"^transformers is not installed$"):
        UNet.from_pretrained(saved)


@pytest.mark.parametrize("name", ["runs/modle", "modle", "{here}/modle", "runs/a/b"])
def test_a_mistyped_folder_is_distinguished_from_a_hub_id(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ModelError, match=r"is not a folder with config\.json"):
        UNet.from_pretrained(name.format(here=tmp_path))


@pytest.mark.parametrize(
    "wrong", [{"depth": 0}, {"norm": "layer"}, {"upsample": "nearest"}, {"dropout": 1.0}, {"in_channels": 0}]
)
def test_wrong_configuration_names_the_value(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong)))):
        UNetConfig(**wrong)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("num_classes", "5", "num_classes is '5', expected a whole number of 1 or more"),
        ("num_classes", True, "num_classes is True, expected a whole number of 1 or more"),
        ("depth", 1.5, "depth is 1.5, expected a whole number of 1 or more"),
        ("dropout", None, "dropout is None, expected a number of 0 or more and less than 1"),
        ("norm", ["batch"], r"norm is \['batch'\], expected one of batch, group, instance"),
        ("task", "classes", "task is 'classes', expected null, or an object with a name"),
        ("task", {"name": 1}, "task is {'name': 1}, expected null, or an object with a name"),
        ("preprocess", [1], r"preprocess is \[1\], expected an object"),
        ("preprocess.mean", [90.0, math.nan, 90.0], r"mean is \(90.0, nan, 90.0\), expected finite numbers"),
        ("preprocess.mean", "90", "mean is '90', expected finite numbers"),
        ("preprocess.mean", [90.0], "mean has 1 values, expected one for each of 3 channels"),
        ("preprocess.std", [50.0, 0, 50.0], r"std is \(50.0, 0, 50.0\), expected finite numbers above 0"),
        ("preprocess.std", [50.0, math.inf, 50.0], r"std is \(50.0, inf, 50.0\), expected finite numbers above 0"),
        ("preprocess.scale", "0.5", "scale is '0.5', expected a number above 0"),
        ("preprocess.image_size", [40], r"image_size is \(40,\), expected null, or height and width"),
        ("preprocess.image_size", [40, 0.5], r"image_size is \(40, 0.5\), expected null, or height and width"),
        ("preprocess.class_names", ["sky", "land"], "class_names has 2 values, expected one for each of 3 classes"),
        ("preprocess.class_names", ["sky", "land", 3], r"class_names is \('sky', 'land', 3\), expected texts"),
        ("preprocess.class_values", 10, "class_values is 10, expected a list"),
        ("preprocess.class_values", [1, 2, [0, 0, 0]], "class_values is .*, expected different ones, all of one"),
        ("preprocess.class_values", [1, 2, 2], "class_values is .*, expected different ones, all of one kind"),
        ("preprocess.std", [1.0, 10**400, 1.0], r"config.json is damaged \(it has a number of 401 digits"),
        ("preprocess.class_values", [1, 2, [0, 0, 300]], "class_values is .*, expected grey levels, or colors of"),
        ("preprocess.class_values", [[0, 0], [0, 1], [1, 1]], "class_values is .*, expected grey levels, or colors of"),
        ("preprocess.ignore_value", "255", "ignore_value is '255', expected null, or one of grey levels"),
        ("preprocess.clip", [400, 400], r"clip is \(400, 400\), expected null, or two numbers, the lower one first"),
        ("preprocess.draft", 1, "draft is 1, expected true or false"),
        ("preprocess.wings", 2, "preprocess holds wings, which this version does not know"),
    ],
)
def test_values_of_config_json_are_checked_in_our_words(model, tmp_path, key, value, line):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    *within, name = key.split(".")
    (config[within[0]] if within else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=f"^{re.escape(str(folder))}: cannot be loaded: {line}"):
        UNet.from_pretrained(folder)


def test_blocks_that_run_twice_are_all_that_are_trained():
    network = UNet(tiny(depth=5, encoder=LITE, in_channels=3))
    blocks = [network.stem, *network.downs, *network.encoder.stages, *network.ups]
    assert [*map(id, network.blocks)] == [*map(id, blocks)]
    network.encoder.freeze()
    assert [*map(id, network.blocks)] == [*map(id, [network.stem, *network.downs, *network.ups])]


def test_a_frozen_encoder_is_not_trained():
    network = UNet(tiny(depth=5, encoder=LITE, in_channels=3))
    network.encoder.freeze()
    assert not any(module.training for module in network.encoder.modules())
    network.train()
    assert not any(module.training for module in network.encoder.modules())
    assert not any(parameter.requires_grad for parameter in network.encoder.parameters())


def test_layers_are_counted_in_each_entry_that_names_them():
    config = {"depths": [2, 7], "num_layers": 5, "block_type": "plain", "hidden_sizes": [64, 128]}
    assert sorted(layer_counts(config)) == [0, 2, 5, 7]
