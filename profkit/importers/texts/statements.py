"""Finds the statements in a text: cards, batch, precision, loss and throughput.

The reports are in English and Chinese. A number counts only next to a word that says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from profkit.importers.texts.markdown import TextLine, without_links
from profkit.importers.texts.values import FULL, MIXED, Of, Value, What

_COUNT = r"(\d{1,7})(?![\d.,]*\d|\s{0,2}%)"
_NO_LETTER = r"(?![A-Za-z0-9_])"
_CARDS = (
    re.compile(
        r"(?<![A-Za-z0-9_.*/-])(\d{1,5})\s{0,2}"
        rf"(?:张卡|块卡|卡|(?:GPUs?|cards?|ranks?){_NO_LETTER})",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?<![A-Za-z0-9_-])(?:GPUs?|num_gpus|cards|world[_ ]size)"
        rf"\s{{0,2}}[=:：x×]\s{{0,2}}{_COUNT}",
        re.IGNORECASE,
    ),
)
_ONE_CARD = re.compile(
    rf"(?<!每)单卡|(?<!\w)(?:single|one)[- ](?:GPU|card){_NO_LETTER}", re.IGNORECASE
)
_BATCH = re.compile(
    r"(?P<all>global[ _-]?|total[ _-]?|总\s?)?(?P<card>每卡\s?|per[- ](?:GPU|card)\s)?"
    r"(?<![a-z])(?:train[ _-])?(?:batch[ _-]?size|samples_per_gpu|bs|batch(?=\sof\s)"
    r"|(?<=global\s)batch|(?<=total\s)batch)"
    r"(?P<card2>\s(?:per|of each)\s(?:GPU|card|rank))?"
    rf"\s{{0,2}}(?:=|:|：|为|是|of|is|was)?\s{{0,2}}`?{_COUNT}",
    re.IGNORECASE,
)
_PRECISION = re.compile(
    r"(?<![a-z0-9_./-])(?P<off>no |not |without |不开启\s?|关闭\s?)?"
    r"(?P<mixed>fp16|float16|bf16|bfloat16|amp|mixed[ -]precision|混合精度|半精度)(?![a-z0-9])"
    r"|(?<![a-z0-9_./-])(?P<full>fp32|float32|单精度|full[ -]precision)(?![a-z0-9])",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?<![a-z])loss(?:\s|=|:|：|of|is|was|from|about|从|为|约){0,4}"
    r"(\d{1,6}(?:\.\d{1,8})?)(?:\.?\+)?(?![\d%])"
    r"(?:\s{0,3}(?:->|→|to|下降到|降到|down to|falls to)\s{0,3}(\d{1,6}(?:\.\d{1,8})?))?",
    re.IGNORECASE,
)
_THROUGHPUT = re.compile(
    r"(?<![\w.])(\d[\d,]{0,12}(?:\.\d{1,6})?)\s{0,2}"
    r"(?:samples?|images?|imgs?|sequences?|sents?|words?|tokens?|instances?)"
    r"\s{0,2}/\s{0,2}s(?:ec)?(?!\w)",
    re.IGNORECASE,
)
_PATHS = re.compile(r"[\w.-]*[/\\][\w./\\-]{2,}|[\w-]{2,}\.(?:sh|py|log|txt|ya?ml|md|json)(?!\w)")


def find_statements(lines: Iterable[TextLine], file: str) -> Iterator[Value]:
    """Yield all values that these lines state, in order of their kinds."""
    for line in lines:
        whole = without_links(line.text)
        text = _PATHS.sub(" ", whole)
        for pattern in _CARDS:
            for found in pattern.finditer(text):
                yield Value(What.CARDS, int(found[1]), file, line.number, found[0].strip())
        for found in _ONE_CARD.finditer(text):
            yield Value(What.CARDS, 1, file, line.number, found[0])
        for found in _BATCH.finditer(text):
            of = Of.UNSAID
            if found["all"] or found[0].lower().startswith(("global", "total")):
                of = Of.ALL
            elif found["card"] or found["card2"] or "samples_per_gpu" in found[0].lower():
                of = Of.CARD
            count = int(found[found.lastindex or 0])
            yield Value(What.BATCH, count, file, line.number, found[0].strip(" `"), of)
        for found in _PRECISION.finditer(text):
            value = FULL
            if found["mixed"] and not found["off"]:
                value = MIXED
            yield Value(What.PRECISION, value, file, line.number, found[0])
        yield from _find_figures(whole, file, line.number)


def _find_figures(text: str, file: str, line: int) -> Iterator[Value]:
    """Yield losses, of which a text may state the first and the last, and throughputs."""
    for found in _LOSS.finditer(text):
        for level in filter(None, found.groups()):
            yield Value(What.LOSS, float(level), file, line, found[0].strip())
    for found in _THROUGHPUT.finditer(text):
        count_s = float(found[1].replace(",", ""))
        yield Value(What.THROUGHPUT, count_s, file, line, found[0])
