"""nnU-Net's 2-D default for some minutes of processor time; benchmarks/side_by_side.py starts it.

python benchmarks/nnunet.py SET FOLDER MINUTES VALUE [VALUE ...]

It needs `pip install nnunetv2`. SET holds RGB images and masks, in `train` and `val`; mask values beside VALUES are
nnU-Net's ignore label. Its own trainer plans, augments and learns on the CPU, in float32, on all training images; the
learning rate falls over the minutes as it would over 1,000 epochs. Reading, planning and preprocessing are not timed.
FOLDER/masks gets its masks of the validation images, each the mean over four mirrored views, as it does by default.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

NUMBER = 1
NAME = f"Dataset{NUMBER:03}_set"


def write_dataset(data: Path, folder: Path, values: list[int]) -> None:
    """The training images and masks in nnU-Net's layout; a mask's indices are those of `values`, the last is void."""
    from nnunetv2.dataset_conversion.generate_dataset_json import generate_dataset_json

    index = np.full(256, len(values), np.uint8)
    index[values] = range(len(values))
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    void = False
    images = sorted((data / "train" / "images").iterdir())
    for image in images:
        mask = index[np.asarray(Image.open(data / "train" / "masks" / image.name))]
        void |= len(values) in mask
        Image.fromarray(mask).save(folder / "labelsTr" / image.name)
        (folder / "imagesTr" / f"{image.stem}_0000.png").symlink_to(image.resolve())
    labels = {"background" if number == 0 else str(value): number for number, value in enumerate(values)}
    labels |= {"ignore": len(values)} if void else {}
    generate_dataset_json(str(folder), {0: "R", 1: "G", 2: "B"}, labels, len(images), ".png")


def prepared_trainer(folder: Path):
    """nnU-Net's trainer with its plan for the data set, which it has preprocessed."""
    from batchgenerators.utilities.file_and_folder_operations import load_json
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    api.extract_fingerprints([NUMBER], num_processes=1)
    name = api.plan_experiments([NUMBER])
    api.preprocess([NUMBER], configurations=["2d"], num_processes=[1])
    plans = load_json(folder / "preprocessed" / NAME / f"{name}.json")
    description = load_json(folder / "raw" / NAME / "dataset.json")
    return nnUNetTrainer(plans | {"continue_training": False}, "2d", "all", description, torch.device("cpu"))


def train(trainer, minutes: float) -> int:
    """As many of nnU-Net's steps as fit into the minutes."""
    trainer.num_epochs = 1  # so that its schedule takes the share of the time that is over
    trainer.initialize()
    trainer.on_train_start()
    trainer.network.train()
    steps, start, spent = 0, time.process_time(), 0.0
    while spent < 1:
        trainer.lr_scheduler.step(spent)
        trainer.train_step(next(trainer.dataloader_train))
        steps += 1
        spent = (time.process_time() - start) / (60 * minutes)
    trainer.on_train_end()  # ends the processes that augment
    return steps


def predict(trainer, data: Path, folder: Path, values: list[int]) -> None:
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    trainer.set_deep_supervision_enabled(False)
    predictor = nnUNetPredictor(device=trainer.device, perform_everything_on_device=False)
    network = trainer.plans_manager, trainer.configuration_manager, [trainer.network.state_dict()], trainer.dataset_json
    axes = trainer.inference_allowed_mirroring_axes
    predictor.manual_initialization(trainer.network, *network, type(trainer).__name__, axes)
    images = sorted((data / "val" / "images").iterdir())
    (folder / "indices").mkdir()
    (folder / "masks").mkdir()
    predictor.predict_from_files_sequential(
        [[str(image)] for image in images], [str(folder / "indices" / image.stem) for image in images]
    )
    for image in images:
        mask = np.array(values, np.uint8)[np.asarray(Image.open(folder / "indices" / image.name))]
        Image.fromarray(mask).save(folder / "masks" / image.name)


def main() -> None:
    data, folder, minutes = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), float(sys.argv[3])
    values = list(map(int, sys.argv[4:]))
    for kind in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{kind}"] = str(folder / kind)  # nnU-Net reads them once it is imported
    write_dataset(data, folder / "raw" / NAME, values)
    trainer = prepared_trainer(folder)
    steps = train(trainer, minutes)
    predict(trainer, data, folder, values)
    print("steps:", steps)


if __name__ == "__main__":
    main()
