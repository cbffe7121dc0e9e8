"""Models of the kinds that are exported."""

from unet import Preprocess, UNetConfig

PREPROCESS = Preprocess(
    scale=0.5,
    mean=(90.0,) * 3,
    std=(50.0,) * 3,
    class_names=("a", "b", "c"),
    class_values=((1, 2, 3), (4, 5, 6), (7, 8, 9)),
)
UNIT_RANGE = Preprocess(image_size=(40, 56), mean=(200.0,), std=(3.0,), detect_unit_range=True, pixel_types=("uint16",))
PREPROCESS_OF_POINTS = Preprocess(scale=0.5, mean=(90.0,) * 3, std=(50.0,) * 3)
LITE0 = {"model_type": "efficientnet_lite0", "num_channels": 3, "_name_or_path": "lite0"}
POINTS = {"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}
KINDS = {
    "instance": UNetConfig(3, 3, 4, 3, "instance", "bilinear", preprocess=PREPROCESS),
    "lite0": UNetConfig(3, 3, 4, 5, encoder=LITE0),
    "half-size outputs": UNetConfig(3, 3, 4, 5, encoder=LITE0, output_stride=2),
    "volumes": UNetConfig(1, 3, 4, 2, "instance", dims=3),
    "flat volumes": UNetConfig(1, 3, 4, 2, "batch", dims=3, kernels=((1, 3, 3),) * 3, strides=((1, 2, 2), (2, 2, 2))),
    "unit range": UNetConfig(1, 2, 4, 2, preprocess=UNIT_RANGE),
    "landmarks": UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS),
}
