"""A run's environment contains the settings that change its speed, and never a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.command_words import LEFT_OUT, plain_words
from profkit.environment import (
    allowed_variables,
    gpu_models,
    is_virtual,
    nvidia_driver,
    read_environment,
)

SECRETS = {
    "NCCL_AUTH_TOKEN": "abc",
    "CUDA_SECRET": "1",
    "TORCH_HUB_PASSWORD": "hunter2",
    "PADDLE_API_KEY": "abc",
    "DALI_CREDENTIALS": "me",
    "PADDLE_PASS": "abc",
    "NCCL_PWD": "abc",
    "TORCH_OPTIONS": "retries=1,pwd=abc",
    "PADDLE_SAS": "x",
    "NCCL_SESSION": "1",
    "PYTORCH_COOKIE": "1",
    "OMP_passwd": "x",
    "CUDA_X": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "CUDA_SHORT": "ghp_16C7e42F292c",
    "NCCL_X": "AKIAIOSFODNN7EXAMPLE",
    "TORCH_X": "sk-proj-4f9dk2",
    "TORCH_Y": "hf_abcDEFghi",
    "TORCH_Z": "xoxb-123456-abc",
    "PADDLE_X": "glpat-abc123",
    "MKL_X": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "KMP_X": "dGhpcyBpcyBhIHZlcnkgbG9uZyBiYXNlNjQgc2VjcmV0IHZhbHVl",
    "OMP_X": "d41d8cd98f00b204e9800998ecf8427e",
    "OPENBLAS_X": "aB3dE5fG7hJ9kL2mN4pQ6",
    "FLAGS_x": "http://me:hunter2@proxy.example:3128",
    "CUDA_PEM": "-----BEGIN PRIVATE KEY-----",
    "NCCL_Y": "token=abc",
    "GLOO_X": "Bearer: auth abc",
    "CUDA_LINES": "1\nexport X=2",
    "CUDA_ESCAPE": "\x1b[31m",
    "CUDA_SHELL": "$(cat /etc/passwd)",
    "TORCH_HOME": "/home/me/.cache/torch",
    "CUDA_PATH": "/usr/local/cuda:/root/cuda",
    "PADDLE_HOME": "~/paddle",
}
ELSEWHERE = {
    "HOME": "/root",
    "AWS_REGION": "eu",
    "GITHUB_ACTOR": "me",
    "USER": "me",
    "PATH": "/bin",
    "MY_NCCL_DEBUG": "INFO",
    "cuda_x": "1",
}
SETTINGS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_HOME": "/usr/local/cuda-12.4",
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "CUDNN_LOGLEVEL_DBG": "0",
    "DALI_AFFINITY_MASK": "0,1",
    "FLAGS_cudnn_deterministic": "True",
    "FLAGS_fraction_of_gpu_memory_to_use": "0.92",
    "GLOO_SOCKET_IFNAME": "eth0",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "MKL_NUM_THREADS": "8",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV",
    "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
    "NCCL_P2P_DISABLE": "",
    "NVIDIA_TF32_OVERRIDE": "0",
    "OMP_NUM_THREADS": "8",
    "OMP_PLACES": "cores(4)",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:6170,127.0.0.1:6171",
    "PYTORCH_CUDA_ALLOC_CONF": (
        "expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:128"
    ),
    "TORCH_CUDNN_V8_API_ENABLED": "1",
    "TORCH_LOGS": "+dynamo,graph_breaks",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


@pytest.mark.parametrize(("name", "value"), [*SECRETS.items(), *ELSEWHERE.items()])
def test_a_secret_never_passes(name: str, value: str) -> None:
    assert allowed_variables({name: value}) == {}


@pytest.mark.parametrize(("name", "value"), SETTINGS.items())
def test_a_setting_passes_as_it_is(name: str, value: str) -> None:
    assert allowed_variables({name: value}) == {name: value}


def test_devices_may_be_named_by_their_ids() -> None:
    devices = {
        "CUDA_VISIBLE_DEVICES": (
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-8932f937-d72c-4106-c12f-20bd9faed9f6"
        )
    }
    assert allowed_variables(devices) == devices
    assert allowed_variables({"CUDA_VISIBLE_DEVICES": "8932f937-d72c-4106-c12f-20bd9faed9f6"}) == {}


def test_variables_are_kept_in_order_and_all_of_them() -> None:
    found = allowed_variables({**dict(reversed(SETTINGS.items())), **SECRETS, **ELSEWHERE})
    assert list(found.items()) == sorted(SETTINGS.items())


KEPT_WORDS = """
python train.py --lr 0.1 --amp --batch-size 64 --model resnet50 --backend nccl --data
/data/imagenet --config configs/a.yaml optimizer.lr=0.01 trainer.precision=bf16-mixed --epochs=90
--seed 1 --fp16 True -b 256 -a resnet50 -j8 -m torch.distributed.run --nproc_per_node=8 --nnodes 2
--rdzv_endpoint=host:29500 --master_addr 10.0.0.1 --betas 0.9 0.999 --milestones 30,60,90
--image-size 3x224x224 --lr-scheduler cosine --tokenizer bert-large-uncased-whole-word-masking
--model_name_or_path meta-llama/Llama-2-7b-hf --arch EfficientNetB7NoisyStudent
--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer --weight-decay 1e-4 --max-tokens 4096
--pin-memory --init-method tcp://10.0.0.1:29500 --output s3://bucket/ckpt -o
Optimizer.lr.learning_rate=0.1 OMP_NUM_THREADS=8 NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0,1
accelerate launch torchrun -c ppcls/configs/ImageNet/ResNet50.yaml +experiment=fast
model.blocks=[1,2] --resume ./out/last.ckpt /data/imagenet/a/very/long/path/to/the/images --memory
4GB -1 --loss=focal --dtype torch.bfloat16 --strategy ddp_find_unused_parameters_true
--compile-mode max-autotune no
"""

HIDDEN_WORDS = {
    "--pass X": "--pass -",
    "--passphrase X": "--passphrase -",
    "--pwd X": "--pwd -",
    "--pw 1234": "--pw -",
    "--pin 1234": "--pin -",
    "--db-pass=X": "--db-pass=-",
    "--dbPass X": "--dbPass -",
    "--password2 /etc/shadow": "--password2 -",
    "--api-key abc --lr 1": "--api-key - --lr 1",
    "--apiKey=abc": "--apiKey=-",
    "--token=abc": "--token=-",
    "--auth --lr 1": "--auth --lr 1",
    "--auth basic": "--auth -",
    "--user me": "--user -",
    "--model-key resnet50": "--model-key -",
    "--foo hunter2": "--foo -",
    "--foo correcthorse": "--foo -",
    "--foo=hunter2": "--foo=-",
    "hunter2": "-",
    "correct horse": "- -",
    "foo.bar=hunter2": "foo.bar=-",
    "MYSQL_PWD=X": "MYSQL_PWD=-",
    "PADDLE_PASS=X": "PADDLE_PASS=-",
    "WANDB_API_KEY=abc python": "WANDB_API_KEY=- python",
    "SOMETHING=hunter2": "SOMETHING=-",
    "dGhpcyBpcyBzZWNyZXQ=": "-",
    "-phunter2": "-",
    "-p1234": "-",
    "-H Authorization:Basic": "-H -",
    "https://hooks.slack.com/services/T000/B000/abcDEF": "-",
    "--url https://hooks.slack.com/services/T000/B000/abcDEF": "--url -",
    "--data https://a.blob.core.windows.net/c?sv=1&sig=abc": "--data -",
    "--data=https://a.blob.core.windows.net/c?sv=1&sig=abc": "--data=-",
    "--data s3://bucket/x?X-Amz-Signature=abc": "--data -",
    "--data s3://me:hunter2@bucket/x": "--data -",
    "--db postgres://me:hunter2@host/db": "--db -",
    "--model ghp_16C7e42F292c": "--model -",
    "--model=hf_abcDEFghi": "--model=-",
    "--model d41d8cd98f00b204e9800998ecf8427e": "--model -",
    "ghp_16C7e42F292c": "-",
    "d41d8cd98f00b204e9800998ecf8427e": "-",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "-",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln": "-",
    "{'lr':1}": "-",
    "--model " + "x" * 400: "--model -",
}
"""Words of a command, and what is recorded of them; `-` stands for what is left out."""


def test_usual_words_of_a_training_command_are_kept() -> None:
    words = KEPT_WORDS.split()
    assert len(words) > 80
    assert plain_words(words) == words


@pytest.mark.parametrize(("words", "shown"), HIDDEN_WORDS.items())
def test_whatever_may_be_a_secret_is_left_out_of_a_command(words: str, shown: str) -> None:
    expected = []
    for word in shown.split():
        left, dash, _ = word.partition("=-")
        expected.append(f"{left}={LEFT_OUT}" if dash else word)
    found = plain_words(["train.py", *words.split()])
    assert found == ["train.py", *(LEFT_OUT if word == "-" else word for word in expected)]


def test_a_word_with_spaces_is_left_out() -> None:
    words = ["curl", "-H", "Authorization: Basic dXNlcjpw", "--config", "a b"]
    assert plain_words(words) == ["curl", "-H", LEFT_OUT, "--config", LEFT_OUT]


def test_the_environment_of_this_machine_fits_into_the_manifest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**SETTINGS, **SECRETS}.items():
        monkeypatch.setenv(name, value)
    found = read_environment()
    text = json.dumps(found, allow_nan=False)
    assert found["cpu_count"] >= 1
    assert found["memory_bytes"] > 0
    assert found["packages"]["pyarrow"]
    assert found["variables"]["NCCL_DEBUG"] == "INFO"
    assert [name for name in SECRETS if name in text] == []


@pytest.mark.parametrize(
    ("flags", "virtual"),
    [
        ("flags\t\t: fpu hypervisor lahf_lm\n", True),
        ("flags\t\t: fpu lahf_lm\n", False),
        ("Features\t: fp asimd\n", None),
    ],
)
def test_a_guest_is_told_by_its_processor(flags: str, virtual: bool | None, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: EPYC\n{flags}")
    assert is_virtual(file) is virtual
    assert is_virtual(tmp_path / "missing") is None


def test_gpus_and_their_driver_are_named_where_the_driver_tells(tmp_path: Path) -> None:
    for place, model in (
        ("0000:65:00.0", "NVIDIA V100"),
        ("0000:17:00.0", "NVIDIA H100 80GB HBM3"),
    ):
        folder = tmp_path / "gpus" / place
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t 43\nGPU UUID: \t GPU-1234\n"
        )
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  "
        "(dvs-builder@U16)\nGCC version: 12.3.0\n"
    )
    assert gpu_models(tmp_path) == ["NVIDIA H100 80GB HBM3", "NVIDIA V100"]
    assert nvidia_driver(tmp_path) == "550.54.15"
    assert (gpu_models(tmp_path / "none"), nvidia_driver(tmp_path / "none")) == ([], "")
