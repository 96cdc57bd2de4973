"""Published figures from a CSV: found for a run's setting, and refused in one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.analysis.published_file import device_model, known_figures, read_published
from profkit.cli import main
from profkit.errors import ExitCode, UnreadableError
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace
from tests.device_runs import device_run
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S

HEAD = "gpus,precision,batch_per_gpu,throughput,source,model,framework,gpu"
GIVEN = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "published.csv"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on four ranks in mixed precision: 320 images/s in all."""
    path = tmp_path / "job.txt"
    path.write_bytes(SAMPLES["dllogger_pytorch"].data)
    (made,) = IMPORTER.read([path], Target(tmp_path / "traces"))
    return made.run


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "published.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        ("4,amp,40,300,s,ResNet50V1.5,NGC PyTorch,V100", True),
        ("4,fp16_O2,40,300,s,,,", True),
        ("4,amp,40,300,s,TSM,NGC PyTorch,V100", False),
        ("4,amp,40,300,s,ResNet50,PaddlePaddle,V100", False),
        ("8,amp,40,300,s,ResNet50,PyTorch,V100", False),
        ("4,fp32,40,300,s,ResNet50,PyTorch,V100", False),
        ("4,amp,41,300,s,ResNet50,PyTorch,V100", False),
    ],
)
def test_a_figure_fits_a_run_of_its_setting(
    row: str, fits: bool, run: Path, tmp_path: Path
) -> None:
    (figure,) = read_published(table(tmp_path, row))
    assert figure.fits(Trace.open(run).manifest) is fits


def test_one_run_is_compared_with_its_published_figures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("4,amp,40,100,far away,,,", "4,amp,40,318,near,,,", "1,amp,40,80,other,,,")
    path = table(tmp_path, *rows, "4,amp,40,-,open,,,")
    assert main(["explain", str(run), "--published", str(path), "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "as published"
    assert [each["source"] for each in found["published"]] == ["near", "far away"]
    assert [each["agrees"] for each in found["published"]] == [True, False]
    throughput = 4 * BATCH / STEP_S
    assert found["published"][0]["ratio"] == pytest.approx(throughput / 318, rel=0.01)
    assert main(["explain", str(run), "--published", str(path)]) == ExitCode.DONE
    page = capsys.readouterr().out
    assert "2 rows of 3 for this setting: 4 ranks, amp, batch 40 per rank" in page
    assert "line 3: near" in page


def test_two_runs_are_compared_with_each_other_and_with_the_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, "4,amp,40,200,some report,,,")
    command = ["explain", str(run), str(run), "--published", str(path)]
    assert main(command) == ExitCode.DONE
    page = capsys.readouterr().out
    assert "Published figures" in page
    assert page.count("line 2: some report") == 2
    assert main([*command, "--json"]) == ExitCode.DONE
    assert len(json.loads(capsys.readouterr().out)["published"]) == 2


def test_a_run_for_which_nothing_is_published_is_told_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, "1,fp32,40,200,s,,,")
    assert main(["explain", str(run), "--published", str(path)]) == ExitCode.DONE
    assert "nothing published: 0 rows of 1 for this setting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no column gpus"),
        (b"a,b\n1,2\n", "no column gpus, precision, batch_per_gpu, throughput"),
        (b"gpus,precision,batch_per_gpu,throughput\n", "no row below"),
        (b"gpus,precision,batch_per_gpu,throughput\n1,fp32,x,3\n", "line 2: batch_per_gpu is x"),
        (b"gpus,precision,batch_per_gpu,throughput\n0,fp32,1,3\n", "line 2: gpus is 0"),
        (b"gpus,precision,batch_per_gpu,throughput\n1,fp32,1,nan\n", "throughput is nan"),
        (b"gpus,precision,batch_per_gpu,throughput\n1,fp32,1,-3\n", "throughput is -3"),
        (b"gpus,precision,batch_per_gpu,throughput\n1,,1,3\n", "precision is nothing"),
        (b"gpus,precision,batch_per_gpu,throughput\n1\n", "line 2: has fewer cells"),
        (b"\xff\xfe\0\0", "not UTF-8"),
        (b"gpus,precision,batch_per_gpu,throughput\n" + b"1,fp32,1,3\n" * 10_001, "over 10,000"),
        (b'gpus,precision,batch_per_gpu,throughput\n"' + b"x" * 200_000, "not CSV"),
        (b"x" * (9 << 20), "over 8 MiB"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=r"bad\.csv") as caught:
        read_published(path)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["explain", str(run), "--published", str(tmp_path / "no.csv")]) == ExitCode.UNREADABLE
    )
    assert "no.csv" in capsys.readouterr().err


@pytest.mark.skipif(not GIVEN.is_file(), reason="../shared/data/published.csv is not here")
def test_a_table_of_real_publications_is_read() -> None:
    figures = read_published(GIVEN)
    assert len(figures) > 90
    assert {each.gpus for each in figures} >= {1, 8, 32}


def own_run(folder: Path, models: list[str]) -> Path:
    """Write a run of ResNet50 at the published batch on one GPU, on a machine with these models."""
    run = device_run(folder / "own")
    path = run / "run.json"
    manifest = json.loads(path.read_text())
    manifest["environment"] = {"gpu_models": models}
    path.write_text(json.dumps(manifest))
    return run


@pytest.mark.parametrize(
    ("models", "gpus"),
    [
        (["Tesla V100-SXM2-16GB"] * 8, {"V100-SXM2-16GB", "V100"}),
        (["NVIDIA A100-SXM4-80GB"], {"A100"}),
        (["NVIDIA H100 80GB HBM3"], set()),
    ],
)
def test_an_own_run_is_compared_with_what_is_known_of_its_gpu(
    models: list[str], gpus: set[str], tmp_path: Path
) -> None:
    manifest = Trace.open(own_run(tmp_path, models)).manifest
    fitting = [each for each in known_figures("resnet50") if each.fits(manifest)]
    assert {each.gpu for each in fitting} == gpus
    assert all("PyTorch" in each.framework for each in fitting)


def test_explain_compares_a_run_with_published_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = own_run(tmp_path, ["Tesla V100-SXM2-16GB"])
    assert main(["explain", str(run), "published"]) == ExitCode.DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "373.21 images/sec" in said
    assert "not as published" in said
    assert "Tesla V100-SXM2-16GB" in said


def test_a_machine_with_several_models_does_not_say_which_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = own_run(tmp_path, ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"])
    assert device_model(Trace.open(run).manifest) == ""
    assert main(["explain", str(run), "published"]) == ExitCode.DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing published: 0 rows" in said
    assert "the model of the device is not recorded" in said


def test_published_alone_names_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "published"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "two runs are compared" in said
    assert "'published'" in said
