"""An input of a prediction: its name, its pixels, and the files of its output."""

from pathlib import Path

from data_utils.image_io.formats import BandSource, PictureFile, VolumeFile
from inference.outputs.jobs import ImageJob, VolumeJob


def test_a_job_knows_its_name_its_pixels_and_its_files():
    image = ImageJob(image=Path("in/a.b.tif"), size=(4, 5), output=Path("out/a.b"))
    assert (image.name, image.pixels, image.files) == ("in/a.b.tif", 20, ("in/a.b.tif",))
    assert [str(image.file(extension)) for extension in (".png", ".npy")] == ["out/a.b.png", "out/a.b.npy"]
    page = ImageJob(image=Path("a.tif"), size=None, output=Path("a"), page=2)
    assert (page.name, page.pixels) == ("a.tif page 3", 0)
    bands = BandSource(("in/B2.tif", "in/B3.tif"))
    scene = ImageJob(image=Path("in/B2.tif"), size=None, output=Path("a"), stored=bands)
    assert (scene.source, scene.files) == (bands, ("in/B2.tif", "in/B3.tif"))
    picture = ImageJob(image=Path("a.tif"), size=None, output=Path("a"), stored=PictureFile("a.tif"))
    assert (picture.source, picture.files) == (PictureFile("a.tif"), ("a.tif",))
    assert page.source == Path("a.tif")
    volume = VolumeJob(image=Path("a.nii"), size=(2, 3, 4), output=Path("a"), volume=VolumeFile(("a.nii", "b.nii")))
    assert (volume.pixels, volume.files) == (24, ("a.nii", "b.nii"))
    written = [volume.file(extension).name for extension in (".png", ".npy", ".overlay.png")]
    assert written == ["a.nii.gz", "a.probabilities.nii.gz", "a.overlay.png"]
