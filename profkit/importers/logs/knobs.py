"""Finds the settings that a log states, under the names that profkit's own runs give them.

Only known settings are read, so that nothing private gets into a run. The first value before the
first record counts; a run that is printed later in the same file has its own.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.text import Line

PREFIX = "knob."
"""Separates settings from the facts that the importer itself uses."""

_TOOLS_NAMES = {
    "workers": ("num_workers", "workers_per_gpu", "workers"),
    "loader": ("data_backend",),
    "dali": ("use_dali", "dali"),
    "xla": ("use_xla", "xla"),
    "optimizer_batch_size": ("optimizer_batch_size",),
    "lr": ("learning_rate", "base_lr", "lr"),
    "momentum": ("momentum", "mom"),
    "weight_decay": ("weight_decay", "wd"),
    "image_size": ("image_shape", "image_size", "crop_size"),
    "memory_format": ("memory_format", "data_format", "conv_layout"),
    "loss_scale": ("static_loss_scale", "scale_loss"),
    "seed": ("seed",),
    "max_tokens": ("max_tokens",),
    "accumulation": ("gradient_accumulation_steps", "num_accumulation_steps", "update_freq"),
}
"""The names that tools give a setting, by profkit's name."""

_KNOB_OF = {word: knob for knob, words in _TOOLS_NAMES.items() for word in words}
_WORDS = "|".join(sorted(_KNOB_OF, key=len, reverse=True))
_VALUE = r"'?(\[[\d., ]{1,40}\]|\([\d., ]{1,40}\)|[\w.+-]{1,40})'?"
_STATED = re.compile(rf"(?<![\w.'-])({_WORDS})(?: ?: |=){_VALUE}(?=[\s,)]|$)")
_OPTION = re.compile(rf"--({_WORDS})[ =]{_VALUE}(?=[\s,)'\"]|$)")
_NO_VALUES = frozenset({"None", "none", "dict", "-1"})


def read_knobs(line: Line, found: Found) -> None:
    """Take the settings that this line states."""
    text = line.text
    knobs: dict[str, str] = {}
    for pattern in (_STATED, _OPTION):
        for word, value in pattern.findall(text):
            if value not in _NO_VALUES:
                knobs.setdefault(PREFIX + _KNOB_OF[word], value)
    if knobs:
        found.add_facts(**knobs)
