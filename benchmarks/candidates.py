"""Changes to the recipe that benchmarks/recipe.py measures: flags of train.py, and functions for what has no flag.

Such a function changes train.py in the process that is about to run it.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import train
from data_utils.loading import crop
from data_utils.targets import classes as class_targets
from tasks.classes import _truth
from tasks.pixels_and_regions import SMOOTHING
from tasks.step_loss import StepLoss
from train_utils import micro_batches as micro_batches_module
from train_utils.settings.starting_point import StartingPoint
from unet import UNet
from unet.blocks import DoubleConv
from unet.config import IGNORE_INDEX


def class_weights(power: float, *, fading: bool = False) -> Callable[[], None]:
    """Of each class its frequency to the power of -`power`; with `fading` the power falls to 0 over the run."""

    def weigh(_: object, pixels: Sequence[int]) -> Tensor:
        counts = torch.tensor(pixels, dtype=torch.float32).clamp_min(1)
        return (counts.median() / counts) ** power

    def patch() -> None:
        class_targets.class_weight_tensor = weigh
        if not fading:
            return
        make_step, total, done = train.train_step, int(sys.argv[sys.argv.index("--max-steps") + 1]), 0
        first: list[Tensor] = []

        def train_step(accelerator, model, optimizer, criterion, *rest, **options):
            nonlocal done
            weights = criterion.task.class_weights
            first[:] = first or [weights.clone()]
            weights.copy_(first[0] ** (1 - done / total))
            done += 1
            return make_step(accelerator, model, optimizer, criterion, *rest, **options)

        train.train_step = train_step

    return patch


def optimizer_setting(name: str, value: object) -> Callable[[], None]:
    """Another value of an optimizer's group."""

    def patch() -> None:
        build = train.build_optimizer

        def changed(*args):
            optimizer = build(*args)
            for group in optimizer.param_groups:
                group[name] = value
            return optimizer

        train.build_optimizer = changed

    return patch


def initialized(change: Callable[[nn.Module], None]) -> Callable[[], None]:
    """`change` gets each network before its first step."""

    def patch() -> None:
        build = StartingPoint.build

        def changed(self, *args):
            network = build(self, *args)
            change(network)
            return network

        StartingPoint.build = changed

    return patch


def kaiming(network: nn.Module) -> None:
    """He et al. 2015, arXiv:1502.01852, fan out, for the 3 x 3 convolutions."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def zero_last_norm(network: nn.Module) -> None:
    """Goyal et al. 2017, arXiv:1706.02677: each residual block is its shortcut at first."""
    for module in network.modules():
        if isinstance(module, DoubleConv):
            nn.init.zeros_(module.norm2.weight)


def crops_around_class(share: float) -> Callable[[], None]:
    """This share of the crops lies around a class, instead of a third."""

    def patch() -> None:
        crop.CROPS_AROUND_CLASS = share

    return patch


def label_smoothing(share: float = 0.1) -> None:
    """Szegedy et al. 2016, arXiv:1512.00567: this share of each pixel's truth is spread over all classes."""
    hard = StepLoss.sums

    def sums(self, logits, targets):
        pixels, regions = hard(self, logits, targets)
        spread = -(logits.float().log_softmax(dim=1).mean(dim=1) * (targets.mask != IGNORE_INDEX)).sum()
        return torch.stack([(1 - share) * pixels + share * spread, regions])

    StepLoss.sums = sums


def tversky(missed: float = 0.7) -> None:
    """-log of Tversky's index (Salehi et al. 2017, arXiv:1706.05721): a missed pixel costs more than a wrong one."""
    whole = StepLoss.sums

    def sums(self, logits, targets):
        pixels, _ = whole(self, logits, targets)
        truth, valid = _truth(targets.mask, torch.float32)
        probs = logits.float().softmax(dim=1)
        overlap = self.task._class_sums(probs.gather(1, truth.unsqueeze(1)).squeeze(1) * valid, truth)
        predicted, size = (probs * valid.unsqueeze(1)).sum(dim=(2, 3)), self.task._class_sums(valid, truth)
        together = (1 - missed) * predicted + missed * size
        index = ((together + SMOOTHING).log() - (overlap + SMOOTHING).log()) * (size > 0)
        return torch.stack([pixels, index.sum()])

    StepLoss.sums = sums


def lovasz() -> None:
    """Lovasz-softmax (Berman et al. 2018, arXiv:1705.08790) instead of Dice, of each class an image's truth has."""
    whole = StepLoss.sums

    def sums(self, logits, targets):
        pixels, _ = whole(self, logits, targets)
        regions = logits.new_zeros((), dtype=torch.float32)
        for scores, mask in zip(logits.float().softmax(dim=1), targets.mask.long(), strict=True):
            scores, mask = scores[:, mask != IGNORE_INDEX], mask[mask != IGNORE_INDEX]
            for index in mask.unique():
                truth = (mask == index).float()
                errors, order = (truth - scores[index]).abs().sort(descending=True)
                hits, misses = truth[order].cumsum(dim=0), (1 - truth[order]).cumsum(dim=0)
                jaccard = 1 - (truth.sum() - hits) / (truth.sum() + misses)
                regions = regions + (errors * jaccard.diff(prepend=jaccard.new_zeros(1))).sum()
        return torch.stack([pixels, regions])

    StepLoss.sums = sums


def logit_adjustment() -> None:
    """Menon et al. 2021, arXiv:2007.07314: training adds the logarithm of each class's frequency to its logit."""
    whole, prior = StepLoss.sums, []

    def frequencies(_: object, pixels: Sequence[int]) -> Tensor:
        counts = torch.tensor(pixels, dtype=torch.float32).clamp_min(1)
        prior.append((counts / counts.sum()).log().view(1, -1, 1, 1))
        return torch.ones(len(pixels))

    def sums(self, logits, targets):
        return whole(self, logits.float() + prior[0] if torch.is_grad_enabled() else logits, targets)

    class_targets.class_weight_tensor, StepLoss.sums = frequencies, sums


def augmented(change: Callable[[Tensor, Tensor, np.random.Generator], None]) -> Callable[[], None]:
    """`change` does more to each batch of images (B, C, H, W) and masks (B, H, W), in place."""

    def patch() -> None:
        augment, rng = micro_batches_module.augment, np.random.default_rng(0)

        def more(*args, **statistics):
            images, targets = augment(*args, **statistics)
            change(images, targets.mask, rng)
            return images, targets

        micro_batches_module.augment = more

    return patch


def gamma(images: Tensor, masks: Tensor, rng: np.random.Generator) -> None:
    """nnU-Net's gamma, 0.7 to 1.5, of three images in ten."""
    for number in np.flatnonzero(rng.random(len(images)) < 0.3):
        low, high = images[number].aminmax()
        span = (high - low).clamp_min(1)
        images[number] = low + span * ((images[number] - low) / span) ** rng.uniform(0.7, 1.5)


def color_jitter(images: Tensor, masks: Tensor, rng: np.random.Generator) -> None:
    """Of each image the colors' distance from grey, times 0.5 to 1.5, and each channel, times 0.9 to 1.1."""
    for image in images:
        grey = image.mean(dim=0, keepdim=True)
        gain = torch.tensor(rng.uniform(0.9, 1.1, len(image)), dtype=image.dtype)[:, None, None]
        image[:] = (grey + rng.uniform(0.5, 1.5) * (image - grey)) * gain


def low_resolution(images: Tensor, masks: Tensor, rng: np.random.Generator) -> None:
    """nnU-Net's: one image in four is reduced to between half and all of its size, and enlarged again."""
    size = images.shape[2:]
    for number in np.flatnonzero(rng.random(len(images)) < 0.25):
        small = F.interpolate(images[number : number + 1], scale_factor=rng.uniform(0.5, 1), mode="nearest")
        images[number] = F.interpolate(small, size, mode="bicubic")[0]


def copy_paste() -> Callable[[Tensor, Tensor, np.random.Generator], None]:
    """Ghiasi et al. 2021, arXiv:2012.07177: every second image gets the rarest class of the image before it."""
    earlier_pairs: list[tuple[Tensor, Tensor]] = []

    def paste(images: Tensor, masks: Tensor, rng: np.random.Generator) -> None:
        for image, mask in zip(images, masks, strict=True):
            whole = image.clone(), mask.clone()
            if (
                earlier_pairs
                and rng.random() < 0.5
                and earlier_pairs[0][1].shape == mask.shape
                and (earlier_pairs[0][1] != IGNORE_INDEX).any()
            ):
                from_image, from_mask = earlier_pairs[0]
                pixels = torch.bincount(from_mask[from_mask != IGNORE_INDEX])
                rarest = torch.where(pixels > 0, pixels, pixels.sum()).argmin()
                mask[from_mask == rarest] = rarest
                image[:, from_mask == rarest] = from_image[:, from_mask == rarest]
            earlier_pairs[:] = [whole]

    return paste


def cutmix() -> Callable[[Tensor, Tensor, np.random.Generator], None]:
    """Yun et al. 2019, arXiv:1905.04899: every second image gets a rectangle of the image before it."""
    earlier_pairs: list[tuple[Tensor, Tensor]] = []

    def mix(images: Tensor, masks: Tensor, rng: np.random.Generator) -> None:
        for image, mask in zip(images, masks, strict=True):
            whole = image.clone(), mask.clone()
            if earlier_pairs and rng.random() < 0.5 and earlier_pairs[0][1].shape == mask.shape:
                share, (height, width) = rng.beta(1, 1) ** 0.5, mask.shape
                sides = int(share * height), int(share * width)
                top, left = rng.integers(0, height - sides[0] + 1), rng.integers(0, width - sides[1] + 1)
                box = ..., slice(top, top + sides[0]), slice(left, left + sides[1])
                image[box], mask[box] = earlier_pairs[0][0][box], earlier_pairs[0][1][box]
            earlier_pairs[:] = [whole]

    return mix


def random_scale(images: Tensor, masks: Tensor, rng: np.random.Generator) -> None:
    """Each image at half to twice its size, cut to where it was, with its own grey and no class around it."""
    for image, mask in zip(images, masks, strict=True):
        zoom, middle = 2 ** rng.uniform(-1, 1), image.mean(dim=(1, 2), keepdim=True)
        corner = torch.tensor(rng.uniform(-1, 1, 2), dtype=torch.float32) * abs(1 - 1 / zoom)
        turn = torch.cat([torch.eye(2) / zoom, corner[:, None]], dim=1)[None]
        grid = F.affine_grid(turn, [1, 1, *mask.shape], align_corners=False)
        ground = mask[None, None].float() - IGNORE_INDEX  # outside is 0, which stands for no class
        image[:] = middle + F.grid_sample((image - middle)[None], grid, align_corners=False)[0]
        mask[:] = F.grid_sample(ground, grid, "nearest", align_corners=False)[0, 0].long() + IGNORE_INDEX


def mirrored_evaluation() -> None:
    """Probabilities are the mean of an image's and its mirror image's."""
    forward = UNet.forward

    def both(self, images):
        logits = forward(self, images)
        if self.training:
            return logits
        return (logits.softmax(dim=1) + forward(self, images.flip(-1)).flip(-1).softmax(dim=1)).log()

    UNet.forward = both


BEFORE = ["--loss", "ce+dice", "--no-deep-supervision", "--block", "plain", "--batch-size", "4"]
SGD = ["--optimizer", "sgd", "--learning-rate", "1e-2", "--schedule", "poly", "--weight-decay", "3e-5"]
# flags, which stand behind the recipe's and win, and a function; several at once are named with " + " between them
CANDIDATES: dict[str, tuple[list[str], Callable[[], None] | None]] = {
    "recipe": ([], None),
    "as before: ce+dice, plain blocks, no deep supervision, batches of 4": (BEFORE, None),
    "loss ce+dice": (["--loss", "ce+dice"], None),
    "loss ce": (["--loss", "ce"], None),
    "loss focal+dice": (["--loss", "focal+dice"], None),
    "no deep supervision": (["--no-deep-supervision"], None),
    "plain blocks": (["--block", "plain"], None),
    "batches of 1": (["--batch-size", "1"], None),
    "batches of 4": (["--batch-size", "4"], None),
    "width 8": (["--base-channels", "8"], None),
    "width 24": (["--base-channels", "24"], None),
    "width 32": (["--base-channels", "32"], None),
    "depth 5": (["--depth", "5"], None),
    "bilinear upsampling": (["--upsample", "bilinear"], None),
    "group norm": (["--norm", "group"], None),
    "EMA 0.99": (["--ema-decay", "0.99"], None),
    "learning rate 2e-3": (["--learning-rate", "2e-3"], None),
    "learning rate 5e-4": (["--learning-rate", "5e-4"], None),
    "SGD, momentum 0.99, poly": (SGD, optimizer_setting("momentum", 0.99)),
    "AdamW, beta2 0.95": ([], optimizer_setting("betas", (0.9, 0.95))),
    "no clipping": (["--max-grad-norm", "0"], None),
    "class weights 1 / frequency": ([], class_weights(1.0)),
    "class weights 1 / root of frequency": ([], class_weights(0.5)),
    "class weights that fade": ([], class_weights(1.0, fading=True)),
    "Kaiming initialization": ([], initialized(kaiming)),
    "zero-initialized last norm": ([], initialized(zero_last_norm)),
    "label smoothing 0.1": ([], label_smoothing),
    "Tversky 0.7 instead of Dice": ([], tversky),
    "Lovasz-softmax instead of Dice": ([], lovasz),
    "logit adjustment": ([], logit_adjustment),
    "gamma": ([], augmented(gamma)),
    "color jitter": ([], augmented(color_jitter)),
    "low resolution": ([], augmented(low_resolution)),
    "copy-paste of the rarest class": ([], augmented(copy_paste())),
    "CutMix": ([], augmented(cutmix())),
    "random scale 0.5 to 2": ([], augmented(random_scale)),
    "mirrored evaluation": ([], mirrored_evaluation),
    "no augmentation": (["--augment", "none"], None),
    "mirrored only": (["--augment", "mirror"], None),
    "strong augmentation": (["--augment", "strong"], None),
    "scale 0.5": (["--scale", "0.5"], None),
    "scale 0.25": (["--scale", "0.25"], None),
    "full size, crops of 256": (["--scale", "1", "--crop-size", "256", "256"], None),
    "no crops around a class": ([], crops_around_class(0.0)),
    "two crops in three around a class": ([], crops_around_class(2 / 3)),
}


def changes(candidate: str) -> tuple[list[str], list[Callable[[], None]]]:
    """The flags and functions of a candidate, or of several with " + " between them."""
    parts = [CANDIDATES[part] for part in candidate.split(" + ")]
    return [flag for flags, _ in parts for flag in flags], [patch for _, patch in parts if patch]
