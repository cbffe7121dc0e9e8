"""What config.json holds: the architecture of a model, and the preprocessing that it was trained with."""

from dataclasses import dataclass, field

from unet.blocks import NORMS, UPSAMPLINGS

IGNORE_INDEX = 255  # the class index, inside this project, of pixels that count in neither loss nor metric
MaskValue = int | tuple[int, int, int]  # a grey level or an RGB colour


@dataclass(frozen=True)
class Preprocess:
    """Everything beside weights that prediction needs; part of the model's config.json.

    Args:
        image_size: (H, W) that every image is resized to; None leaves `scale` to decide.
        scale: factor on height and width, rounded down.
        mean, std: of the training images for each channel, in the files' own value range; empty means 0 and 1.
        class_names, class_values: name and mask value (grey level or RGB colour) of each class.
        ignore_value: the mask value that counts in neither loss nor metric, None where there is none.
        detect_unit_range: take an image without a value above 1 for one in 0..1 instead of 0..255 (what Pytorch-UNet
            does, and its models expect).
        draft: decode of a JPEG file no more detail than the size asks for: several times as fast at half the size and
            below. So a file differs by a few grey levels from the array of its pixels.
        pixel_types: NumPy's names of the pixels that `mean` and `std` were measured on; others get a warning.
    """

    image_size: tuple[int, int] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    class_values: tuple[MaskValue, ...] = ()
    ignore_value: MaskValue | None = None
    detect_unit_range: bool = False
    draft: bool = True
    pixel_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # JSON knows lists only
        for name in ("image_size", "mean", "std", "class_names", "ignore_value", "pixel_types"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        values = tuple(tuple(value) if isinstance(value, list) else value for value in self.class_values)
        object.__setattr__(self, "class_values", values)
        if self.scale <= 0:
            raise ValueError(f"scale is {self.scale}, expected a number above 0")
        if any(value <= 0 for value in self.std):
            raise ValueError(f"std is {self.std}, expected numbers above 0")

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) at which the network sees an image of `height` x `width`."""
        if self.image_size is not None:
            return self.image_size
        return max(1, int(height * self.scale)), max(1, int(width * self.scale))


@dataclass(frozen=True)
class UNetConfig:
    """Architecture and preprocessing of one model: what config.json holds.

    Args:
        base_channels: width of the first level; each of the `depth` levels below doubles it.
        norm: `batch`, `group` or `instance`.
        upsample: `transpose`, `bilinear` or `bilinear_aligned`.
        dropout: probability, at the end of the contracting path as in the paper.
    """

    in_channels: int = 3
    num_classes: int = 2
    base_channels: int = 64
    depth: int = 4
    norm: str = "batch"
    upsample: str = "transpose"
    dropout: float = 0.0
    preprocess: Preprocess = field(default_factory=Preprocess)

    def __post_init__(self) -> None:
        if isinstance(self.preprocess, dict):  # from config.json
            object.__setattr__(self, "preprocess", Preprocess(**self.preprocess))
        for name in ("in_channels", "num_classes", "base_channels", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if self.norm not in NORMS:
            raise ValueError(f"norm is {self.norm!r}, expected one of {', '.join(NORMS)}")
        if self.upsample not in UPSAMPLINGS:
            raise ValueError(f"upsample is {self.upsample!r}, expected one of {', '.join(UPSAMPLINGS)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}, expected 0 or more and less than 1")
        for name in ("mean", "std"):
            values = getattr(self.preprocess, name)
            if values and len(values) != self.in_channels:
                raise ValueError(
                    f"{name} has {len(values)} values, expected one for each of {self.in_channels} channels"
                )
