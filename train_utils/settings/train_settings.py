"""The table of settings: every flag of train.py with its type, default, help, and what else is known of it.

A new setting is a field here. The parser, the plan, run.json, resume, `--like` and `compare.py` read this table.
"""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from data_utils.config import BATCH, DATA, FIRST, NETWORK, OPTIMIZATION, RUN, DataConfig
from runtime.launch import COMM_HOOKS
from runtime.settings import setting
from runtime.values import Amount, Count, Fraction, Limit, Natural, OneOf, Positive, Source
from tasks import TASKS
from tasks.losses import LOSSES
from train_utils.optim import OPTIMIZERS, SCHEDULES
from unet.blocks import BLOCKS, NORMS, UPSAMPLINGS
from unet.config import OUTPUT_STRIDES

RUNS = Path("runs")  # where a run without --output-dir gets its folder
NO_ENCODER = "none"  # the value of --encoder for the plain U-Net


def _is_hub_id(text: str) -> bool:
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


HubId = Annotated[str, Limit(_is_hub_id, "a name, or OWNER/NAME, as the Hub has it")]
ClassWeight = Positive | Annotated[str, OneOf(("auto", "none"))]

_first = partial(setting, group=FIRST)
_network = partial(setting, group=NETWORK)
_optimization = partial(setting, group=OPTIMIZATION)
_batch = partial(setting, group=BATCH)
_run = partial(setting, group=RUN)


@dataclass(frozen=True)
class TrainSettings(DataConfig):
    """The settings of a run, one field for each flag of train.py.

    None stands for a value that the plan, the data or the model that training starts from will decide.
    """

    task: Annotated[str, OneOf(TASKS)] | None = setting(
        "what the network learns of an image (default: found in the data)", group=DATA
    )
    check_data: bool = _first("read every file, report all problems and exit", default=False, is_repeated=False)
    output_dir: Path | None = _first(
        "for model, report and checkpoints (default: runs/<time>)", metavar="DIR", is_repeated=False, is_compared=False
    )
    resume: Source | None = _first(
        "auto: continue the run in --output-dir, or start it; or the path of a checkpoint",
        metavar="auto|CHECKPOINT",
        is_repeated=False,
        is_compared=False,
    )
    max_minutes: Positive | None = _first(
        "as many steps as fit into this time, from the start of the program; with --epochs, those at most",
        metavar="MINUTES",
        is_compared=False,
    )
    epochs: Natural | None = _first(
        "passes over the images (default: 2,000 steps or more)", metavar="N", unplanned=10, is_compared=False
    )
    num_workers: Count | None = setting(
        "processes that load data (default: by the number of CPUs)", group=DATA, metavar="N", has_effect=False
    )
    init_from: Source | None = _network("start from a model folder, a Hub id, or a Pytorch-UNet .pth", metavar="MODEL")
    encoder: Source | None = _network(
        "lite0: EfficientNet-Lite0; or a backbone of transformers, a folder or Hub id; none: plain U-Net",
        metavar="lite0|none|ID",
        unplanned=None,
    )
    encoder_weights: Annotated[str, OneOf(("pretrained", "random"))] | None = _network(
        "what --encoder starts from (default: pretrained)", unplanned=None
    )
    freeze_encoder: bool | None = _network("train only the decoder", unplanned=None)
    base_channels: Natural | None = _network("channels of the first level", metavar="N", unplanned=None)
    depth: Natural | None = _network(
        "how often the sides are halved (default: 4, with --encoder its levels; with --init-from its own)", metavar="N"
    )
    norm: Annotated[str, OneOf(tuple(NORMS))] | None = _network(
        "normalization layers (default: batch; with --init-from its own)"
    )
    block: Annotated[str, OneOf(tuple(BLOCKS))] | None = _network(
        "convolutions without or with a shortcut", unplanned=None
    )
    upsample: Annotated[str, OneOf(UPSAMPLINGS)] | None = _network(
        "layers of the expanding path (default: transpose; with --init-from its own)"
    )
    dropout: Fraction | None = _network("in the deepest level (default: 0; with --init-from its own)", metavar="RATE")
    output_stride: Annotated[int, OneOf(OUTPUT_STRIDES)] | None = _network(
        "with an encoder: leave out the finest levels, and enlarge the outputs by this factor", unplanned=None
    )
    max_steps: Natural | None = _optimization("optimizer steps, instead of --epochs", metavar="N", is_compared=False)
    patience: Natural | None = _optimization(
        "stop after N evaluations without a better score (default: never)", metavar="N"
    )
    optimizer: Annotated[str, OneOf(tuple(OPTIMIZERS))] | None = _optimization(
        "muon: orthogonal steps of convolutions, adamw for the rest; sgd has momentum 0.9", unplanned="adamw"
    )
    learning_rate: Positive = _optimization("highest one; it falls to 0", default=1e-3, metavar="RATE")
    encoder_lr_factor: Positive | None = _optimization(
        "share of --learning-rate for the encoder (default: 0.1; with random weights 1)", metavar="FACTOR"
    )
    weight_decay: Amount = _optimization("not of norms and biases", default=1e-2, metavar="RATE")
    schedule: Annotated[str, OneOf(tuple(SCHEDULES))] = _optimization("decay of the learning rate", default="cosine")
    warmup_steps: Count | None = _optimization("in which the learning rate rises from 0 (default: 5%)", metavar="N")
    max_grad_norm: Amount = _optimization("clip gradients; 0 is off", default=1.0, metavar="NORM")
    ema_decay: Fraction = _optimization(
        "average the weights, and evaluate and save the average; 0 is off", default=0.0, metavar="DECAY"
    )
    loss: Annotated[str, OneOf(tuple(LOSSES))] = _optimization("cross-entropy, Dice or both", default="ce+logdice")
    deep_supervision: bool = _optimization("also train the output of coarser levels (default: on)", default=True)
    class_weights: tuple[ClassWeight, ...] | None = _optimization(
        "auto: rare classes weigh more; none; or a number for each class", metavar="WEIGHT", unplanned=None
    )
    batch_size: Natural | None = _batch(
        "images in one optimizer step, of all processes together", metavar="N", unplanned=4
    )
    micro_batch_size: Natural | Annotated[str, OneOf(("auto",))] = _batch(
        "images in one forward pass of one process; auto: as many as fit into memory", default="auto", metavar="N"
    )
    activation_checkpointing: bool = _batch(
        "compute activations again in the backward pass: less memory, a third more time",
        default=False,
        has_effect=False,
    )
    sync_batchnorm: Annotated[str, OneOf(("auto", "on", "off"))] = _batch(
        "batch norm over all processes; auto: where there are several", default="auto"
    )
    ddp_comm_hook: Annotated[str, OneOf(COMM_HOOKS)] = _batch(
        "compress the gradients that processes exchange", default="none"
    )
    processes_per_volume: Natural = _batch(
        "processes that share each volume or image, one slab each: for volumes that do not fit into one's memory",
        default=1,
        metavar="S",
        is_repeated=False,
        is_compared=False,
    )
    plan: Annotated[str, OneOf(("auto", "none"))] = _run(
        "auto: choose settings from the data; none: those of the original U-Net", default="auto", is_repeated=False
    )
    like: Path | None = _run(
        "repeat a recorded run; flags given here win", metavar="RUN.json", is_repeated=False, is_compared=False
    )
    eval_every: Count | None = _run("evaluate after so many steps; 0: after each epoch", metavar="STEPS", unplanned=0)
    checkpoint_every: Count | None = _run(
        "save after so many steps; 0: after each epoch", metavar="STEPS", unplanned=0, has_effect=False
    )
    keep_checkpoints: Natural = _run(
        "how many of the newest, beside the best", default=2, metavar="N", has_effect=False
    )
    log_every: Count = _run(
        "record the training loss after so many steps; 0: after each epoch",
        default=10,
        metavar="STEPS",
        has_effect=False,
    )
    trace_steps: Count = _run("profile N steps with torch.profiler", default=0, metavar="N", has_effect=False)
    push_to_hub: HubId | None = _run("upload the best model to the Hub at the end", metavar="ID", is_repeated=False)
    tracker: str = _run("any installed tracker that accelerate knows, or none", default="tensorboard", has_effect=False)
    deterministic: bool = _run("use deterministic kernels only; slower on GPUs", default=False, has_effect=False)

    @property
    def may_crop(self) -> bool:
        """Whether training may see crops of images; a plan may crop them."""
        return self.crop_size is not None or self.plan == "auto"

    @property
    def planned_batch_size(self) -> int:
        """The batch size, which is known once the plan is made."""
        assert self.batch_size is not None, "the plan decides it"
        return self.batch_size

    @property
    def planned_optimizer(self) -> str:
        """The optimizer, which is known once the plan is made."""
        assert self.optimizer is not None, "the plan decides it"
        return self.optimizer

    @property
    def encoder_source(self) -> str | None:
        """The source of the encoder: a name, a folder or a Hub id; None without an encoder."""
        return None if self.encoder == NO_ENCODER else self.encoder


def _names_without(fact: str) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(TrainSettings) if not entry.metadata.get(fact, True))


# settings that the plan chooses -> their values without a plan: the original U-Net
UNPLANNED: dict[str, Any] = {}
for _entry in fields(TrainSettings):
    if "unplanned" in _entry.metadata:
        UNPLANNED[_entry.name] = _entry.metadata["unplanned"]
NOT_REPEATED = _names_without("is_repeated")
NOT_COMPARED = _names_without("is_compared")
WITHOUT_EFFECT = _names_without("has_effect")
