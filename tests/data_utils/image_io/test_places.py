"""The place of a raster in the world: its pixels, and its coordinate reference system."""

import numpy as np
import pytest
import rasterio
import tifffile
from rasterio.transform import Affine
from support.rasters import NORTH_UP, write_raster

from data_utils.image_io.places import Place, read_grid
from data_utils.image_io.tiff import has_place_tags


@pytest.mark.parametrize(("shift", "is_grid"), [(0.0009, True), (0.0011, False)])
def test_places_within_a_thousandth_of_a_pixel_are_one_grid(shift, is_grid):
    plain = Place((1.0, 0.0, 0.0, 0.0, -1.0, 0.0))
    assert plain.has_same_grid(plain._replace(transform=(1.0, 0.0, shift, 0.0, -1.0, 0.0)), (5, 6)) is is_grid


def test_a_crs_is_known_by_the_number_of_its_map_or_by_its_definition(tmp_path):
    own = rasterio.crs.CRS.from_proj4("+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84 +units=m")
    other = rasterio.crs.CRS.from_proj4("+proj=laea +lat_0=11 +lon_0=20 +datum=WGS84 +units=m")
    found = []
    for crs in (own, own, other, "EPSG:25832+5783"):  # the last with heights
        file = write_raster(tmp_path / "a.tif", np.zeros((1, 4, 5), np.uint8), crs=crs)
        found.append(read_grid(str(file)).place.crs)
    assert isinstance(found[0], str)
    assert found[0] == found[1] != found[2]
    assert found[3] == 25832


SCALE = (33550, "d", 3, (2.0, 3.0, 0.0), False)
TIE = (33922, "d", 6, (4.0, 5.0, 0.0, 100.0, 200.0, 0.0), False)
KEYS = (34735, "H", 4, (1, 1, 0, 0), False)
PIXELS_THEMSELVES = (1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0)


def matrix(values: tuple[float, ...]) -> tuple:
    return (34264, "d", 16, values, False)


@pytest.mark.parametrize(
    ("tags", "transform", "has_tags"),
    [
        ([SCALE, TIE], (2, 0, 92, 0, -3, 215), True),  # the tie is a pixel within
        ([SCALE], (2, 0, 0, 0, -3, 0), True),
        ([matrix((2, 1, 0, 7, 3, 4, 0, 8, *8 * [0]))], (2, 1, 7, 3, 4, 8), True),
        ([matrix((2, 1, 0, 7, 4, 2, 0, 8, *8 * [0]))], None, True),  # its pixels have no area
        ([matrix(PIXELS_THEMSELVES)], None, True),
        ([(33550, "d", 2, (2.0, 3.0), False), TIE], (2, 0, 92, 0, -3, 215), True),
        ([SCALE, (33922, "d", 6, (4.0, 5.0, 0.0, float("nan"), 200.0, 0.0), False)], None, True),
        ([KEYS], None, True),
        ([], None, False),
    ],
)
def test_the_grid_of_a_page_is_what_its_tags_say(tmp_path, tags, transform, has_tags):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 5), np.uint8), photometric="minisblack", extratags=tags)
    grid = read_grid(str(tmp_path / "a.tif"))
    assert (None if grid is None else grid.place.transform) == transform
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert has_place_tags(tiff.pages[0]) is has_tags


@pytest.mark.parametrize("area_or_point", ["Area", "Point"])
@pytest.mark.parametrize(
    "transform",
    [NORTH_UP, Affine.translation(3e5, 4e6) * Affine.rotation(20) * Affine.scale(2, -3)],
    ids=["north up", "turned"],
)
def test_places_are_those_of_rasterio(tmp_path, transform, area_or_point):
    path = write_raster(tmp_path / "a.tif", np.zeros((1, 8, 9), np.uint8), transform=transform)
    with rasterio.open(path, "r+") as file:
        file.update_tags(AREA_OR_POINT=area_or_point)
    place = read_grid(str(path)).place
    with rasterio.open(path) as file:
        assert np.allclose(place.transform, file.transform[:6], rtol=0, atol=1e-6)
        assert place.crs == file.crs.to_epsg() == 32633
    assert np.allclose(place.to_pixels(*place.to_world(3.5, 2.0)), (3.5, 2.0))
