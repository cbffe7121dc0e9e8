"""The config of a network and its config.json: what is the default, what is refused, and what follows from it.

Modules: unet/config.py.
"""

import dataclasses

import pytest
from support.networks import LITE, tiny

from unet import Preprocess, UNetConfig


def test_values_that_an_old_config_json_lacks_are_as_they_were_then():
    config = UNetConfig.from_json({})
    numbers = (config.in_channels, config.num_classes, config.base_channels, config.depth, config.dims)
    assert numbers == (3, 2, 64, 4, 2)
    assert (config.norm, config.upsample, config.block) == ("batch", "transpose", "plain")
    assert (config.kernels, config.strides) == ((), ())
    assert (config.encoder, config.task, config.dropout, config.temperature) == (None, None, 0.0, 1.0)
    preprocess = dataclasses.asdict(config.preprocess)
    lists = {"mean", "std", "class_names", "class_values", "joined_values", "pixel_types", "bands"}
    nothing = {"image_size", "ignore_value", "outside_class", "spacing", "clip"}
    flags = {"detect_unit_range": False, "draft": True, "standardize": False, "turned": True, "place": False}
    expected = dict.fromkeys(lists, ()) | dict.fromkeys(nothing) | flags | {"scale": 1.0}
    assert {name: preprocess[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"kernels": [(3, 3), (2, 3), (3, 3)]}, "kernels is .*, expected 3 times 2 numbers of 1 and 3"),
        ({"strides": [(2, 2), (3, 2)]}, "strides is .*, expected 2 times 2 numbers of 1 and 2"),
        ({"base_channels": 0}, "base_channels is 0, expected a whole number of at least 1"),
        ({"block": "dense"}, 'block is "dense", expected plain or residual'),
        ({"encoder": "resnet"}, 'encoder is "resnet", expected an object, or null'),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"temperature": 0}, "temperature is 0, expected a number above 0"),
        ({"dims": 4}, "dims is 4, expected 2 or 3"),
        ({"depth": 30}, "depth is 30, expected less"),
        ({"dims": 3, "encoder": LITE}, "dims is 3, expected 2, for the encoder takes images"),
        ({"output_stride": 2}, "output_stride is 2, expected 1, or less than the coarsest stride of an encoder"),
        ({"dims": 3, "upsample": "bilinear_aligned"}, "upsample is .*, expected transpose or bilinear, for volumes"),
        ({"preprocess": Preprocess(std=(1.0, 1.0))}, r"std is \(1.0, 1.0\), expected one for each of 1 channels"),
        ({"preprocess": Preprocess(class_values=(1,))}, r"class_values is \(1,\), expected one for each of 2 classes"),
    ],
)
def test_a_network_that_cannot_be_is_refused(settings, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        tiny(**settings)


def test_divisors_are_the_products_of_the_strides():
    assert tiny(dims=3, strides=[(1, 2, 2), (2, 2, 2)]).divisors == (2, 4, 4)
    assert tiny().divisors == (4, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("detect_unit_range", 1),
        ("bands", (4,)),
        ("pixel_types", (8,)),
        ("spacing", (1.0, 0.0, 1.0)),
        ("clip", (5, 5)),
        ("class_values", (3, 7, 3)),
        ("class_values", (3, (0, 0, 0))),
        ("outside_class", 256),
        ("joined_values", ((4, 256),)),
        ("mean", (10**400,)),
        ("ignore_value", (0, 0, 256)),
        ("image_size", (0, 4)),
        ("scale", 0),
    ],
)
def test_preprocessing_that_no_model_has_is_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field} is "):
        Preprocess(**{field: value})


@pytest.mark.parametrize(("size", "scaled"), [((4, 30), (1, 3)), ((30, 4), (3, 1))])
def test_a_scaled_image_has_a_pixel_along_each_side_at_least(size, scaled):
    assert Preprocess(scale=0.1).input_size(*size) == scaled


def test_a_resampled_volume_has_the_nearest_number_of_voxels():
    preprocess = Preprocess(spacing=(4.0, 1.0, 2.0))
    assert preprocess.resampled_size((7, 10, 5), (1.0, 0.77, 3.0)) == (2, 8, 8)  # 1.75, 7.7 and 7.5
    assert preprocess.resampled_size((1, 10, 10), (1.0, 1.0, 2.0)) == (1, 10, 10)
    assert Preprocess().resampled_size((7, 10, 5), (1.0, 0.77, 3.0)) == (7, 10, 5)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"wings": 2, "tail": 1, "depth": 2}, "the config"),
        ({"preprocess": {"wings": 2, "tail": 1, "scale": 0.5}}, "preprocess"),
    ],
)
def test_an_entry_of_a_newer_version_is_named(content, part):
    line = f"^{part} holds tail, wings, which this version does not know: it was made by a newer version$"
    with pytest.raises(ValueError, match=line):
        UNetConfig.from_json(content)
