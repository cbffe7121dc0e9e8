"""The flags of train.py with their types."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPTIMIZERS = ("adamw", "sgd", "muon")
SCHEDULES = ("cosine", "poly", "constant")  # how the learning rate falls
NO_ENCODER = "none"  # the value of --encoder for the plain U-Net


def flag_of(name: str) -> str:
    """The typed flag of a setting: --batch-size for batch_size."""
    return "--" + name.replace("_", "-")


def as_flags(values: Mapping[str, Any]) -> str:
    """The values in the form in which flags are typed on the command line."""
    return " ".join(_as_flag(name, value) for name, value in values.items() if value is not None)


def _as_flag(name: str, value: Any) -> str:
    flag = flag_of(name)
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    words = [flag]
    values = value if isinstance(value, tuple) else (value,)
    for item in values:
        words.append(f"{item:g}" if isinstance(item, float) else shlex.quote(str(item)))
    return " ".join(words)


@dataclass(frozen=True)
class TrainSettings:
    """The flags of train.py under their names; `train.py --help` explains each.

    None stands for a value that the plan, the data or the model that training starts from will decide.
    """

    # data
    dataset: str
    check_data: bool
    task: str | None
    regions: str | None
    bands: list[str] | None
    place: bool | None
    label_column: str | None
    classes: str | None
    dataset_config: str | None
    train_split: str | None
    val_split: str | None
    val_fraction: float
    val_group: str | None
    val_blocks: int | None
    fold: str | None
    image_column: str | None
    mask_column: str | None
    mask_suffix: str | None
    exclude: str | None
    allow_unpaired: bool
    streaming: bool
    cache: bool
    on_bad_sample: str
    ignore_index: str | None
    outside: str | None
    absent: str | None
    swap: str | None
    image_size: Sequence[int] | None
    scale: float | None
    crop_size: Sequence[int] | None
    augment: str | None
    draft: bool
    num_workers: int | None
    # volumes
    dims: int | None
    spacing: Sequence[float] | None
    normalization: str | None
    # network
    init_from: str | None
    encoder: str | None
    encoder_weights: str | None
    freeze_encoder: bool | None
    base_channels: int | None
    depth: int | None
    norm: str | None
    block: str | None
    upsample: str | None
    dropout: float | None
    # optimization
    max_minutes: float | None
    epochs: int | None
    max_steps: int | None
    patience: int | None
    optimizer: str | None
    learning_rate: float
    encoder_lr_factor: float | None
    weight_decay: float
    schedule: str
    warmup_steps: int | None
    max_grad_norm: float
    ema_decay: float
    loss: str
    deep_supervision: bool
    class_weights: Sequence[float | str] | None
    # batch, memory and processes
    batch_size: int | None
    micro_batch_size: int | str
    activation_checkpointing: bool
    sync_batchnorm: str
    ddp_comm_hook: str
    processes_per_volume: int
    # the run and its files
    output_dir: Path | None
    resume: str | None
    plan: str
    like: Path | None
    eval_every: int | None
    checkpoint_every: int | None
    keep_checkpoints: int
    log_every: int
    trace_steps: int
    push_to_hub: str | None
    tracker: str
    seed: int
    deterministic: bool

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
