"""Every mask format gives the same class indices, and every mistake in masks a clear line."""

import io
import json
import pickle
import random
import re

import numpy as np
import pytest
from PIL import Image

from data_utils.analysis.inspect import raise_problems, total_pixels
from data_utils.analysis.inspectors import choose_inspector, inspect_split
from data_utils.class_map import (
    ClassMap,
    _table,
    as_color,
    as_grey,
    classes_example,
    describe_invented,
    holds_names,
    is_run,
    key_of,
    named_classes,
    parse_classes,
    parse_values,
    resolve_classes,
    unpack,
)
from data_utils.image_io.reader import opened, read_header, read_mask
from data_utils.image_io.windowed import open_windowed_file
from data_utils.sources.records import ListRecords
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess

INDICES = np.kron(np.array([[0, 1, 2], [2, 0, 1]], np.uint8), np.ones((4, 5), np.uint8))  # (8, 15)
COLORS = ((0, 0, 0), (128, 64, 128), (128, 64, 200))
GREYS = (0, 100, 200)


def encoded(picture: Image.Image, suffix: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, suffix, **options)
    return file.getvalue()


def palette_picture(colors) -> Image.Image:
    picture = Image.fromarray(INDICES).convert("L").convert("P")
    picture.putdata(INDICES.ravel().tolist())
    picture.putpalette([band for color in colors for band in color])
    return picture


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def turned(picture: Image.Image, orientation: int) -> Image.Exif:
    exif = picture.getexif()
    exif[0x0112] = orientation
    return exif


GREY, COLOR = (
    Image.fromarray(np.array(GREYS, np.uint8)[INDICES]),
    Image.fromarray(np.array(COLORS, np.uint8)[INDICES]),
)
SIDEWAYS = Image.fromarray(np.rot90(INDICES).copy())  # orientation 6: a quarter turn clockwise gives INDICES
FORMATS = {
    "L png": encoded(Image.fromarray(INDICES), "png"),
    "L sparse values": encoded(GREY, "png"),
    "L bmp": encoded(GREY, "bmp"),
    "L tiff": encoded(GREY, "tiff"),
    "L tiff, compressed": encoded(GREY, "tiff", compression="tiff_lzw"),
    "L gif": encoded(GREY, "gif"),
    "L webp, lossless": encoded(GREY, "webp", lossless=True),
    "LA, half transparent": encoded(Image.merge("LA", [GREY, GREY.point(lambda v: 128)]), "png"),
    "P png": encoded(palette_picture(COLORS), "png"),
    "P tiff": encoded(palette_picture(COLORS), "tiff"),
    "P gif, colors": encoded(palette_picture(COLORS), "gif"),
    "P gif, greys": encoded(palette_picture([(v, v, v) for v in GREYS]), "gif"),
    "16-bit png": encoded(Image.fromarray(INDICES.astype(np.uint16) * 300), "png"),
    "16-bit tiff": encoded(Image.fromarray(INDICES.astype(np.uint16) * 300), "tiff"),
    "16-bit tiff, big-endian": encoded(Image.fromarray(INDICES.astype(">u2") * 300), "tiff"),
    "32-bit tiff": encoded(Image.fromarray(INDICES.astype(np.int32) * 70_000), "tiff"),
    "32-bit tiff, negative": encoded(Image.fromarray(INDICES.astype(np.int32) - 1), "tiff"),
    "float tiff": encoded(Image.fromarray(INDICES.astype(np.float32)), "tiff"),
    "RGB png": encoded(COLOR, "png"),
    "RGB tiff": encoded(COLOR, "tiff"),
    "RGB that is grey": encoded(GREY.convert("RGB"), "png"),
    "RGBA": encoded(COLOR.convert("RGBA"), "png"),
    "RGBA that is grey and half transparent": encoded(
        Image.merge("RGBA", [GREY] * 3 + [GREY.point(lambda v: 7)]), "png"
    ),
    "EXIF in png": encoded(SIDEWAYS, "png", exif=turned(SIDEWAYS, 6)),
    "EXIF in tiff": encoded(SIDEWAYS, "tiff", exif=turned(SIDEWAYS, 6)),
    "npy uint8": npy(INDICES),
    "npy int64": npy(INDICES.astype(np.int64)),
    "npy int8, negative": npy(INDICES.astype(np.int8) - 1),
    "npy float64": npy(INDICES.astype(np.float64)),
    "npy big-endian": npy(INDICES.astype(">i4")),
    "npy Fortran order": npy(np.asfortranarray(INDICES)),
    "npy (H, W, 1)": npy(INDICES[:, :, None]),
    "npy colors": npy(np.array(COLORS, np.uint8)[INDICES]),
    "array": INDICES,
    "PIL": palette_picture(COLORS),
    "dict of bytes": {"bytes": encoded(GREY, "png"), "path": None},
}


def discover(masks):
    """Values and pixels of (source, name) masks, each paired with itself."""
    records = ListRecords([{"image": source, "target": source, "name": name} for source, name in masks])
    inspection = inspect_split(records, "reading masks", choose_inspector(records))
    raise_problems(inspection, len(records))
    return total_pixels([(inspection, records)])


@pytest.mark.parametrize("source", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_indices(source):
    class_map = resolve_classes(discover([(source, "mask")]), (), None)
    result = class_map.encode(read_mask(source, "mask"), "mask")
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, INDICES)


@pytest.mark.parametrize("wrap", [str, lambda path: path, lambda path: {"bytes": None, "path": str(path)}])
@pytest.mark.parametrize("name", ["mask.png", "mask.npy", "MASK.NPY"])
def test_a_mask_is_read_from_a_path(tmp_path, name, wrap):
    path = tmp_path / name
    path.write_bytes(FORMATS["npy uint8" if name.lower().endswith("npy") else "L png"])
    np.testing.assert_array_equal(read_mask(wrap(path), name), INDICES)


def test_one_bit_and_boolean_masks_are_0_and_1():
    binary = INDICES > 0
    for source in (encoded(Image.fromarray(binary), "png"), encoded(Image.fromarray(binary), "tiff"), npy(binary)):
        mask = read_mask(source, "mask")
        assert mask.dtype == np.uint8
        np.testing.assert_array_equal(mask, binary)


def test_a_black_and_white_gif_gives_greys_however_its_palette_is_ordered():
    picture = palette_picture([(255, 255, 255), (0, 0, 0), (255, 255, 255)])
    np.testing.assert_array_equal(read_mask(encoded(picture, "gif"), "m"), np.where(INDICES == 1, 0, 255))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "tiff", "jpeg"])
def test_the_size_from_the_header_is_that_of_the_mask(tmp_path, orientation, kind):
    picture = Image.fromarray(np.zeros((8, 20), np.uint8))
    source = encoded(picture, kind, exif=turned(picture, orientation))
    size = read_mask(source, "m").shape
    assert read_header(source, "m")[0] == size == ((8, 20) if orientation < 5 else (20, 8))
    (tmp_path / "file").write_bytes(source)
    assert read_header(tmp_path / "file", "m")[0] == size


def test_reading_leaves_the_source_as_it_was():
    picture = SIDEWAYS.copy()
    picture.getexif()[0x0112] = 6
    array = INDICES.copy()
    assert read_mask(picture, "m").shape == INDICES.shape
    read_mask(array, "m")[:] = 9
    assert picture.size == SIDEWAYS.size
    np.testing.assert_array_equal(array, INDICES)


BAD = {
    "zero bytes": (b"", "cannot be read"),
    "text": (b"hello", "in a format that is not read here"),
    "truncated png": (FORMATS["16-bit png"][:-40], "cannot be read"),
    "truncated npy": (FORMATS["npy int64"][:-8], "cannot be read"),
    "npy of objects": (npy(np.array([{}, None])), "cannot be read"),
    "nothing": (None, "is missing"),
    "no file": ("/nowhere/mask.png", "/nowhere/mask.png"),
    "fractions": (npy(INDICES / 2), "holds 0.5"),
    "not a number": (npy(np.full((2, 2), np.nan)), "holds nan"),
    "scores": (npy(np.zeros((3, 4, 5))), r"shape \(3, 4, 5\)"),
    "one dimension": (npy(np.zeros(4, np.uint8)), "shape"),
    "no pixels": (npy(np.zeros((0, 4), np.uint8)), "shape"),
    "complex": (npy(np.zeros((4, 4), complex)), "complex128"),
}


@pytest.mark.parametrize(("source", "reason"), BAD.values(), ids=BAD)
def test_a_bad_mask_is_one_line_with_its_name(source, reason):
    with pytest.raises(DataError, match=reason) as error:
        read_mask(source, "017.png")
    assert str(error.value).startswith("017.png: ")
    assert "\n" not in str(error.value)


def test_a_picture_too_large_to_be_true_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match=r"017.png: mask .*exceeds limit of 20 pixels"):
        read_mask(FORMATS["L png"], "017.png")


@pytest.mark.filterwarnings("ignore")  # Pillow's own, about damaged TIFF tags
@pytest.mark.parametrize("key", ["L png", "L tiff, compressed", "P gif, colors", "npy int64", "L webp, lossless"])
def test_damaged_files_end_in_a_data_error(key):
    rng, errors = random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(FORMATS[key])
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            read_mask(bytes(damaged[: rng.randint(1, len(damaged))]), "m")
        except DataError as error:
            errors += 1
            assert str(error).startswith("m: ")
    assert errors >= 55  # a few lose nothing that matters: measured one in 60


def test_an_error_of_the_program_while_a_picture_is_open_stays_one():
    with pytest.raises(KeyError), opened(INDICES, "m"):
        {}["missing"]


def test_values_and_their_pixels_are_counted_over_all_masks():
    sources = [(FORMATS["L png"], "a"), (np.full((3, 4), 7, np.uint8), "b"), (np.full((1, 1), -1), "c")]
    expected = {value: int((value == INDICES).sum()) for value in range(3)}
    assert discover(sources) == expected | {7: 12, -1: 1}
    assert all(type(value) is int for pair in discover(sources).items() for value in pair)


@pytest.mark.parametrize("suffix", [".gif", ".png"])
def test_a_mask_read_in_rows_is_the_mask_read_whole(tmp_path, suffix):
    indices = np.zeros((40, 50), np.uint8)
    indices[10:20, 10:30] = 1
    picture = Image.fromarray(indices, "P")
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.save(tmp_path / f"a{suffix}")
    whole = read_mask(tmp_path / f"a{suffix}", "a")
    assert whole.ndim == {".gif": 3, ".png": 2}[suffix]
    with open_windowed_file(tmp_path / f"a{suffix}") as picture:
        np.testing.assert_array_equal(read_mask(picture.read(5, 25), "a"), whole[5:25])
        np.testing.assert_array_equal(read_mask(picture.read(5, 25, 8, 33), "a"), whole[5:25, 8:33])


def test_noise_is_counted_like_numpy_does():
    noise = np.random.default_rng(0).integers(0, 200, (50, 60))
    for mask in (noise, noise.astype(np.uint8), noise.astype(np.uint16)):
        assert discover([(mask, "m")]) == dict(
            zip(*(a.tolist() for a in np.unique(mask, return_counts=True)), strict=True)
        )


def test_progress_sees_every_mask_once(monkeypatch):
    calls = []

    def track(items, total, title):
        for item in items:
            calls.append(total)
            yield item

    monkeypatch.setattr("data_utils.analysis.inspectors.track", track)
    discover([(INDICES, str(i)) for i in range(5)])
    assert calls == [5] * 5


def test_a_color_mask_that_holds_only_greys_is_still_a_color_mask():
    black = np.zeros((2, 3, 3), np.uint8)
    classes = discover([(black, "black"), (FORMATS["RGB png"], "street")])
    assert classes == {color: 40 + 6 * (color == (0, 0, 0)) for color in COLORS}
    class_map = resolve_classes(classes, (), None)
    np.testing.assert_array_equal(class_map.encode(read_mask(black, "black"), "black"), np.zeros((2, 3)))


def test_color_masks_and_masks_of_numbers_do_not_mix():
    with pytest.raises(DataError, match=r"b\.png is a color mask and a\.png one of numbers"):
        discover([(FORMATS["L png"], "a.png"), (FORMATS["RGB png"], "b.png")])


def test_the_first_bad_mask_is_named():
    with pytest.raises(DataError, match=r"1 of 10 pairs cannot be used: 3\.png"):
        discover([(INDICES if i != 3 else b"", f"{i}.png") for i in range(10)])


def test_a_lossy_mask_is_recognized():
    smooth = np.arange(256, dtype=np.uint8)[None].repeat(2, axis=0)
    with pytest.raises(DataError, match="smoothed edges"):
        discover([(smooth, "a.png")])
    steps = np.random.default_rng(0).integers(0, 8, (40, 40, 3)).astype(np.uint8)
    with pytest.raises(DataError, match="smoothed edges"):
        discover([(steps, "a.png")])
    circle = Image.fromarray(np.uint8(np.hypot(*np.mgrid[-20:20, -20:20]) < 15) * 255)
    with pytest.raises(DataError, match=r"a\.jpg: mask is a JPEG with the values .*PNG"):
        discover([(encoded(circle, "jpeg"), "a.jpg")])
    blocks = Image.fromarray(np.kron(np.eye(2, dtype=np.uint8) * 255, np.ones((8, 8), np.uint8)))
    assert discover([(encoded(blocks, "jpeg", quality=100), "exact.jpg")]) == {0: 128, 255: 128}


def test_instance_numbers_are_recognized():
    with pytest.raises(DataError, match="numbers of objects"):
        discover([(np.arange(300, dtype=np.uint16)[None], "a.png")])
    with pytest.raises(DataError, match="numbers of objects"):  # none too many by itself
        discover([(np.full((2, 2), i * 7, np.uint16), f"{i}.png") for i in range(300)])


RESOLVED = [
    ({0, 1, 2}, None, (0, 1, 2), None),
    ({0, 1, 255}, None, (0, 1), 255),
    ({0, 1, 2, 3, 255}, None, (0, 1, 2, 3), 255),
    ({0, 255}, None, (0, 255), None),
    ({0, 128, 255}, None, (0, 128, 255), None),
    ({1, 2, 255}, None, (1, 2, 255), None),
    ({0, 1, 11}, "11", (0, 1), 11),
    ({0, 1, 255}, "0", (1, 255), 0),
    ({-1, 0, 1}, "-1", (0, 1), -1),
    (set(COLORS), None, COLORS, None),
    (set(COLORS), "#000000", COLORS[1:], (0, 0, 0)),
]


@pytest.mark.parametrize(("found", "ignore", "values", "ignore_value"), RESOLVED)
def test_found_values_become_classes(found, ignore, values, ignore_value):
    class_map = resolve_classes(dict.fromkeys(found, 1), (), ignore)
    assert class_map.values == values
    assert class_map.ignore_value == ignore_value


def test_classes_without_given_names_are_named_by_their_values():
    assert resolve_classes({0: 1, 255: 1}, (), None).names == ("background", "foreground")
    assert resolve_classes({1: 1, 2: 1}, (), None).names == ("1", "2")
    assert resolve_classes({0: 1, 7: 1, 9: 1}, (), None).names == ("0", "7", "9")
    assert resolve_classes(dict.fromkeys(COLORS, 1), (), None).names == ("#000000", "#804080", "#8040c8")


def test_given_classes_keep_their_order_and_may_be_absent():
    class_map = resolve_classes({0: 5, 255: 5}, parse_classes("255=car, 0=road,7=rare"), None)
    assert class_map == ClassMap(("car", "road", "rare"), (255, 0, 7), None)


def test_a_value_of_a_name_that_stands_before_joins_its_class():
    class_map = resolve_classes({1: 5, 2: 5, 3: 5}, parse_classes("1=car,2=road,3=car"), None)
    assert class_map == ClassMap(("car", "road"), (1, 2), None, joined=((3, 0),))


def test_another_ignored_value_leaves_255_as_it_is():
    class_map = resolve_classes({0: 1, 1: 1, 9: 1, 255: 1}, parse_classes("0=a,1=b"), "9")
    assert class_map.ignore_value == 9
    assert class_map.joined == ()
    assert class_map.index_of(255) is None


FILE_CLASSES = ((3, "a"), (5, "Background"), (7, "b"))


@pytest.mark.parametrize(
    ("flag", "file_classes", "outside", "classes"),
    [
        ("1=a,2=b", (), "ignore", [(1, "a"), (2, "b")]),
        ("1=a,2=b", FILE_CLASSES, "background", [(0, "background"), (1, "a"), (2, "b")]),
        ("1=a,2=background", (), "background", [(1, "a"), (2, "background")]),
        ("a,b", ((0, "a"), (1, "b")), None, [(0, "a"), (1, "b")]),  # no value is left for a background
        ("b", FILE_CLASSES, None, [(5, "Background"), (7, "b")]),
        ("b,Background", FILE_CLASSES, None, [(7, "b"), (5, "Background")]),
        ("b", (*FILE_CLASSES, (9, "background")), None, [(5, "Background"), (7, "b")]),  # the first of two
        ("b", FILE_CLASSES, "ignore", [(5, "Background"), (7, "b")]),
        ("b", FILE_CLASSES[::2], None, [(0, "background"), (7, "b")]),
        ("b", FILE_CLASSES[::2], "ignore", [(7, "b")]),
    ],
)
def test_a_background_is_added_to_named_classes_where_one_may_be(flag, file_classes, outside, classes):
    assert list(named_classes(flag, file_classes, outside)) == classes


@pytest.mark.parametrize("outside", ["ignore", "background"])
def test_without_classes_nothing_is_outside_of_them(outside):
    with pytest.raises(DataError, match=f"--outside {outside} needs --classes"):
        named_classes(None, (), outside)


def test_a_flag_holds_names_unless_it_holds_values_or_a_file():
    flags = (None, "", "car", "car,dog", "0=car", "classes.json")
    assert [holds_names(flag) for flag in flags] == [False, False, True, True, False, False]


def test_given_classes_leave_255_ignored_when_it_is_none_of_them():
    assert resolve_classes({0: 1, 9: 1, 255: 1}, parse_classes("0=a,9=b"), None).ignore_value == 255
    # where masks hold one of the named values, 255 is the other class under a wrong name
    assert resolve_classes({0: 1, 255: 1}, parse_classes("0=a,9=b"), None).ignore_value is None
    with_void = resolve_classes({0: 1, 9: 1, 11: 1}, parse_classes("0=a,9=b,11=void"), "11")
    assert with_void == ClassMap(("a", "b"), (0, 9), 11)
    assert resolve_classes({0: 1, 9: 1}, parse_classes("0=a,9=b"), "77").ignore_value == 77


def test_black_and_white_may_be_named_by_color():
    assert resolve_classes({0: 1, 255: 1}, parse_classes("#000000=road,#ffffff=car"), None).values == (0, 255)
    colored = resolve_classes({0: 1, 200: 1}, parse_classes("#000000=road,#c80000=car"), None)
    assert colored.values == ((0, 0, 0), (200, 0, 0))


@pytest.mark.parametrize(
    ("found", "classes", "ignore", "reason"),
    [
        ({0, 1}, None, "11", r"--ignore-index 11 is in no mask; the masks hold 0, 1"),
        ({0, 1, 2}, None, "1,11", r"--ignore-index 11 is in no mask; the masks hold 0, 1, 2"),
        ({0, 1}, None, "void", "'void' is no mask value"),
        ({0, 1}, None, "#12", "'#12' is no mask value"),
        ({7}, None, None, "all pixels of all masks hold 7: 1 class, expected 2 to 255; are the masks empty"),
        (set(), None, None, "0 classes"),
        ({0, 1}, None, "1", "1 classes"),
        (set(range(1, 257)), None, None, "256 classes"),
        ({0}, "0=a", None, "1 classes"),
    ],
)
def test_values_that_make_no_classes_are_refused(found, classes, ignore, reason):
    with pytest.raises(DataError, match=re.escape(reason)):
        resolve_classes(dict.fromkeys(found, 1), named_classes(classes, (), None), ignore)


@pytest.mark.parametrize(
    ("content", "pairs"),
    [
        ({"0": "background", "11": "void"}, [(0, "background"), (11, "void")]),
        ({"#804080": "road", "#000000": "rest"}, [((128, 64, 128), "road"), ((0, 0, 0), "rest")]),
        (["sky", "road", "Straße"], [(0, "sky"), (1, "road"), (2, "Straße")]),
    ],
)
def test_classes_are_read_from_json(tmp_path, content, pairs):
    path = tmp_path / "a=b, c.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert parse_classes(str(path)) == pairs


def test_classes_are_read_from_a_line():
    assert parse_classes("0=background, 255 = car,") == [(0, "background"), (255, "car")]
    assert parse_classes("#804080=road,#00FF00=a b") == [((128, 64, 128), "road"), ((0, 255, 0), "a b")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0=a,0=b", "class value 0 is given twice"),
        ("#ffffff=a,#FFFFFF=b", "class value #ffffff is given twice"),
        ("0=a,1=", "class 1 has no name"),
        ("0=a,1", "class 1 has no name"),
        ("a=0", "'a' is no mask value"),
        ("1.5=a", "'1.5' is no mask value"),
        ("#12345=a", "'#12345' is no mask value"),
        ("0=a,#000001=b", "mix numbers and colors"),
        ("0=a,1=b,#000001=c", "mix numbers and colors"),
        ("nowhere.json", "nowhere.json"),
        ("car,road", "'car' is no mask value"),
        ('json:{"0": "a", "0": "b"}', "class value 0 is given twice"),
        ('json:{"0": 1}', "expected"),
        ("json:[1, 2]", "expected"),
        ("json:3", "expected"),
        ('json:"road"', "expected"),
        ("json:{", "neither VALUE=NAME"),
    ],
)
def test_a_mistake_in_classes_is_one_clear_line(tmp_path, text, reason):
    if text.startswith("json:"):
        (tmp_path / "classes.json").write_text(text[5:])
        text = str(tmp_path / "classes.json")
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        parse_classes(text)
    assert "\n" not in str(error.value)


def test_the_ignored_value_becomes_255():
    class_map = ClassMap(("a", "b"), (0, 1), 11)
    np.testing.assert_array_equal(
        class_map.encode(np.uint8([[0, 11], [11, 1]]), "m"), [[0, IGNORE_INDEX], [IGNORE_INDEX, 1]]
    )
    class_map = ClassMap(("a", "b"), COLORS[1:], (0, 0, 0))
    np.testing.assert_array_equal(class_map.encode(np.uint8([[COLORS[2], (0, 0, 0)]]), "m"), [[1, IGNORE_INDEX]])


def test_all_ignored_values_become_255():
    class_map = ClassMap(("a", "b"), (0, 1), 9, joined=((7, 1), (8, IGNORE_INDEX)))
    for dtype in (np.uint8, np.uint16, np.int64):
        indices = class_map.encode(np.array([[0, 1, 7, 8, 9]], dtype), "m")
        assert indices.tolist() == [[0, 1, 1, IGNORE_INDEX, IGNORE_INDEX]]
    assert class_map.ignored_values == (9, 8)
    assert ClassMap(("a", "b"), (0, 1), None, joined=((7, 1), (8, IGNORE_INDEX))).ignored_values == (8,)
    several = resolve_classes(dict.fromkeys((0, 1, 8, 9), 1), (), "9,8")
    assert several.values == (0, 1)
    assert several.ignore_value == 9
    assert several.joined == ((8, IGNORE_INDEX),)


@pytest.mark.parametrize(("value", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16)])
def test_a_mask_is_written_with_the_bits_that_its_values_need(value, dtype):
    for values in ((0, value), (value, 0)):
        mask = ClassMap(("a", "b"), values, None).decode(np.uint8([[0, 1]]))
        assert mask.tolist() == [[*values]]
        assert mask.dtype == dtype


def test_a_value_may_be_255_and_there_may_be_255_classes():
    values = tuple(range(1, 256))
    class_map = ClassMap(tuple(map(str, values)), values, 0)
    np.testing.assert_array_equal(
        class_map.encode(np.arange(256, dtype=np.uint8)[None], "m"), [[IGNORE_INDEX, *range(255)]]
    )


@pytest.mark.parametrize(
    ("values", "mask", "message"),
    [
        (
            (0, 1, 2),
            [[0, 37]],
            "017.png: mask values 37 belong to no class; classes are 0, 1, 2; does it use other numbers, or",
        ),
        ((0, 1), [list(range(12))], "2, 3, 4, 5, 6, 7, 8, 9, ... belong to no class; classes are 0, 1"),
        ((0, 1), [[0, 700]], "values 700 belong"),
        ((0, 1), [[0, -3, 100_000]], "values -3, 100000 belong"),
        (COLORS, [[(0, 0, 0), (255, 1, 2)]], "#ff0102 belong to no class; classes are #000000, #804080, #8040c8"),
        (COLORS, [[0, 3]], "values #030303 belong"),
        (COLORS, [[0, 700]], "017.png is a mask of numbers, but the classes are #000000"),
        (((0, 0, 0), (300, 0, 0)), [[(255, 255, 255)]], "values #ffffff belong"),
        ((0, 1), [[(1, 2, 3)]], "017.png is a color mask, but the classes are 0, 1"),
    ],
)
def test_an_unknown_value_names_the_file(values, mask, message):
    class_map = ClassMap(tuple(map(str, values)), tuple(values), None)
    with pytest.raises(DataError, match=re.escape(message)):
        class_map.encode(read_mask(npy(np.array(mask, np.int64 if np.ndim(mask) == 2 else np.uint8)), "m"), "017.png")


def test_encoding_leaves_nothing_large_in_what_loader_processes_are_sent():
    class_map = ClassMap(("a", "b", "c"), COLORS, None)
    class_map.encode(read_mask(FORMATS["RGB png"], "m"), "m")
    assert len(pickle.dumps(class_map)) < 1000
    assert _table.cache_info().currsize > 0


def test_a_class_map_is_kept_with_a_model_and_has_values_for_names_where_these_are_missing():
    class_map = ClassMap(("a", "b"), (3, 5), 9, joined=((7, 1), (8, IGNORE_INDEX), (6, IGNORE_INDEX)), outside=0)
    assert ClassMap.of_model(Preprocess(**class_map.to_preprocess()), 2) == class_map
    assert len(class_map) == 2
    assert ClassMap.of_model(Preprocess(), 3) == ClassMap(("0", "1", "2"), (0, 1, 2), None)
    assert ClassMap.of_model(Preprocess(class_values=(5, 7)), 2).names == ("5", "7")
    assert class_map.values_by_class() == [[3], [5, 7]]
    assert class_map.describe_values() == ["3", "5 and 7", "ignored: [8, 6]", "others: 0"]
    assert ClassMap(("a", "b"), (3, 5), 9).describe_values() == ["3", "5"]
    assert [class_map.index_of(value) for value in (3, 5, 7, 8, 9, 4)] == [0, 1, 1, IGNORE_INDEX, IGNORE_INDEX, 0]
    colors = ClassMap(("a", "b"), COLORS[:2], None, joined=(((9, 9, 9), 1),))
    assert [colors.index_of(value) for value in (0, COLORS[1], 9, (1, 2, 3))] == [0, 1, 1, None]


@pytest.mark.parametrize(
    ("names", "values", "background"),
    [
        (("a", "Background"), (0, 1), 1),
        (("a", "_background_"), (0, 1), 1),
        (("a", "__background__"), (0, 1), 1),
        (("a", "backgrounds"), (0, 1), None),  # somebody has named the value 0
        (("1", "0"), (1, 0), 1),
        (("1", "2"), (1, 2), None),
        (("#ffffff", "#000000"), ((255, 255, 255), (0, 0, 0)), 1),
    ],
)
def test_the_background_is_called_so_or_is_the_value_0_without_a_name(names, values, background):
    assert ClassMap(names, values, None).background == background


@pytest.mark.parametrize(
    ("values", "limits"),
    [((-1, 5), "-1 to 5"), ((5, -1), "-1 to 5"), ((0, 65536), "0 to 65536"), ((65536, 0), "0 to ")],
)
def test_values_that_a_png_does_not_hold_are_one_line(values, limits):
    line = f"mask values {limits}.*cannot be written: a PNG mask holds 0 to 65535"
    with pytest.raises(DataError, match=line):
        ClassMap(("a", "b"), values, None).decode(np.uint8([[0, 1]]))


def test_values_are_written_and_turned_as_colors_and_greys():
    assert as_grey((7, 7, 7)) == 7
    assert as_grey((7, 7, 8)) == (7, 7, 8)
    assert as_grey(7) == 7
    assert as_color(7) == (7, 7, 7)
    assert as_color((1, 2, 3)) == (1, 2, 3)
    assert [key_of(value) for value in (7, (1, 2, 3), (256, 0, 0), (0, -1, 0))] == [7, 0x030201, -1, -1]
    assert key_of((255, 0, 254)) == 0xFE00FF
    assert unpack(0x030201) == (1, 2, 3)
    assert classes_example([0, 7]) == "0=background,7=foreground"
    assert classes_example([(0, 0, 0), (9, 9, 9), (1, 2, 3)]) == "#000000=background,#090909=class1,#010203=class2"
    assert parse_values(None) == parse_values("") == []
    assert parse_values("-3, #0102ff") == [-3, (1, 2, 255)]
    assert parse_values("9" * 18) == [10**18 - 1]
    with pytest.raises(DataError, match=f"'{'9' * 19}' is no mask value; expected a whole number or a color such"):
        parse_values("9" * 19)


def test_where_two_values_or_more_hold_most_pixels_the_others_may_be_invented():
    rare_values = {value: 4 for value in range(10, 20)}
    assert describe_invented({0: 30, 9: 30} | rare_values).startswith(
        "60.0% of the pixels hold 0, 9; the others look like"
    )
    rare_values = {value: 41 for value in range(10, 20)}
    assert describe_invented({0: 300, 9: 290} | rare_values).startswith("63.1% of the pixels hold 0, 9, 10; the others")
    assert describe_invented({0: 97, 9: 2, 10: 1}).startswith("99.0% of the pixels hold 0, 9;")  # two at least
    assert describe_invented(dict.fromkeys(range(20), 5)) is describe_invented({0: 5}) is None
    assert describe_invented({0: 57, 9: 38, 1: 5}).startswith("100.0% of the pixels hold 0, 1, 9;")  # a twentieth
    assert describe_invented({0: 57, 9: 39, 1: 4}).startswith("96.0% of the pixels hold 0, 9;")
    assert "--check-data --classes 0=background,9=foreground lists" in describe_invented({0: 57, 9: 39, 1: 4})


def test_other_values_are_mistakes_where_no_class_is_the_background():
    classes = [(0, "sky"), (1, "land")]
    assert resolve_classes({0: 1, 1: 1}, classes, None, "background").outside is None
    assert resolve_classes({0: 1, 1: 1}, classes, None, "ignore").outside == 255
    classes = [(1, "land"), (0, "background")]
    assert resolve_classes({0: 1, 1: 1}, classes, None, "background").outside == 1


def test_two_colors_of_which_one_is_black_are_background_and_foreground():
    assert resolve_classes({(0, 0, 0): 1, (1, 2, 3): 1}, (), None).names == ("background", "foreground")
    assert resolve_classes({(9, 9, 9): 1, (1, 2, 3): 1}, (), None).names == ("#010203", "#090909")
    classes = parse_classes("#000000=road,#ffffff=car")
    colors = {(0, 0, 0): 1, (255, 255, 255): 1, (1, 2, 3): 1}
    assert resolve_classes(colors, classes, None).values == ((0, 0, 0), (255, 255, 255))


@pytest.mark.parametrize(("count", "is_refused"), [(32, False), (33, True)])
def test_more_than_32_scattered_grey_values_are_no_classes(count, is_refused):
    pixels = {7 * value: 10 for value in range(count)}
    if is_refused:
        with pytest.raises(
            DataError, match=r"the masks hold 33 grey values, 0, 7, 14, 21, 28, 35, 42, 49, \.\.\.: smoothed"
        ):
            resolve_classes(pixels, (), None)
    else:
        assert len(resolve_classes(pixels, (), None)) == 32


def test_many_scattered_grey_values_are_no_classes_but_many_numbered_ones_are():
    smoothed = {value: 10 for value in [*range(0, 250, 5), 255]}
    with pytest.raises(DataError, match="smoothed edges or lossy compression"):
        resolve_classes(smoothed, (), None)
    assert len(resolve_classes({value: 10 for value in range(151)}, (), None).values) == 151
    assert len(resolve_classes({(value, 0, 0): 10 for value in range(40)}, (), None)) == 40


def test_a_data_set_has_at_most_255_classes():
    assert len(resolve_classes(dict.fromkeys(range(1, 256), 9), (), None)) == 255
    with pytest.raises(DataError, match="256 classes, expected 2 to 255; the masks hold 1, 2, 3"):
        resolve_classes(dict.fromkeys(range(1, 257), 9), (), None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((2, 0, 1), True), ((0, 1, 255), True), ((0, 2), False), ((1, 2), False), ((0, 1, 254), False)],
)
def test_numbers_are_a_run_from_0_on_whether_or_not_some_are_ignored(values, expected):
    assert is_run(values) is expected
