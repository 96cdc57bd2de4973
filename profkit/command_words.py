"""Choose the words of a job's command that are recorded: those that are no secret.

A run is shown to others. Names of options are kept. A value is kept if it is a number, a switch, a
path or a choice of an option that is known; anything else may be a secret nobody thought of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LEFT_OUT = "(left out)"
"""Stands for what may be a secret."""

LONGEST = 300
"""Longer words are no settings."""

KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:gh[a-z]|github_pat|glpat|hf|npm|pypi|sk|xox[a-z])[_-]\w"
    r"|A[KS]IA[A-Z0-9]{12}|AIza\w|eyJ\w{8})|://[^/\s]*@"
)
"""The beginnings of well-known services' tokens, and a password in an address."""

_OPAQUE = re.compile(r"(?<![A-Za-z])(?:[A-Za-z]+[0-9]+){4}|(?<![A-Za-z0-9+])[A-Za-z0-9+]{40}")
"""Random letters and digits: names of models have fewer changes between the two."""

_SECRET = re.compile(
    r".*(?:pass|passw(?:or)?d|passphrase|pwd|secret|credentials?|apikey|webhook|cookies?"
    r"|signature|bearer|token)"
    r"|pw|pat|keys?|auth|authorization|sessions?|sig|sas|certs?|pem|dsn|otp|salt|login|users?"
    r"|username|account|creds?|jwt|oauth|private|email"
)
"""Parts of the name of an option whose value is hidden, whatever it is."""

_HARMLESS_PARTS = """
accelerator accum accumulate accumulation adam addr algo algorithm amp anneal arch architecture
aug augment augmentation autocast backbone backend batch batches benchmark beta betas bf16 bias bs
bucket cache callback callbacks cap cfg channels checkpoint checkpointing ckpt class classes clip
collate collect compile conf config configs count cpu cpus criterion crop cuda cudnn data dataset
datasets ddp debug decay decoder deepspeed depth deterministic device devices dim dims dir dist
distributed distribution dp drop dropout dtype dump dynamo embed encoder endpoint engine ep epoch
epochs eps eval evaluation every exp experiment factor file find float16 folder format fp16 fp8
framework freq frequency fsdp fused gamma global gpu gpus grad gradient gradients gres group
groups half head heads height hidden ifname image images img impl implementation init input inputs
inter interconnect interface interpolation interval iter iterations iters kernel label labels lang
language last launcher layer layers learning length level limit load loader local log logger
logging loss lr mask master max mean mem memory method metric metrics micro milestones min mixed
mixup mode model models module momentum monitor name nccl nesterov net network nnodes node nodes
norm normalization np nproc ntasks num offload opt optim optimizer opts order out output overlap
parallel parallelism params patch path pattern persistent phase pipeline plugin policy pool port
pp precision prefetch preset pretrained print processes processor profile profiler project proto
protocol quantization rank ranks rate rdzv recipe recompute reduce reduction remat resize
resolution resume root rope sampler save scale scaler scaling scenario sched schedule scheduler
seed seq sequence set sgd shape shard sharding shuffle size sizes smoothing sp split stage start
state std step steps stop strategy suite sync tag task test threads threshold tokenizer torch tp
tpu train trainer training transform transforms type update val valid validation variant version
visible vocab warmup weight weights width window worker workers workload world xla zero
"""
"""Parts of the names of options whose value is a choice, as frameworks and their examples use."""

_HARMLESS = frozenset(_HARMLESS_PARTS.split())

_PROGRAM_WORDS = """
accelerate apptainer bash colossalai composer conda deepspeed docker env eval evaluate exec fit
fleetrun horovodrun ipython launch lightning mpiexec mpirun nice nohup nsys numactl paddle poetry
predict profile profkit py-spy python run sh srun stdbuf taskset test time timeout torchrun train
uv validate xvfb-run
"""
"""Words that name a program or what it does."""

_PROGRAMS = frozenset(_PROGRAM_WORDS.split())

_SHORT_CHOICES = frozenset({"-a", "-m"})
"""Short options with a name behind them: `-a resnet50` in PyTorch's examples, `-m MODULE`."""

_SWITCHES = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null", "auto"})
_NUMBER = r"[+-]?(?:\d+(?:\.\d+)*\.?|\.\d+)(?:[eE][+-]?\d+)?[A-Za-z%]{0,2}"
_NUMBERS = re.compile(rf"[\[(]?{_NUMBER}(?:[,:x*-]{_NUMBER})*[\])]?")
_CHOICE = re.compile(r"[\[(]?\w(?:[\w.,+/-]|:(?!//)){0,99}[\])]?")
_ADDRESS = re.compile(r"(?:(?:file|gs|hdfs|s3|tcp)://[\w./:-]+|env://)")
_PATH = re.compile(r"(?:~|\.{1,2})?/[\w./+,:-]*|\.{1,2}")
_FILE = re.compile(
    r"[\w./+-]+\.(?:bin|cfg|ckpt|conf|csv|gz|h5|hdf5|html|ini|ipynb|jsonl?|lmdb|log|npy|npz|onnx"
    r"|parquet|pdparams|pkl|pth?|py|rec|safetensors|sh|sif|so|tar|tfrecord|toml|txt|xml|ya?ml|zip)"
)
_PROGRAM = re.compile(r"[\w.+-]*(?:/[\w.+-]*)*")
_PYTHON = re.compile(r"(?:python|pypy)\d?(?:\.\d+)?")
_ASSIGNED = re.compile(r"(-{0,2}[+~]{0,2}[A-Za-z_][\w./@-]{0,80}?)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--[A-Za-z][\w.-]{0,80}|--?|-[A-Za-z](?<!p)\d{0,4}|-[A-Za-z]")
_PART = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*")


def plain_words(words: Sequence[str]) -> list[str]:
    """Return a command's words without the values that may be a secret."""
    shown = []
    option = ""
    for place, word in enumerate(words):
        shown.append(_plain(word, option, is_first=not place))
        option = word if word.startswith("-") and "=" not in word else ""
    return shown


def is_secret(name: str) -> bool:
    """Return true if an option or a variable of this name may hold a secret."""
    parts = [part.rstrip("0123456789") for part in _parts(name)]
    return any(map(_SECRET.fullmatch, parts)) or parts == ["pin"]


def looks_random(word: str) -> bool:
    """Return true for a token of a known service, and for random letters and digits."""
    return KNOWN_TOKEN.search(word) is not None or _OPAQUE.search(word) is not None


def _parts(name: str) -> list[str]:
    return list(map(str.lower, _PART.findall(name)))


def _plain(word: str, option: str, *, is_first: bool) -> str:
    follows_secret = is_secret(option) and not word.startswith("--")
    if follows_secret or len(word) > LONGEST:
        return LEFT_OUT
    assigned = _ASSIGNED.fullmatch(word)
    if assigned:
        return _assignment(*assigned.groups())
    if word.startswith("-") and not _NUMBERS.fullmatch(word):
        is_name = _OPTION.fullmatch(word) or (_is_harmless(word) and not looks_random(word))
        return word if is_name else LEFT_OUT
    is_program = is_first and _PROGRAM.fullmatch(word) and not looks_random(word)
    if is_program or word in _PROGRAMS or _PYTHON.fullmatch(word):
        return word
    is_choice = option in _SHORT_CHOICES or _is_harmless(option)
    return word if _is_plain(word, is_choice=is_choice) else LEFT_OUT


def _assignment(name: str, value: str) -> str:
    """Return `--name=value`, `name.of.setting=value` or `VARIABLE=value`, or its name alone."""
    if looks_random(name) or (not name.startswith("-") and not _is_name(name)):
        return LEFT_OUT
    is_kept = not is_secret(name) and _is_plain(value, is_choice=_is_harmless(name))
    return f"{name}={value if is_kept else LEFT_OUT}"


def _is_name(word: str) -> bool:
    """Return true for the name of a setting or a variable, and not for data that ends in `=`."""
    plain = word.lstrip("+~")
    return plain.isupper() or plain.islower() or _is_harmless(plain)


def _is_harmless(name: str) -> bool:
    return not is_secret(name) and not _HARMLESS.isdisjoint(_parts(name))


def _is_plain(value: str, *, is_choice: bool) -> bool:
    if not value or value.lower() in _SWITCHES or _NUMBERS.fullmatch(value):
        return True
    if looks_random(value):
        return False
    if any(shape.fullmatch(value) for shape in (_PATH, _FILE, _ADDRESS)):
        return True
    return is_choice and _CHOICE.fullmatch(value) is not None
