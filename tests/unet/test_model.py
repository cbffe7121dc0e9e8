"""The network of images: parameters, padding, normalization, saving and loading.

Modules: unet/model.py, unet/model_files.py, unet/blocks.py, unet/config.py.
"""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from support.networks import LITE, randomized, tiny

from runtime.errors import ModelError
from unet import Preprocess, UNet, UNetConfig
from unet.blocks import BLOCKS


@pytest.mark.parametrize(("upsample", "parameters"), [("transpose", 31_037_698), ("bilinear", 17_263_042)])
def test_default_has_the_published_number_of_parameters(upsample, parameters):
    with torch.device("meta"):
        model = UNet(UNetConfig(upsample=upsample))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("outputs", [4, 6])
def test_a_residual_block_adds_its_input_before_the_last_relu(outputs):
    block = BLOCKS["residual"](4, outputs, (3, 3), norm="batch").double().eval()
    x = torch.randn(2, 4, 9, 7, dtype=torch.float64)
    y = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    shortcut = x if outputs == 4 else F.conv2d(x, block.shortcut.weight)
    torch.testing.assert_close(block(x), F.relu(y + shortcut), rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_deep", [False, True])
def test_dropout_falls_on_the_lowest_level_in_training(is_deep):
    network = UNet(tiny(depth=3, dropout=0.5), deep_supervision=is_deep)
    shapes = []
    network.dropout.register_forward_hook(lambda layer, inputs, output: shapes.append(tuple(output.shape)))
    network.train()(torch.rand(1, 1, 32, 48))
    assert shapes == [(1, 16, 4, 6)]
    assert network.dropout.p == 0.5
    network.eval()
    images = torch.rand(1, 1, 32, 48)
    assert network(images).equal(network(images))


@pytest.mark.parametrize(
    ("norm", "size", "options", "padded"),
    [
        ("batch", (4, 4), {}, (4, 4)),
        ("instance", (4, 4), {}, (8, 8)),  # a single value at the lowest level would become zero
        ("instance", (4, 8), {}, (4, 8)),
        ("group", (3, 9), {}, (8, 9)),  # a side would vanish
        ("batch", (20, 70), {"depth": 5, "encoder": LITE}, (32, 96)),
        ("batch", (20, 30), {"depth": 5, "encoder": LITE}, (32, 32)),
        ("instance", (20, 30), {"depth": 5, "encoder": LITE}, (64, 64)),
    ],
)
def test_an_image_is_padded_to_what_its_levels_need(norm, size, options, padded):
    network = UNet(tiny(norm=norm, **options)).eval()
    sizes = []
    network.stem.register_forward_pre_hook(lambda stem, inputs: sizes.append(tuple(inputs[0].shape[2:])))
    network(torch.rand(1, 1, *size))
    assert sizes == [padded]


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
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers and others ask for it


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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"base_channels": 4}, "model.safetensors does not fit .*size mismatch for "),
        ({"norm": "layer"}, 'norm is "layer"'),
        ({"num_classes": "5"}, 'num_classes is "5", expected a whole number of at least 1'),
        ({"temperature": 10**400}, r"config.json is damaged \(it has a number of 401 digits"),
        ({"depth": 1000}, "depth is 1000, expected less: each level doubles base_channels"),
        ({"num_classes": 10**9}, "has fewer than 1 layers or 1,000,000,000 channels"),  # before 10^9 are built
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved, changes, reason):
    settings = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(settings | changes))
    check_refused(saved, reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", b"{", "config.json is damaged"),
        ("config.json", b"[]", "config.json is damaged"),
        ("config.json", None, "has no config.json; give the folder RUN/model that train.py writes$"),
        ("model.safetensors", b"\x90\x01\x00\x00\x00\x00\x00\x00{", "model.safetensors is damaged"),
        ("model.safetensors", None, "has no model.safetensors"),
    ],
)
def test_a_damaged_or_missing_file_is_refused(saved, name, content, reason):
    (saved / name).unlink()
    if content is not None:
        (saved / name).write_bytes(content)
    check_refused(saved, reason)


def test_a_weight_that_is_no_finite_number_is_refused(saved):
    model = UNet.from_pretrained(saved)
    model.head.conv.weight.data[0, 0] = torch.nan
    model.save_pretrained(saved)
    check_refused(saved, r"is damaged: 1 weights are no finite numbers, such as head\.conv\.weight")


@pytest.mark.parametrize("folder", ["", "checkpoints/step-00000001"], ids=["run", "checkpoint"])
def test_another_folder_of_a_run_is_refused_with_that_of_its_model(tmp_path, folder):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    check_refused(tmp_path / folder, "has no config.json; the best model of this run is .*/model$")


def test_files_of_a_model_on_the_hub_are_those_of_its_revision(tmp_path, monkeypatch):
    UNet(UNetConfig(1, 2, base_channels=1, depth=1)).save_pretrained(tmp_path)
    calls = []

    def download(repo_id: str, filename: str, **options: object) -> str:
        calls.append((repo_id, filename, options["revision"], options["token"]))
        return str(tmp_path / filename)

    monkeypatch.setattr("unet.model.hf_hub_download", download)
    model = UNet.from_pretrained("someone/cells", revision="v2", token="hf_x")
    assert not model.training
    assert {(name, *rest) for name, _, *rest in calls} == {("someone/cells", "v2", "hf_x")}
    assert {file for _, file, *_ in calls} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, None),
        ({"in_channels": 10**5}, "has fewer than 2 layers or 100,000 channels"),
        ({"encoder": LITE | {"depths": [2, 7000]}}, "has fewer than 7,000 layers or 2 channels"),
    ],
)
def test_weights_are_compared_before_a_network_is_built(settings, problem):
    assert UNet.weights_problem(tiny(**settings), UNet(tiny()).state_dict()) == problem


@pytest.mark.parametrize("name", ["runs/modle", "{here}/modle"])
def test_a_mistyped_folder_is_distinguished_from_a_hub_id(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ModelError, match=r"is not a folder with config\.json"):
        UNet.from_pretrained(name.format(here=tmp_path))


def test_blocks_that_run_twice_are_all_that_are_trained():
    network = UNet(tiny(depth=5, encoder=LITE, in_channels=3))
    blocks = [network.stem, *network.downs, *network.encoder.stages, *network.ups]
    assert [*map(id, network.blocks)] == [*map(id, blocks)]
    network.encoder.freeze()
    assert [*map(id, network.blocks)] == [*map(id, [network.stem, *network.downs, *network.ups])]
