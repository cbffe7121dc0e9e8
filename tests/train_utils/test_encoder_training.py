"""train.py and predict.py with an encoder of transformers: a whole run, frozen, resumed, on several processes."""

import copy
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from conftest import PROGRAMS, launch, write_folder
from encoders import network_refused, write_encoder
from in_process import Run, process_state_kept, run_train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import train
from data_utils.loading.batch_sampler import BatchSplit
from inference import Predictor
from runtime.errors import CheckpointError
from train_utils.memory.estimate import Copies, step_bytes
from train_utils.monitoring import rehearsal
from train_utils.optim import build_optimizer
from train_utils.results import Publisher
from train_utils.settings.encoder import load_encoder
from train_utils.sharding import prepare_sharding, whole_network
from train_utils.sync_batchnorm import synchronize_batchnorm
from unet import Preprocess, UNet, UNetConfig
from unet.backbone import Encoder
from unet.model import DeeplySupervisedUNet

FLAGS = ["--base-channels", "2", "--norm", "group", "--num-workers", "0", "--tracker", "none", "--log-every", "1"]
FLAGS += ["--plan", "none"]
FLAGS += ["--batch-size", "4", "--learning-rate", "0.01", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data set under `data`; beside it stand the encoders of `encoder_source`."""
    folder = tmp_path_factory.mktemp("runs")
    write_folder(folder / "data" / "train", 8, seed=0)
    write_folder(folder / "data" / "val", 2, seed=1)
    return folder


def run(output: Path, source: Path, *flags: str | Path, start: str = "--encoder") -> Run:
    """A run without report and pictures."""
    data = source.parent / "data"
    with mock.patch.object(train.Publisher, "write_results"):
        return run_train(output, "--dataset", data, start, source, *FLAGS, *flags)


def encoder_source(folder: Path, family: str) -> Path:
    """What --encoder takes for a family, or for the built-in encoder."""
    if family == "lite0":
        return Path(family)
    if not (folder / family).exists():
        torch.manual_seed(1)
        write_encoder(folder / family, family)
    return folder / family


def network(folder: Path, **settings: object) -> UNet:
    """A network with an encoder of random weights."""
    encoder = load_encoder(str(folder), pretrained=False)
    return UNet(UNetConfig(base_channels=2, depth=encoder.depth, encoder=encoder.config, **settings))


# the networks of all families are tested by themselves; runs of one show the rest
MORE_FAMILIES = ["swin", "bit", "convnextv2", "pp_lcnet", "focalnet", "hgnet_v2"]


@pytest.mark.parametrize(
    "family", ["resnet", *[pytest.param(family, marks=pytest.mark.slow) for family in MORE_FAMILIES]]
)
def test_a_run_leaves_a_model_that_needs_neither_the_encoders_folder_nor_a_network(folder, tmp_path, family):
    encoder = shutil.copytree(encoder_source(folder, family), folder / "moved" / family)
    shutil.copytree(folder / "data", folder / "moved" / "data", dirs_exist_ok=True)
    publish, trained = Publisher.publish, []

    def keep(publisher: Publisher, *results: object) -> None:
        trained.append(copy.deepcopy(publisher.network).eval())
        publish(publisher, *results)

    with network_refused(), mock.patch.object(Publisher, "publish", keep):
        result = run(tmp_path / "out", encoder, "--max-steps", "2", "--eval-every", "2")
    shutil.rmtree(encoder)
    assert result.exit_code == 0, result.output
    assert all(torch.equal(result.weights(2)[name], weight) for name, weight in result.model.items())
    image = folder / "data" / "val" / "images" / "cell_00.png"
    predicted, expected = Predictor.from_pretrained(result.folder / "model")(image), Predictor(*trained)(image)
    assert predicted.mask.shape == (40, 56)
    assert (predicted.probabilities == expected.probabilities).all()


def test_a_frozen_encoder_is_as_it_was_after_training_running_statistics_too(folder, tmp_path):
    result = run(
        tmp_path, encoder_source(folder, "resnet"), "--freeze-encoder", "--max-steps", "2", "--ema-decay", "0.9"
    )
    before, after = result.weights(0), result.model
    of_encoder = [name for name in before if name.startswith("encoder.")]
    assert any("running_var" in name for name in of_encoder)
    assert all(torch.equal(before[name], after[name]) for name in of_encoder)
    assert not torch.equal(before["stem.conv1.weight"], after["stem.conv1.weight"])
    assert not any(name.startswith("encoder.") for name in result.tensors(2, "optimizer"))
    assert "of them frozen" in result.output


FOUR_STEPS = ("--max-steps", "4", "--eval-every", "4", "--schedule", "constant", "--warmup-steps", "0")


@pytest.fixture(scope="module")
def whole(folder) -> Run:
    """Four steps from an encoder with a license, and checkpoints of the second and the fourth."""
    encoder = shutil.copytree(encoder_source(folder, "resnet"), folder / "licensed")
    (encoder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return run(folder / "whole", encoder, *FOUR_STEPS)


def check_equal(resumed: Run, whole: Run) -> None:
    """A resumed run has ended as the one that was never stopped."""
    assert "resumed from" in resumed.output
    for kind in ("model", "optimizer"):
        expected, resumed_tensors = whole.tensors(4, kind), resumed.tensors(4, kind)
        assert all(torch.equal(resumed_tensors[name], value) for name, value in expected.items())
    assert resumed.config == whole.config


@pytest.mark.slow
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_never_stopped(folder, tmp_path):
    flags = FOUR_STEPS[2:]
    whole = run(tmp_path / "whole", encoder_source(folder, "swin"), "--max-steps", "4", *flags)
    run(tmp_path / "parts", encoder_source(folder, "swin"), "--max-steps", "2", *flags)
    parts = run(tmp_path / "parts", encoder_source(folder, "swin"), "--max-steps", "4", "--resume", "auto", *flags)
    check_equal(parts, whole)


def test_a_run_with_another_encoder_or_a_frozen_one_is_no_continuation(folder, whole, tmp_path):
    flags = ("--resume", whole.folder / "checkpoints" / "step-00000002", *FOUR_STEPS)
    with pytest.raises(CheckpointError, match="the checkpoint's encoder is licensed, this run's is resnet"):
        run(tmp_path, encoder_source(folder, "resnet"), *flags)
    with pytest.raises(CheckpointError, match="the checkpoint's freeze_encoder is False, this run's is True"):
        run(tmp_path, folder / "licensed", "--freeze-encoder", *flags)


@pytest.mark.parametrize("change", ["removed", "normalizes otherwise"])
def test_a_resumed_run_reads_nothing_again_of_its_encoder(folder, whole, tmp_path, change):
    source = folder / "licensed"
    aside = source.rename(folder / "aside")
    try:
        if change == "normalizes otherwise":
            shutil.copytree(aside, source)
            (source / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.1, 0.1]}')
        with network_refused():
            resumed = run(tmp_path, source, *FOUR_STEPS, "--resume", whole.folder / "checkpoints" / "step-00000002")
    finally:
        shutil.rmtree(source, ignore_errors=True)
        aside.rename(source)
    check_equal(resumed, whole)


def test_a_resumed_run_reads_nothing_again_of_the_model_that_it_started_from(folder, tmp_path):
    shutil.copytree(folder / "data", tmp_path / "data")
    source = tmp_path / "source"
    preprocess = Preprocess(mean=(10.0, 20.0, 30.0), std=(40.0, 50.0, 60.0), pixel_types=("uint8",))
    network(encoder_source(folder, "resnet"), norm="group", preprocess=preprocess).save_pretrained(source)
    whole = run(tmp_path / "whole", source, *FOUR_STEPS, start="--init-from")
    shutil.rmtree(source)
    flags = (*FOUR_STEPS, "--resume", whole.folder / "checkpoints" / "step-00000002")
    with network_refused():
        resumed = run(tmp_path / "resumed", source, *flags, start="--init-from")
    check_equal(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "flags"), [("swin", ()), ("resnet", ("--freeze-encoder",))])
def test_a_run_of_measured_minutes_equals_one_of_as_many_steps_bit_for_bit(folder, tmp_path, family, flags):
    with mock.patch.multiple(rehearsal, steps_that_fit=mock.Mock(return_value=3), MOST_STEPS=2):
        measured = run(tmp_path / "measured", encoder_source(folder, family), "--max-minutes", "0.01", *flags)
    result = run(tmp_path / "asked", encoder_source(folder, family), "--max-steps", "3", *flags)
    assert "the same as --max-steps 3" in measured.output
    for kind in ("model", "optimizer"):
        expected, measured_tensors = result.tensors(3, kind), measured.tensors(3, kind)
        assert expected.keys() == measured_tensors.keys()
        assert all(torch.equal(measured_tensors[name], value) for name, value in expected.items())


@pytest.mark.parametrize("family", ["resnet", pytest.param("swinv2", marks=pytest.mark.slow)])
def test_an_encoder_computes_in_bf16_and_is_kept_in_float32(folder, tmp_path, family, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    types, forward = set(), Encoder.forward

    def noted(self: Encoder, *inputs: object) -> Sequence[torch.Tensor]:
        first = next(module for module in self.modules() if isinstance(module, torch.nn.Conv2d))
        with first.register_forward_hook(lambda conv, _, output: types.add((conv.training, output.dtype))):
            return forward(self, *inputs)

    monkeypatch.setattr(Encoder, "forward", noted)
    result = run(tmp_path, encoder_source(folder, family), "--max-steps", "2")
    assert result.exit_code == 0, result.output
    assert {(True, torch.bfloat16), (False, torch.bfloat16)} <= types
    assert all(math.isfinite(loss) for loss in result.values("train/loss") + result.values("eval/loss"))
    assert result.values("train/skipped_steps") == [0, 0]
    for weights in (result.model, result.weights(2), result.tensors(2, "optimizer")):
        numbers = [value for value in weights.values() if value.is_floating_point()]
        assert all(value.dtype == torch.float32 and value.isfinite().all() for value in numbers)
    of_encoder = [name for name in result.model if name.startswith("encoder.") and name.endswith("weight")]
    assert any(not torch.equal(result.weights(0)[name], result.weights(2)[name]) for name in of_encoder)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "flag"), [("resnet", ()), ("hgnet_v2", ("--freeze-encoder",))])
def test_two_processes_make_the_steps_of_one(folder, tmp_path, family, flag):
    encoder = shutil.copytree(encoder_source(folder, family), tmp_path / family)
    settings = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(settings | {"drop_path_rate": 0.0}))
    shutil.copytree(folder / "data", tmp_path / "data")
    flags = [*FLAGS, "--encoder", str(encoder), "--max-steps", "4", *flag]
    arguments = ["train.py", "--dataset", tmp_path / "data", "--output-dir", tmp_path / "run-2", *flags]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    torch.set_default_dtype(torch.float64)
    try:
        one = run(tmp_path / "run-1", encoder, "--max-steps", "4", *flag)
    finally:
        torch.set_default_dtype(torch.float32)
    two = [json.loads(line) for line in (tmp_path / "run-2" / "metrics.jsonl").read_text().splitlines()]
    for records in zip(one.records, two, strict=True):
        for key in ("train/loss", "train/grad_norm", "eval/loss"):
            values = [record.get(key) for record in records]
            assert values[1] == (values[0] and pytest.approx(values[0], abs=1e-9))


def test_norms_of_a_frozen_encoder_are_silently_left_unsynchronized(folder, capsys):
    several = mock.Mock(num_processes=2)
    frozen = network(encoder_source(folder, "resnet"), norm="group")
    frozen.encoder.freeze()
    synchronize_batchnorm(several, frozen, "auto", BatchSplit(8, 2, 2, 2))
    assert capsys.readouterr().out == ""
    synchronize_batchnorm(
        several, network(encoder_source(folder, "resnet"), norm="group"), "auto", BatchSplit(8, 2, 2, 2)
    )
    assert "batch norm sees 4 images at a time" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["swinv2", "convnextv2"])
def test_tables_of_positions_and_scales_do_not_decay(folder, family):
    model = network(encoder_source(folder, family))
    groups = build_optimizer(model, "adamw", 1e-3, 0.1).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    all_parameters = {id(p) for group in groups for p in group["params"]}
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.ConvTranspose2d | torch.nn.Linear)]
    assert decayed == {id(layer.weight) for layer in layers if layer.weight.requires_grad}
    assert all_parameters == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize(
    "family", ["lite0", *[pytest.param(family, marks=pytest.mark.slow) for family in ("hgnet_v2", "swinv2", "pvt_v2")]]
)
def test_estimates_of_memory_are_lower_with_recomputing_or_a_frozen_encoder(folder, family):
    model = network(encoder_source(folder, family))
    plain = step_bytes(model, (2, 3, 128, 128), Copies(3))
    model.activation_checkpointing = True
    recomputed = step_bytes(model, (2, 3, 128, 128), Copies(3))
    model.activation_checkpointing = False
    model.encoder.freeze()
    assert max(recomputed, step_bytes(model, (2, 3, 128, 128), Copies(3))) < plain


def test_frozen_weights_have_neither_gradients_nor_moments_but_an_average(folder):
    model, shape = network(encoder_source(folder, "resnet")), (2, 3, 64, 64)
    model.encoder.freeze()
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    without = step_bytes(model, shape, Copies(0))
    assert step_bytes(model, shape, Copies(3)) - without == 3 * trained
    assert step_bytes(model, shape, Copies(3, all_weights=1)) - without == 3 * trained + sum(
        p.nbytes for p in model.parameters()
    )


def kept_between_blocks(model: UNet, shape: tuple[int, ...]) -> int:
    """Bytes that are kept for the backward pass outside of what is recomputed."""
    kept_tensors: list[torch.Tensor] = []
    model.activation_checkpointing = True
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept_tensors.append(tensor) or tensor, lambda tensor: tensor
    ):
        logits = model(torch.rand(shape))
    del logits
    return sum(
        {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept_tensors}.values()
    )


def test_memory_of_a_recomputed_encoder_counts_what_it_keeps_before_its_first_stage(folder):
    encoder, shape = load_encoder(str(encoder_source(folder, "resnet")), pretrained=False), (2, 3, 64, 64)
    kept, estimates = [], []
    for width in (8, 64):
        config = encoder.config | {"embedding_size": width}
        model = UNet(UNetConfig(base_channels=32, depth=encoder.depth, encoder=config))  # its last block needs most
        kept.append(kept_between_blocks(model, shape))
        estimates.append(step_bytes(model, shape, Copies(0)))
    assert estimates[1] - estimates[0] > kept[1] - kept[0] > 0


@pytest.mark.parametrize(("family", "stage"), [("resnet", "ResNetStage"), ("lite0", "LiteStage")])
def test_each_stage_of_an_encoder_is_gathered_as_a_whole_by_fsdp(folder, family, stage):
    with process_state_kept():
        accelerator = Accelerator(cpu=True)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["DoubleConv"]
        )
        accelerator.state._shared_state["fsdp_plugin"] = plugin
        accelerator.state._shared_state["distributed_type"] = DistributedType.FSDP
        for _ in range(2):  # as with --max-minutes: for its rehearsal, then for the run
            prepare_sharding(accelerator, network(encoder_source(folder, family)), BatchSplit(2, 1, 2, 1), 1.0)
        assert plugin.transformer_cls_names_to_wrap == ["DoubleConv", stage]


@pytest.fixture
def process_group() -> Iterator[None]:
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("family", ["resnet", pytest.param("lite0", marks=pytest.mark.slow)])
def test_a_network_that_fsdp_has_spread_is_evaluated_as_a_whole_without_its_heads(folder, process_group, family):
    spread = DeeplySupervisedUNet(network(encoder_source(folder, family)).config).eval()
    images = torch.rand(2, 3, 40, 56)
    with torch.no_grad():
        logits = spread(images)
    fully_shard(spread, mesh=init_device_mesh("cpu", (1,)))
    with process_state_kept():
        whole = whole_network(Accelerator(cpu=True), spread)
    assert type(whole) is UNet
    assert not whole.training
    with torch.inference_mode():
        assert torch.equal(whole(images), logits)


def test_card_and_run_json_name_the_encoder_and_its_license(folder, whole):
    assert whole.settings["encoder"] == "licensed (apache-2.0)"
    card = (whole.folder / "model" / "README.md").read_text()
    assert "The encoder is licensed (apache-2.0), a backbone of transformers" in card
    assert "| encoder weights | pretrained |" in card
    assert str(folder) not in card
    assert "model: U-Net with encoder licensed (apache-2.0)" in whole.output
