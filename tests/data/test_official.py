"""Readers of the official files, on tiny files of the same format."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sqlite3
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from shoal.core.errors import UserError
from shoal.data import file_formats
from shoal.data.sources import load

RNG = np.random.default_rng(0)


def pictures(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def idx(values: NDArray[np.uint8]) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.tobytes())


def pack(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


def jpeg(side: int, value: int, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files(cache: Path, name: str) -> None:
    x = {part: pictures(n, 28, 28) for part, n in (("train", 5), ("t10k", 3))}
    y = {part: np.arange(n, dtype=np.uint8) for part, n in (("train", 5), ("t10k", 3))}
    (cache / name).mkdir(parents=True)
    for part in x:
        (cache / name / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(x[part]))
        (cache / name / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(y[part]))
    data = load(name)
    assert torch.equal((data.train.x * 255).round().byte()[:, 0], torch.from_numpy(x["train"]))
    assert data.test.y.tolist() == [0, 1, 2] and data.shape == (1, 28, 28)
    assert load(name, flat=True, size=14, limit=2).train.x.shape == (2, 196)


def test_emnist_is_turned_and_its_letters_begin_at_zero(cache: Path) -> None:
    x = pictures(4, 28, 28)
    files = {
        f"gzip/emnist-{s}-{p}-{kind}": idx(v)
        for s in ("letters", "digits")
        for p in ("train", "test")
        for kind, v in (
            ("images-idx3-ubyte.gz", x),
            ("labels-idx1-ubyte.gz", np.array([1, 2, 9, 3], np.uint8)),
        )
    }
    pack(cache / "emnist" / "gzip.zip", files)
    letters, digits = load("emnist"), load("digit10:emnist")
    assert letters.classes == 26 and letters.train.y.tolist() == [0, 1, 8, 2]
    assert torch.allclose(letters.train.x[0, 0], torch.from_numpy(x[0].T / 255).float())
    assert digits.train.y.tolist() == [1, 2, 9, 3] and digits.shape == (1, 32, 32)
    with pytest.raises(UserError, match="split.*letters or digits"):
        load("emnist", split="both")


def test_usps_rows(cache: Path) -> None:
    row = "10 " + " ".join(f"{i + 1}:{v:.3f}" for i, v in enumerate([-1.0, 1.0, 0.0] + [-1] * 253))
    (cache / "usps").mkdir(parents=True)
    for file in ("usps.bz2", "usps.t.bz2"):
        (cache / "usps" / file).write_bytes(bz2.compress(f"{row}\n1{row[2:]}\n".encode()))
    data = load("usps")
    assert data.train.y.tolist() == [9, 0]
    assert (data.train.x[0, 0, 0, :4] * 255).tolist() == pytest.approx([0, 255, 127, 0])


def test_svhn_matrices(cache: Path) -> None:
    (cache / "svhn").mkdir(parents=True)
    x = pictures(32, 32, 3, 4)
    for part in ("train", "test"):
        y = np.array([[10], [1], [9], [10]], np.uint8)
        savemat(cache / "svhn" / f"{part}_32x32.mat", {"X": x, "y": y})
    data = load("svhn")
    assert data.train.y.tolist() == [0, 1, 9, 0]
    assert torch.allclose(data.train.x[2, 1], torch.from_numpy(x[:, :, 1, 2] / 255).float())


def test_cifar_binaries(cache: Path) -> None:
    def rows(labels: list[tuple[int, ...]], value: int) -> bytes:
        return b"".join(bytes(y) + bytes([value, 1, 2] * 1024) for y in labels)

    ten = {f"c/data_batch_{i}.bin": rows([(i,)], i) for i in (2, 1)}
    pack(cache / "cifar10" / "cifar-10-binary.tar.gz", {**ten, "c/test_batch.bin": rows([(7,)], 3)})
    hundred = {"c/train.bin": rows([(3, 99), (4, 5)], 1), "c/test.bin": rows([(1, 2)], 1)}
    pack(cache / "cifar100" / "cifar-100-binary.tar.gz", hundred)
    data = load("cifar10")
    assert data.train.y.tolist() == [1, 2] and data.test.y.tolist() == [7]
    assert (data.train.x[1, 0, 0, :4] * 255).round().tolist() == [2, 1, 2, 2]
    assert load("cifar100").train.y.tolist() == [99, 5]
    assert load("cifar100", coarse=True).train.y.tolist() == [3, 4]


def test_tiny_imagenet_archive(cache: Path) -> None:
    root = "tiny-imagenet-200"
    files = {
        f"{root}/wnids.txt": b"n2\nn1\n",
        f"{root}/val/val_annotations.txt": b"val_0.JPEG\tn2\t0\t0\t1\t1\n",
        f"{root}/val/images/val_0.JPEG": jpeg(64, 50),
        f"{root}/train/n1/images/n1_0.JPEG": jpeg(64, 100),
        f"{root}/train/n2/images/n2_0.JPEG": jpeg(64, 200),
    }
    pack(cache / "tiny_imagenet" / "tiny-imagenet-200.zip", files)
    data = load("tiny_imagenet")
    assert data.train.y.tolist() == [0, 1] and data.test.y.tolist() == [1]
    assert float(data.train.x[1].mean() * 255) == pytest.approx(200, abs=3)
    assert len(load("tiny_imagenet", limit=1).train.y) == 1


def test_domains_from_an_archive_and_from_folders(cache: Path, tmp_path: Path) -> None:
    domains = {"art_painting": 10, "cartoon": 60, "photo": 110, "sketch": 160}
    files = {
        f"kfold/{domain}/{kind}/{i}.png": jpeg(20, value + i, "PNG")
        for domain, value in domains.items()
        for kind in ("dog", "person")
        for i in range(5)
    }
    pack(cache / "pacs" / "PACS.zip", files)
    whole, photo = load("pacs", size=20), load("pacs:photo", size=20)
    assert whole.group is not None and whole.group.bincount().tolist() == [8, 8, 8, 8]
    assert sorted(set(photo.train.y.tolist())) == [0, 6] and photo.group is None
    assert 110 <= float(photo.train.x.mean() * 255) <= 115 and photo.shape == (3, 20, 20)
    for name in ("Caltech101", "LabelMe", "SUN09", "VOC2007"):
        for i in range(5):
            path = cache / "vlcs" / name / "bird" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(30, 10 * i))
    assert load("vlcs:sun09").train.x.shape == (4, 3, 48, 48)


def test_news_files(cache: Path) -> None:
    (cache / "ag_news").mkdir(parents=True)
    for part in ("train", "test"):
        text = '"3","Title, one","He said ""no"""\n"1","B","war"\n'
        (cache / "ag_news" / f"{part}.csv").write_text(text)
    data = load("ag_news", length=6, vocabulary=50)
    assert data.train.y.tolist() == [2, 0] and data.vocabulary == 50
    assert (data.train.x[0] != 0).sum() == 6 and (data.train.x[1] != 0).sum() == 2
    letters = {
        f"20news-bydate-{p}/{group}/1": b"From: a\n\nbody of it"
        for p in ("train", "test")
        for group in ("sci.med", "alt.atheism")
    }
    pack(cache / "20newsgroups" / "20news-bydate.tar.gz", letters)
    assert load("20newsgroups").train.y.tolist() == [0, 1]
    assert int((load("20newsgroups").train.x[0] != 0).sum()) == 3
    assert int((load("20newsgroups", headers=True).train.x[0] != 0).sum()) == 6


def test_glue_files(cache: Path) -> None:
    tables = {
        ("qqp", "QQP-clean.zip"): "id\tquestion1\tquestion2\tis_duplicate\n0\ta b\tc\t1\n",
        ("qnli", "QNLIv2.zip"): "index\tquestion\tsentence\tlabel\n0\ta\tb c\tnot_entailment\n",
        ("sst2", "SST-2.zip"): 'sentence\tlabel\na "b c\t1\n',
    }
    for (name, file), text in tables.items():
        pack(cache / name / file, {f"X/{p}.tsv": text.encode() for p in ("train", "dev")})
    labels = {name: load(name).train.y.tolist() for name, _ in tables}
    assert labels == {"qqp": [1], "qnli": [0], "sst2": [1]}
    assert int((load("qqp").train.x != 0).sum()) == 3


def test_reviews_archive_has_one_vocabulary_for_all_domains(cache: Path) -> None:
    files = {}
    for folder in ("books", "dvd", "electronics", "kitchen_&_housewares"):
        for word in ("negative", "positive"):
            body = f"<review><review_text>\n{word} {folder[:3]}\n</review_text></review>" * 5
            files[f"sorted_data_acl/{folder}/{word}.review"] = body.encode("latin-1")
    pack(cache / "multi_domain_sentiment" / "domain_sentiment_data.tar.gz", files)
    whole, dvd = load("multi_domain_sentiment"), load("multi_domain_sentiment:dvd")
    assert len(whole.train.y) == 32 and len(whole.test.y) == 8 and dvd.group is None
    assert whole.group is not None
    assert torch.equal(dvd.train.x, whole.train.x[whole.group == 1])


def test_streams(cache: Path) -> None:
    for name in ("elec2", "noaa_weather", "gas_sensor_drift", "outdoor_objects"):
        (cache / name).mkdir(parents=True)
    rows = "".join(f"0.{i},1,1,1,1,{i},{i % 2}\n" for i in range(20))
    head = "period,nswprice,nswdemand,vicprice,vicdemand,transfer,class\n"
    (cache / "elec2" / "elec.csv").write_text(head + rows)
    elec = load("elec2", clients=2)
    assert elec.test.y.tolist() == [0, 1, 0, 1] and elec.shape == (6,)
    assert elec.group is not None and elec.group.tolist() == [0] * 8 + [1] * 8
    weather = cache / "noaa_weather"
    (weather / "NEweather_data.csv").write_text("".join(f"{i},1,2,3,4,5,6,7\n" for i in range(10)))
    (weather / "NEweather_class.csv").write_text("1\n2\n" * 5)
    assert load("noaa_weather", clients=1).train.y.tolist() == [0, 1, 0, 1, 1, 0, 1, 0]
    line = " ".join(f"{i}:{i}.5" for i in range(1, 129))
    batches = {f"Dataset/batch{b}.dat": f"6;10.0 {line}\n1 {line}\n".encode() for b in range(1, 11)}
    pack(cache / "gas_sensor_drift" / "gas_sensor_drift.zip", batches)
    gas = load("gas_sensor")
    assert gas.train.x.shape == (16, 128) and set(gas.train.y.tolist()) == {0, 5}
    assert gas.group is not None and gas.group[-1] == 9
    out = cache / "outdoor_objects"
    (out / "outdoorStream.data").write_text("0.1 " * 20 + "0.5\n" + "0.2 " * 21 + "\n")
    (out / "outdoorStream.labels").write_text("3\n7\n")
    with pytest.raises(UserError, match="clients of data set 'outdoor_objects' is 10"):
        load("outdoor_objects")


def test_tiny_shakespeare_by_role(cache: Path) -> None:
    (cache / "shakespeare").mkdir(parents=True)
    said = "".join(f"{role}:\n{'abcd' * 10}\n\n" for role in ("A", "B", "A"))
    (cache / "shakespeare" / "tinyshakespeare.txt").write_text(said)
    data = load("shakespeare", length=4, vocabulary=10)
    assert data.group is not None and data.group.unique().tolist() == [0, 1]
    assert data.classes == 10 and data.shape == (4,)
    assert data.train.y[0] == data.train.x[0, 0]  # "abcd" is followed by "a"


def example(**features: list[float] | list[int] | bytes) -> bytes:
    """A serialised tf.train.Example."""

    def field(number: int, content: bytes) -> bytes:
        size, out = len(content), b""
        while size > 127:
            out, size = out + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + out + bytes([size]) + content

    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif isinstance(value[0], float):
            feature = field(2, field(1, struct.pack(f"<{len(value)}f", *value)))
        else:
            feature = field(3, field(1, bytes(int(v) for v in value)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def database(path: Path, rows: list[tuple[str, str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix(".tmp")
    with sqlite3.connect(plain) as file:
        file.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
        file.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    file.close()
    path.write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()


def test_an_example_is_read_without_its_library() -> None:
    found = file_formats.example(example(a=[0.5, -2.0], b=[7, 9], c="né".encode()))
    assert found == {"a": [0.5, -2.0], "b": [7, 9], "c": ["né".encode()]}


def test_femnist_and_stackoverflow_databases(cache: Path) -> None:
    ink = example(pixels=[1.0] * 783 + [0.0], label=[61])
    rows = [(split, who, ink) for split in ("train", "test") for who in ("w2", "w1", "w3")]
    database(cache / "femnist" / "fed_emnist.sqlite.lzma", rows)
    data = load("femnist", writers=2)
    assert data.group is not None and data.group.tolist() == [0, 1]
    assert data.train.y.tolist() == [61, 61] and float(data.train.x.sum()) == 2.0
    said = [
        ("train", who, example(tokens=f"how do i {w}".encode())) for who in "ab" for w in "xyxxy"
    ]
    database(cache / "stackoverflow" / "stackoverflow.sqlite.lzma", said)
    words = load("stackoverflow", length=5, vocabulary=20)
    assert len(words.train.y) == 8 and len(words.test.y) == 2 and words.vocabulary == 20
    assert (words.train.x[0] != 0).tolist() == [True, True, True, False, False]
    assert len(set(words.train.y.tolist())) == 2


def test_files_that_are_broken_are_named(cache: Path) -> None:
    (cache / "usps").mkdir(parents=True)
    for part in ("train", "test"):
        (cache / "usps" / f"{part}.npz").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match="train.npz cannot be read as arrays"):
        load("usps")
    objects = np.array([{"run": "me"}], dtype=object)
    np.savez(cache / "usps" / "train.npz", x=objects, y=objects, allow_pickle=True)
    with pytest.raises(UserError, match="train.npz cannot be read as arrays"):
        load("usps")
