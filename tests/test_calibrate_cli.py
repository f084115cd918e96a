"""fastocr-calibrate: from pages to policy.json, its report, and into an engine; and what mistakes get."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

torch = pytest.importorskip("torch", reason="calibrating needs the extra `export`")

import tiny_checkpoint  # noqa: E402
from cli_helpers import blank, tiff  # noqa: E402

from fastocr_trt.cli import calibrate, export  # noqa: E402
from fastocr_trt.demo.pages import generate_page  # noqa: E402
from fastocr_trt.errors import FastOCRError  # noqa: E402
from fastocr_trt.export import calibrate as calibrate_module  # noqa: E402
from fastocr_trt.export import calibrate_verify, engine_directory  # noqa: E402
from fastocr_trt.export.calibrate_pages import FolderPages  # noqa: E402
from fastocr_trt.fixation import FixationPolicy  # noqa: E402
from fastocr_trt.manifest import MANIFEST_NAME  # noqa: E402

INTERVAL = re.compile(r"\d% \([\d.]+%(-| to )[\d.]+%\)")
QUICK = ["--threads", "1", "--max-new-tokens", "24"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_checkpoint.save(tiny_checkpoint.model(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def pages(tmp_path):
    """Two pages, one with its text beside it."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for seed in (1_020, 1_021):
        page = generate_page(seed, visual_tokens=64)
        page.image.save(folder / f"page-{seed}.png")
    (folder / "page-1020.txt").write_text(generate_page(1_020, visual_tokens=64).text, encoding="utf-8")
    return folder


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.opened.append(tag)
        links = [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        self.fetched += [link for link in links if not link.startswith(("#", "data:"))]


def test_demo_pages_to_policy_and_report(tmp_path, capsys, monkeypatch):
    policy, html = tmp_path / "policy.json", tmp_path / "report.html"
    plots = importlib.util.find_spec("matplotlib") is not None
    argv = ["demo", "-o", str(policy), "--count", "3", "--visual-tokens", "64", *QUICK]
    argv += ["--target", "0.5", *(["--html", str(html)] if plots else [])]
    code = calibrate.main(argv)
    told = capsys.readouterr()
    assert code == 0, told.err
    data = json.loads(policy.read_text(encoding="utf-8"))
    chosen = FixationPolicy.from_dict(data["policy"])
    assert data["calibration"]["status"] == "calibrated on few pages" and "retention" in told.out
    assert re.search(r"focal layers " + ", ".join(map(str, chosen.focal_layers)), told.out)
    assert "cut after 24 tokens: what comes later is not measured" in told.err
    record = data["calibration"]
    assert record["pages"]["cut"] == 3 and record["pages"]["left_out"] == 0
    assert (record["judged_on"], record["judged_pages"]) == ("value", 3)
    verdict = "calibrated on few pages: retention"
    cut = "fewer than 10 pages, so that the value itself counts; 3 of 3 pages were cut after 24 tokens"
    assert verdict in told.out and cut in told.out
    assert "95%" not in told.out and not INTERVAL.search(told.out)
    assert all(entry["retention"]["low"] is None for entry in record["verified"])
    assert "recording dense reading" in told.err and (tmp_path / "policy.record.npz").is_file()
    if not plots:
        pytest.skip("matplotlib is not installed: the report was not written")
    text = html.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.opened.count("svg") == 5 and not tags.fetched
    assert not {"script", "link", "img", "iframe"} & set(tags.opened)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    said = ["".join(ElementTree.fromstring(drawing).itertext()) for drawing in drawings]
    expected = ("whole page", "overlap", "layer that reads", "mean visual reads", "retention")
    assert all(words in drawing for drawing, words in zip(said, expected, strict=True))
    for entry in data["calibration"]["verified"]:
        assert f"{entry['retention']['value']:.1%}" in text
    assert verdict.capitalize() in text and cut in text
    assert "bootstrap" not in text and not INTERVAL.search(text)

    monkeypatch.setattr(calibrate_verify, "FEWEST_PAGES", 3)  # the same readings, as if they were many
    assert calibrate.main([*argv, "--target", "0"]) == 0
    told = capsys.readouterr().out
    assert "  calibrated: retention" in told and "the interval's lower bound counts" in told and INTERVAL.search(told)
    text = html.read_text(encoding="utf-8")
    assert "Calibrated: retention" in text and "bootstrap" in text and INTERVAL.search(text)
    record = json.loads(policy.read_text(encoding="utf-8"))["calibration"]
    assert all(entry["retention"]["low"] is not None for entry in record["verified"])


def test_a_policy_below_the_target_is_written_and_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(calibrate_module, "pick", lambda verified, target: (verified[0], False))
    policy = tmp_path / "policy.json"
    argv = ["demo", "-o", str(policy), "--count", "3", "--visual-tokens", "64", *QUICK]
    assert calibrate.main([*argv, "--candidates", "1"]) == 1
    told = capsys.readouterr()
    assert "keeps 99.0% of dense accuracy" in told.err and "closest" in told.out
    data = json.loads(policy.read_text(encoding="utf-8"))
    assert data["calibration"]["status"] == "calibrated, below its target"
    assert data["policy"] == data["calibration"]["verified"][0]["policy"]


def test_a_folder_calibrates_and_the_engine_carries_the_record(tiny, pages, tmp_path, capsys, monkeypatch):
    policy, engine = tmp_path / "policy.json", tmp_path / "engine"
    (pages / "page-1020.txt").unlink()  # a random model reads nothing
    assert calibrate.main([str(tiny), "--pages", str(pages), "-o", str(policy), "--target", "0", *QUICK]) == 0
    assert "no texts" in capsys.readouterr().out
    data = json.loads(policy.read_text(encoding="utf-8"))
    # An engine without graphs: tracing takes half a minute, and is tested elsewhere.
    monkeypatch.setattr(engine_directory, "_trace", lambda *args: ({}, []))
    argv = [str(tiny), "-o", str(engine), "--policy", str(policy)]
    assert export.main(argv) == 0
    assert "another checkpoint" not in capsys.readouterr().err
    manifest = json.loads((engine / MANIFEST_NAME).read_text(encoding="utf-8"))
    assert manifest["policy"] == data["policy"] and manifest["calibration"] == data["calibration"]

    data["calibration"]["model"]["files"]["config.json"] = "0" * 64
    policy.write_text(json.dumps(data), encoding="utf-8")
    assert export.main([*argv, "--force"]) == 0
    assert "calibrated on another checkpoint" in capsys.readouterr().err


def test_a_page_that_cannot_be_read_is_left_out_and_the_exit_code_says_so(tiny, pages, tmp_path, capsys):
    policy = tmp_path / "policy.json"
    (pages / "page-1020.txt").unlink()
    (pages / "broken.png").write_bytes(b"no image")
    assert calibrate.main([str(tiny), "--pages", str(pages), "-o", str(policy), "--target", "0", *QUICK]) == 1
    told = capsys.readouterr()
    assert "broken.png" in told.err and "error: 1 page could not be read; the policy rests on the others" in told.err
    record = json.loads(policy.read_text(encoding="utf-8"))["calibration"]
    assert record["pages"]["left_out"] == 1 and record["pages"]["count"] == 2
    assert "1 page could not be read" in told.out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"policy": {"focal_layers": [1]}, "extra": 1}', "unknown fields ['extra']"),
        ('{"policy": {"focal_layers": [1]}, "calibration": 3}', "calibration that is no JSON object"),
        ('{"policy": [1]}', "a policy must be a JSON object"),
        ("[" * 200_000, "not readable JSON (it is nested too deep)"),
        ('{"policy": ' + "9" * 5_000 + "}", "not readable JSON"),
    ],
)
def test_a_policy_file_that_is_neither_form(tmp_path, capsys, content, told):
    path = tmp_path / "policy.json"
    path.write_text(content, encoding="utf-8")
    assert export.main(["demo", "-o", str(tmp_path / "engine"), "--policy", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_texts_are_found_by_page_of_file(tmp_path):
    folder, texts = tmp_path / "pages", tmp_path / "texts"
    blank(folder / "one.png")
    tiff(folder / "two.tif", 2)
    blank(folder / "strip.png", (3, 900))
    (folder / "broken.png").write_bytes(b"no image")
    texts.mkdir()
    (texts / "one.txt").write_text("first", encoding="utf-8")
    (texts / "two-2.txt").write_text("second", encoding="utf-8")
    told: list[str] = []
    found = FolderPages(folder, texts, 200, told.append)
    for _ in range(2):
        assert [page.text for page in found] == ["first", None, "second"]
    assert len(told) == 2 and "strip" in told[1] and "broken.png" in told[0]  # each is told once


@pytest.mark.parametrize(
    "content",
    [
        "Some words\nof a page\n",
        "Some words\nof a page\n\n\n\n",
        "\ufeffSome words  \r\nof a page\r\n",
        "Some words\nof a page\f",
    ],
)
def test_what_a_page_does_not_show_is_no_part_of_its_text(tmp_path, content):
    blank(tmp_path / "page.png")
    (tmp_path / "page.txt").write_bytes(content.encode())
    [page] = FolderPages(tmp_path, None, 200, lambda text: None)
    assert page.text == "Some words\nof a page"


def test_texts_that_belong_to_no_page_are_told(tmp_path):
    blank(tmp_path / "pages" / "s0.png")
    blank(tmp_path / "pages" / "s1.png")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "s0-1.txt").write_text("one", encoding="utf-8")  # s0.png has no second page: its text is s0.txt
    with pytest.raises(
        FastOCRError, match=r"belongs to a page \(s0-1.txt\): name them like the pages, s0.txt for s0.png"
    ):
        FolderPages(tmp_path / "pages", texts, 200, lambda text: None)
    (texts / "s1.txt").write_text("one", encoding="utf-8")
    told: list[str] = []
    found = FolderPages(tmp_path / "pages", texts, 200, told.append)
    assert (found.with_text, found.readable) == (1, 2)
    assert len(told) == 1 and "no page for s0-1.txt;" in told[0]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("{tiny} -o {tmp}/p.json", "give --pages DIR"),
        ("demo -o {tmp}/p.json --pages {tmp}/none", "is not a folder"),
        ("demo -o {tmp}/p.json --pages {empty}", "holds no page"),
        ("demo -o {tmp}/p.json --pages {pages} --texts {empty}", "no text in"),
        ("demo -o {tmp}/p.json --pages {pages} --texts {tmp}/none", "is not a folder"),
        ("demo -o {tmp}/p.json --texts {empty}", "--texts goes with --pages"),
        ("demo -o {tmp}/p.json --pages {pages} --count 3", "--count is about generated pages"),
        ("demo -o {tmp}/p.json --count 100000", "too many"),
        ("demo -o {tmp}/p.json --keep 0", "selects nothing"),
        ("demo -o {tmp}/p.json --max-new-tokens 2", "at least 3"),
        ("demo -o {tmp}", "is a folder"),
        ("demo -o {tmp}/q.json", "q.record.npz is a folder"),
        ("demo -o {tmp}/none/p.json", "no folder"),
        ("demo -o {tmp}/p.json --html {tmp}/p.json", "give two files"),
        ("{other} -o {tmp}/p.json --pages {pages}", "supported are"),
        ("{empty} -o {tmp}/p.json --pages {pages}", "no config.json"),
        ("demo -o {tmp}/p.json --pages {broken}", "no page to calibrate on"),
        ("demo -o {pages}/page-1020.txt --pages {pages}", "it is the text of a page"),
        ("demo -o {pages}/page-1020.png --pages {pages}", "it is a page to read; choose another place with -o"),
        ("demo -o {tmp}/p.json --html {pages}/page-1020.png --pages {pages}", "choose another place with --html"),
        ("demo -o {tmp}/link-to-page --pages {pages}", "it is a page to read"),
        ("{tiny} -o {tiny}/config.json --pages {pages}", "it is a file of the checkpoint"),
        ("demo -o {tmp}/p.json --html {tmp}/p.record.npz", "p.record.npz; give two files"),
        ("demo -o {tmp}/p.json --html {tmp}/link-to-p", "give two files"),
        ("demo -o {tmp}/fifo", "is a device or a FIFO"),
        ("demo -o {tmp}/p.json --html {tmp}/fifo", "is a device or a FIFO; give a file to write with --html"),
        ("demo -o {tmp}/p.json --dpi nan", "dpi is nan"),
        ("demo -o {tmp}/p.json --dpi 0", "dpi is 0.0"),
        ("demo -o {tmp}/p.json --pages {folder_text}", "cannot be read as a page's text (Is a directory)"),
        ("demo -o {tmp}/p.json", "required: MODEL"),
    ],
)
def test_mistakes_get_one_sentence(tiny, pages, tmp_path, capsys, monkeypatch, argv, told):
    monkeypatch.setattr(calibrate, "_check_plots", lambda: None)  # --html is checked as if it could be made
    places = {"tiny": tiny, "pages": pages, "tmp": tmp_path}
    for name in ("empty", "other", "broken", "folder_text"):
        places[name] = tmp_path / name
        places[name].mkdir()
    (places["other"] / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (places["broken"] / "page.png").write_bytes(b"no image")
    blank(places["folder_text"] / "page.png")
    (places["folder_text"] / "page.txt").mkdir()
    (tmp_path / "q.record.npz").mkdir()
    (tmp_path / "link-to-page").symlink_to(pages / "page-1020.png")
    (tmp_path / "link-to-p").symlink_to(tmp_path / "p.json")
    os.mkfifo(tmp_path / "fifo")
    inputs = {path: path.read_bytes() for folder in (pages, tiny) for path in folder.iterdir()}
    words = [word.format(**places) for word in argv.split()]
    if told == "required: MODEL":
        words = words[1:]
    try:
        code = calibrate.main([*words, "--threads", "1"])
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2 and not (tmp_path / "p.json").exists()
    assert told in error and "Traceback" not in error and "defect" not in error
    assert {path: path.read_bytes() for folder in (pages, tiny) for path in folder.iterdir()} == inputs


def test_a_report_without_matplotlib_names_the_extra(tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    argv = ["demo", "-o", str(tmp_path / "p.json"), "--html", str(tmp_path / "r.html")]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert calibrate.main(argv) == 2
    told = capsys.readouterr().err
    assert "matplotlib, which is not installed; install the extra" in told and "fastocr-trt[plots]" in told

    monkeypatch.delitem(sys.modules, "matplotlib")
    broken = tmp_path / "site" / "matplotlib"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libfreetype.so: no such file')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(broken.parent))
    assert calibrate.main(argv) == 2
    told = capsys.readouterr().err
    assert "cannot be imported (ImportError: libfreetype.so: no such file)" in told and "defect" not in told
    assert not list(tmp_path.glob("p.*"))


def test_a_link_is_followed_and_stays(tiny, pages, tmp_path, capsys, monkeypatch):
    (pages / "page-1020.txt").unlink()
    policy, link = tmp_path / "elsewhere" / "real.json", tmp_path / "link.json"
    policy.parent.mkdir()
    policy.write_text("old", encoding="utf-8")
    link.symlink_to(policy)
    assert calibrate.main([str(tiny), "--pages", str(pages), "-o", str(link), "--target", "0", *QUICK]) == 0
    assert link.is_symlink() and "policy" in json.loads(policy.read_text(encoding="utf-8"))
    assert "note: 0 of 2 pages have texts" in capsys.readouterr().err

    pytest.importorskip("matplotlib", reason="the report needs the extra `plots`")
    from fastocr_trt.export import calibration_report

    def fail(path, calibration):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(calibration_report, "write_report", fail)
    argv = [str(tiny), "--pages", str(pages), "-o", str(link), "--html", str(tmp_path / "r.html"), *QUICK]
    assert calibrate.main([*argv, "--target", "0"]) == 2
    told = capsys.readouterr().err
    assert f"the policy is written to {link}" in told and "r.html: No space left on device; make room" in told


def test_cuda_where_there_is_none(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    assert calibrate.main(["demo", "-o", str(tmp_path / "p.json"), "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
