"""nnU-Net in the U-Net speedrun (docs/speedrun.md): PYTHON nnunet_peer.py DATA MINUTES SEED FOLDER

The default plans, 2d, all images. The learning rate falls with processor time; no step begins after MINUTES.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def write_raw(data: Path, folder: Path) -> np.ndarray:
    """Write the training set with labels 0, 1 and so on; return the mask value of each."""
    masks = {file.stem: np.asarray(Image.open(file)) for file in (data / "train" / "masks").iterdir()}
    values = np.unique(np.hstack([*map(np.unique, masks.values())]))
    (folder / "imagesTr").mkdir(parents=True)
    (folder / "labelsTr").mkdir()
    for name, mask in masks.items():
        (folder / "imagesTr" / f"{name}_0000.png").symlink_to(data / "train" / "images" / f"{name}.png")
        labels = np.searchsorted(values, mask).astype(np.uint8)
        Image.fromarray(labels).save(folder / "labelsTr" / f"{name}.png")
    names = ["background", *map(str, values[1:])]
    if data.name == "camvid":
        names[-1] = "ignore"
    dataset = {"labels": {name: label for label, name in enumerate(names)}, "channel_names": dict(enumerate("RGB"))}
    (folder / "dataset.json").write_text(json.dumps(dataset | {"numTraining": len(masks), "file_ending": ".png"}))
    return values


def main(data: Path, minutes: float, seed: int, folder: Path) -> None:
    for kind in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{kind}"] = str(folder / kind)
    os.environ |= {"nnUNet_def_n_proc": "1", "nnUNet_n_proc_DA": "1"}  # read where nnU-Net is imported
    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, plan_experiments, preprocess
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.run.run_training import get_trainer_from_args

    torch.manual_seed(seed)
    np.random.seed(seed)
    values = write_raw(data, folder / "raw" / "Dataset001_speedrun")
    extract_fingerprints([1])
    plan_experiments([1])
    preprocess([1], configurations=["2d"], num_processes=[1])
    os.environ |= {"nnUNet_n_proc_DA": "0"}  # augment in this process
    trainer = get_trainer_from_args("1", "2d", "all", device=torch.device("cpu"))
    train_step = trainer.train_step

    def timed_step(batch: dict) -> dict:
        share = sum(os.times()[:4]) / (60 * minutes)  # of this process and its children
        if share >= 1:
            raise TimeoutError
        for group in trainer.optimizer.param_groups:
            group["lr"] = trainer.initial_lr * (1 - share) ** 0.9
        print(f"a step at {share:.0%} of the time", flush=True)
        return train_step(batch)

    trainer.train_step = timed_step
    try:
        trainer.run_training()
    except TimeoutError:
        trainer.set_deep_supervision_enabled(False)
    predictor = nnUNetPredictor(device=trainer.device)
    parts = trainer.network, trainer.plans_manager, trainer.configuration_manager, [trainer.network.state_dict()]
    axes = trainer.inference_allowed_mirroring_axes
    predictor.manual_initialization(*parts, trainer.dataset_json, "nnUNetTrainer", axes)
    (folder / "masks").mkdir()
    for image in (data / "val" / "images").iterdir():
        (labels,) = predictor.predict_from_files_sequential([[str(image)]], None)
        Image.fromarray(values[labels[0]]).save(folder / "masks" / image.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
