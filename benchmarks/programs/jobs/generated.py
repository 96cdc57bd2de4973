"""Small generated data for the programs: images, text, folders of files."""

from pathlib import Path

import numpy as np

WORDS = ["the", "a", "loss", "step", "falls", "rises", "slowly", "today", "again", "model"]


def classes(count, shape, number=10, seed=0):
    """Return arrays of images and of labels."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((count, *shape)).astype("float32")
    return images, rng.integers(0, number, count)


def tokens(count, number=64, seed=0):
    """Return a text as the numbers of its tokens."""
    return np.random.default_rng(seed).integers(0, number, count)


def sentences(count, seed=0):
    """Return sentences of different lengths."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(count)]


def image_folder(root, per_class, size=48, classes_count=2):
    """Write a folder of PNG files per class, and return the folder."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in range(classes_count):
        folder = Path(root) / f"class{kind}"
        folder.mkdir(parents=True)
        for number in range(per_class):
            pixels = rng.integers(0, 255, (size, size, 3), dtype="uint8")
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return str(root)


def tokenizer():
    """Return a fast tokenizer of whole words, which needs no download."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[MASK]", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )
