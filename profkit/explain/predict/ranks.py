"""Other numbers of ranks: the tail of the ranks' scatter, and what the links add.

With a run of another number of ranks, what the job lost between the two is extended.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.config_join import HARMLESS, NOT_SAID, Difference, join_config
from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.whatif.changes import (
    expected_maximum,
    extrapolated_maximum,
    find_latency,
    without_transfers,
)
from profkit.analysis.whatif.step_model import StepModel, ranks_by_host
from profkit.analysis.whatif.step_replay import replay
from profkit.explain.predict.job import (
    MORE_STEPS,
    Job,
    describe_replay,
    narrow,
    unanswered,
    widen_step,
)
from profkit.explain.predict.prediction import Prediction, Question, RankPoint
from profkit.explain.slowness import is_on_host
from profkit.frame.device_times import device_kinds
from profkit.frame.estimate import FEWEST_STEPS, Estimate, Floats, block_length
from profkit.frame.notices import is_log
from profkit.frame.pipelines import MESSAGES, is_model_dimension, of_model_dimensions
from profkit.text import plural, shorten
from profkit.trace import RunManifest, Trace
from profkit.trace.sharing import PARALLEL

MOST_RANKS = 1_024
RESAMPLES, MANY_RANKS = 100, 64
"""So many ranks have enough values that fewer resamples do."""

USUAL_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)

CARDS = 8
"""Ranks of a host, if the run does not say it."""

NEXT = "record two ranks or more, and measure the links: profkit ceilings --links"

MORE_REPLICAS = (
    "record the job on more ranks, with the model split alike, and compare: --base OTHER"
)

MOST_REPLAYS = 12
"""Replays of other transfers; between them, the exposed exchange is interpolated."""

SAME_BATCH = 0.02
PER_DOUBLING = 0.1
"""A step on twice the ranks of the nearer run may differ by this share from what two runs tell.

With it, intervals hold the truth in 94 % of MLPerf's results of which three sizes share a batch, of
a rank or of all (`benchmarks/mlperf_scaling.py`).
"""
OF_SHARED_BATCH = frozenset({"batch_size", "accumulation"})
OF_RANKS = frozenset({"command", "world_size", "gpus", "nodes", "global_batch_size"})
"""Settings that differ between numbers of ranks. If others do, the runs are of two jobs."""

OF_SEVERAL_RANKS = re.compile(r"ddp_.*|bucket.*|backend")
"""Settings that a run of one rank does not have."""

MOST_NAMED, LONGEST_VALUE = 3, 40
"""A reason names so many settings, each with values of at most so many characters."""


class Links(NamedTuple):
    """The exposed exchange by number of ranks, in ns per step."""

    value: Floats
    low: Floats
    high: Floats
    words: str


def ask_ranks(job: Job, question: Question, base: Job | None) -> Prediction:
    """Return the step on another number of ranks, each with as many samples as now."""
    wanted, manifest = int(question.value), job.evidence.trace.manifest
    samples = job.samples * wanted / max(1, manifest.world_size)
    if base is not None:
        if shares_batch(job, base):
            samples = job.samples
        return dataclasses.replace(ask_between_runs(job, question, base), samples=samples)
    if is_log(job.evidence.trace):
        why = "a log holds the figures of one rank: they do not show how ranks scatter"
        what_next = "compare with a log of another number of ranks: --base OTHER"
        return unanswered(job, question, why, what_next)
    model = job.model
    if model is None:
        return unanswered(job, question, job.why_no_model)
    if job.evidence.trace.missing_ranks:
        missing = plural(len(job.evidence.trace.missing_ranks), "rank")
        return unanswered(job, question, f"{missing} left no files", "record all ranks")
    if why := why_no_replicas(job):
        return unanswered(job, question, why, MORE_REPLICAS)
    now = len(model.lines)
    counts = sorted({*USUAL_COUNTS, now, wanted})
    points, words = rank_points(job, model, counts)
    point = points[counts.index(wanted)]
    scatter = "the scatter of one rank, as if ranks were independent"
    if now > 1:
        scatter = f"the scatter of {now} ranks, and how much of it they share"
    noise = job.noise[1]
    found = dataclasses.replace(
        job.answer(question),
        step_ns=point.step_ns,
        samples=samples,
        rests_on=tuple(filter(None, (*describe_replay(job), scatter, words, noise))),
        leaves_out=(
            "slower hosts or links than those of this run",
            "what ranks take from each other on one host, and from shared storage",
            *(() if model.detailed or now == 1 else ("transfers that are hidden only now",)),
        ),
        points=tuple(points),
        knee=describe_knee(points),
    )
    why, what_next = why_inconclusive(job, model, wanted, points)
    return dataclasses.replace(found, why=why, next=what_next)


def why_no_replicas(job: Job) -> str:
    """Return why further ranks do not simply join the groups of these; empty if they do."""
    trace, rows = job.evidence.trace, job.evidence.select_used(job.evidence.basis.collectives)
    if trace.sharing.why:
        return f"it is not known which ranks share their samples: {trace.sharing.why}"
    if trace.sharing.groups:
        return "ranks share their samples, and further ones are replicas of all of them"
    is_message = pc.is_in(rows["op"].cast(pa.string()), pa.array(MESSAGES))
    if pc.any(pc.or_(is_message, of_model_dimensions(rows))).as_py():
        return "the model is split among the ranks, and further ones are replicas of all of them"
    ranks = trace.manifest.world_size
    sizes = rows["group_size"]  # 0 if it is not known
    inside = rows.filter(pc.and_(pc.greater(sizes, 0), pc.less(sizes, ranks)))
    if len(pc.unique(inside["step"])) > len(job.evidence.used) / 2:
        size = pc.min(inside["group_size"]).as_py()
        return f"collectives are in groups of {size} of the {ranks} ranks, and some will not grow"
    return ""


def why_inconclusive(
    job: Job, model: StepModel, wanted: int, points: Sequence[RankPoint]
) -> tuple[str, str]:
    """Return why the answer is inconclusive, and what would help; nothing if it is not."""
    now = len(model.lines)
    if len(model.steps) < FEWEST_STEPS:
        return "too few steps for an interval", MORE_STEPS
    if wanted > 1 and points[-1].links_ns is None:
        return "nothing says what the exchange between ranks takes", NEXT
    if now > 1 and not job.evidence.costs.exchange_timed:
        return "the device's wait for the exchange was not timed", ""
    load, environment = job.evidence.load, job.evidence.trace.manifest.environment
    if is_on_host(job.evidence) and wanted > now:
        cores, hosts = environment.get("cpu_count"), len(ranks_by_host(job.evidence.trace))
        used = 1.0
        if load is not None and load.own:
            used = load.own / (load.ranks or now)
        if isinstance(cores, int):
            cores *= hosts
        if not isinstance(cores, int) or wanted * used > cores:
            like = "one host" if hosts == 1 else plural(hosts, "host")
            why = f"{wanted} ranks that train on processors would compete for {cores} cores"
            where = f"record {wanted} ranks where they would run"
            return f"{why}, if they run on {like} like this", where
    return "", ""


def rank_points(job: Job, model: StepModel, counts: Sequence[int]) -> tuple[list[RankPoint], str]:
    """Return the step on each number of ranks, and what the links rest on."""
    own, now = model.own_work(), len(model.lines)
    common = own.mean(axis=0)
    scatter = own - common
    if now > 1:  # the mean holds a part of each rank's own scatter, which widens it again
        usual = scatter.mean(axis=1, keepdims=True)
        scatter = usual + (scatter - usual) * math.sqrt(now / (now - 1))
    else:
        scatter, common = own - own.mean(), np.full_like(common, own.mean())
    tail = expected_maximum(scatter, counts)
    tail[np.array(counts) == 1] = 0.0  # by definition; the grid is not as exact
    tails = resample_tails(scatter, counts)
    upper = np.maximum(extrapolated_maximum(scatter, counts), np.quantile(tails, 0.975, axis=0))
    lower = np.quantile(tails, 0.025, axis=0)
    if now == 1:
        lower = np.zeros_like(lower)  # the ranks may all be slow in the same steps
    links = links_of_ranks(job, model, counts)
    here = counts.index(now)
    none = np.zeros(len(counts))
    exposed = links or Links(none, none, none, "")
    # The recorded number of ranks is as it was measured; the others differ from it.
    level = job.now_ns.value - tail[here] - exposed.value[here]
    half = 0.0
    if job.now_ns.low is not None and job.now_ns.high is not None:
        half = (job.now_ns.high - job.now_ns.low) / 2
    noise, _ = job.noise
    points = []
    for place, count in enumerate(counts):
        value = float(level + tail[place] + exposed.value[place])
        if place == here:
            ends = (0.0, 0.0)
        else:
            ends = (
                tail[place] - lower[place] + exposed.value[place] - exposed.low[place],
                upper[place] - tail[place] + exposed.high[place] - exposed.value[place],
            )
        low = value - math.hypot(float(ends[0]), half)
        high = value + math.hypot(float(ends[1]), half)
        step = widen_step(Estimate(value, low, high), noise, job.replay_error or 0.0)
        known = None
        if links is not None:
            known = float(links.value[place])
        share = job.now_ns.value / max(value, 1.0)
        points.append(RankPoint(count, step, share, float(tail[place]), known))
    return points, exposed.words


def resample_tails(scatter: Floats, counts: Sequence[int]) -> Floats:
    """Return the tail in resampled blocks of steps, by (resample, count)."""
    steps = scatter.shape[1]
    block = max(map(block_length, scatter[:8]))
    resamples = RESAMPLES
    if len(scatter) >= MANY_RANKS:
        resamples //= 10
    draws = np.random.default_rng(0).integers(0, steps, (resamples, math.ceil(steps / block)))
    found = []
    for starts in draws:
        chosen = (starts[:, None] + np.arange(block)).ravel()[:steps] % steps
        found.append(expected_maximum(scatter[:, chosen], counts))
    return np.stack(found)


def describe_knee(points: Sequence[RankPoint]) -> str:
    """Return from where on the straggler tail costs more than the links."""
    many, above = points[1:], list[bool]()  # the first is one rank
    for point in many:
        if point.links_ns is None:
            return ""
        above.append(point.tail_ns > point.links_ns)
    others = np.flatnonzero(np.array(above) != above[-1])
    more, less = "links cost", "straggler tail"
    if above[-1]:
        more, less = "straggler tail costs", "links"
    if not len(others):
        return f"the {more} more than the {less} on any number of ranks up to {many[-1].ranks:,}"
    return f"beyond {many[others[-1]].ranks:,} ranks the {more} more than the {less}"


def shares_batch(job: Job, base: Job) -> bool:
    """Return whether the ranks of both runs divide the same number of samples per step."""
    if base.evidence.step_samples == job.evidence.step_samples:
        return False
    return abs(job.samples - base.samples) <= SAME_BATCH * base.samples


def why_no_loss(job: Job, base: Job) -> tuple[str, str]:
    """Return why two runs do not show what ranks lose, and what would; nothing if they do."""
    counts = []
    for each in (base, job):
        counts.append(each.evidence.trace.manifest.world_size)
    if counts[0] == counts[1]:
        return f"both runs have {plural(counts[0], 'rank')}", ""
    shared = shares_batch(job, base)
    if base.evidence.step_samples != job.evidence.step_samples and not shared:
        why = "the two runs differ in their samples per rank and step, and in those of all ranks"
        return why, "compare runs of the same batch per rank, or of the same batch of all ranks"
    why = why_other_job(base.evidence.trace, job.evidence.trace, shared=shared)
    if why:
        return why, "compare two runs of the same job on the same machine, with this one change"
    few, many = (base, job) if counts[0] < counts[1] else (job, base)
    if few.now_ns.low is None or many.now_ns.high is None:
        return "one of the runs has too few steps for an interval", ""
    ranks = max(counts) / min(counts) if shared else 1.0
    if ranks * many.now_ns.high < few.now_ns.low * (1 - few.noise[0]):
        why = "its steps are shorter on more ranks, so the two runs differ in more than their ranks"
        return why, "compare runs on the same devices"
    return "", ""


def why_other_job(first: Trace, later: Trace, *, shared: bool = False) -> str:
    """Return why a line through two runs is about no job; empty if they are of one job.

    If they share a batch, its part on each rank follows from the number of ranks.
    """
    named = list[str]()
    devices = device_kinds(first), device_kinds(later)
    if devices[0] != devices[1]:
        named.append(f"device ({devices[0]} and {devices[1]})")
    for each in other_differences(first.manifest, later.manifest):
        if shared and each.name in OF_SHARED_BATCH:
            continue
        values = shorten(each.base, LONGEST_VALUE), shorten(each.target, LONGEST_VALUE)
        named.append(f"{shorten(each.name, LONGEST_VALUE)} ({values[0]} and {values[1]})")
    if not named:
        return ""
    more = ", ..." if len(named) > MOST_NAMED else ""
    shown = ", ".join(named[:MOST_NAMED])
    return f"the two runs differ in {plural(len(named), 'other setting')}: {shown}{more}"


def other_differences(first: RunManifest, later: RunManifest) -> list[Difference]:
    """Return what may affect the speed and does not follow from the number of ranks."""
    found = []
    for each in join_config(first, later):
        if each.rows in HARMLESS or each.name.startswith("revision.") or each.name in OF_RANKS:
            continue
        group, _, dimension = each.name.partition(".")
        if group == PARALLEL and not is_model_dimension(dimension):
            continue  # a dimension that grows with the ranks, as `parallel.fsdp`
        if NOT_SAID in {each.base, each.target} and OF_SEVERAL_RANKS.fullmatch(each.name):
            continue
        found.append(each)
    return found


def with_bounds(
    job: Job, base: Job, value: float, weights: tuple[float, float], away: float
) -> tuple[Estimate, str]:
    """Return a step that follows from the base's and the job's, each by its weight.

    `away` is how many times the ranks double, or halve, from the nearer run.
    """
    squares, words = (PER_DOUBLING * away * value) ** 2, ""
    for each, part in zip((base, job), weights, strict=True):
        noise, words = each.noise
        step = each.now_ns
        if step.low is None or step.high is None:
            return Estimate(value), words
        half = max(step.high - step.value, step.value - step.low)
        squares += part**2 * (half**2 + (noise * step.value) ** 2 / 2)
    # The predicted run has noise of its own.
    half = math.sqrt(squares + (noise * value) ** 2 / 2)
    low = value - half
    if value > 0:
        low = max(0.0, low)
    return Estimate(value, low, value + half), words


def extend_loss(job: Job, base: Job, wanted: int) -> tuple[list[Estimate], str, str]:
    """Return the step on these ranks by each of two rules, and what the rules and noise are."""
    counts = base.evidence.trace.manifest.world_size, job.evidence.trace.manifest.world_size
    first, second = base.now_ns.value, job.now_ns.value
    away = min(abs(math.log2(wanted / counts[0])), abs(math.log2(wanted / counts[1])))
    found, words = list[Estimate](), ""
    if not shares_batch(job, base):
        rule = (
            "the loss grows by a ring's volume at one end, by the logarithm of ranks at the other"
        )
        for growth in (lambda count: 1 - 1 / count, math.log2):
            weight = (growth(wanted) - growth(counts[0])) / (growth(counts[1]) - growth(counts[0]))
            value = first + weight * (second - first)
            step, words = with_bounds(job, base, value, (1 - weight, weight), away)
            found.append(step)
        return found, rule, words
    rule = "a step of one batch: a part that no rank shortens at one end, the same gain from each "
    weight = (wanted - counts[0]) / (counts[1] - counts[0])
    parts = (1 - weight) * counts[0] / wanted, weight * counts[1] / wanted
    found.append(with_bounds(job, base, parts[0] * first + parts[1] * second, parts, away)[0])
    power = math.log(wanted / counts[1]) / math.log(counts[1] / counts[0])
    value = second * (second / first) ** power
    parts = -power * value / first, (1 + power) * value / second
    step, words = with_bounds(job, base, value, parts, away)
    return [*found, step], f"{rule}doubling of ranks at the other", words


def ask_between_runs(job: Job, question: Question, base: Job) -> Prediction:
    """Extend what a job loses from one number of ranks to another."""
    why, what_next = why_no_loss(job, base)
    if why:
        return unanswered(job, question, why, what_next)
    first, second = base.evidence.trace.manifest, job.evidence.trace.manifest
    wanted, counts = int(question.value), (first.world_size, second.world_size)
    steps, rule, words = extend_loss(job, base, wanted)
    value, low, high = 0.0, math.inf, 0.0
    for step in steps:
        value += step.value / len(steps)
        low, high = min(low, step.low or 0.0), max(high, step.high or 0.0)
    found = dataclasses.replace(
        job.answer(question),
        step_ns=Estimate(value, low, high),
        replay_error=None,
        rests_on=(
            f"what the job lost from {counts[0]} to {plural(counts[1], 'rank')}",
            rule,
            words,
        ),
        leaves_out=("slower hosts than those of the runs",),
    )
    cards = cards_of_a_host(second)
    if wanted > cards >= max(counts):
        why = f"neither run crosses a host of {cards} ranks: links between hosts were not measured"
        return dataclasses.replace(found, why=why, next="record a run on two hosts")
    what_next = "record a run of a number of ranks that is nearer, or a longer one"
    return narrow(found, "the two runs leave a wide interval", what_next)


def cards_of_a_host(manifest: RunManifest) -> int:
    """Return the ranks of a host, as the run or the description of its system states them."""
    for stated in (
        manifest.config.get("cards_of_one_node"),
        manifest.environment.get("gpus_per_node"),
    ):
        if str(stated).isdecimal() and int(str(stated)) > 0:
            return int(str(stated))
    return CARDS


def links_of_ranks(job: Job, model: StepModel, counts: Sequence[int]) -> Links | None:
    """Return the exposed exchange, or `None` if nothing says what it takes."""
    now = len(model.lines)
    if now < 2 or not model.members:
        return links_of_curve(job, counts)
    bare = float(replay(without_transfers(model)).mean())
    latency, measured = find_latency(model), measured_growth(job, model)
    words = (
        "transfers of the run: their volume grows as in a ring, at most they grow by the logarithm "
        "of the ranks"
    )
    if measured:
        words = f"{words}; 'profkit ceilings --links' at {sorted(measured)} ranks"
    whole, share = float(model.transfer.mean(axis=1).sum()), 0.0
    if latency is not None and whole > 0:
        share = min(1.0, latency * len(model.transfer) / whole)
    found: list[list[float]] = [[], [], []]
    for count in counts:
        ring = (1 - 1 / count) / (1 - 1 / now)
        tree = math.log2(count) / math.log2(now)
        least, most = min(ring, tree), max(ring, tree)
        usual = ring + share * (tree - ring)
        if count in measured:
            least = most = usual = measured[count]
        for place, factor in enumerate((usual, least, most)):
            found[place].append(factor)
    factors = np.array(found)
    asked = np.unique(factors)
    if len(asked) > MOST_REPLAYS:  # what is exposed bends where a transfer is no longer hidden
        asked = np.linspace(asked[0], asked[-1], MOST_REPLAYS)
    exposed = []
    for factor in asked:
        changed = dataclasses.replace(model, transfer=model.transfer * factor)
        if factor == 0:
            changed = without_transfers(changed)
        exposed.append(max(0.0, float(replay(changed).mean()) - bare))
    value, low, high = np.interp(factors, asked, exposed)
    return Links(value, low, high, words)


def measured_growth(job: Job, model: StepModel) -> dict[int, float]:
    """Return the factors of the transfer by number of ranks, if the links were measured there."""
    ceilings = load_ceilings(job.evidence.trace.manifest.environment)
    backends = set(pc.unique(job.evidence.trace.collectives["backend"]).to_pylist())
    if ceilings is None or not model.sizes.any():
        return {}
    now, size, found = len(model.lines), float(model.sizes.mean()), {}
    for backend in backends:
        here = ceilings.links_of(str(backend), now)
        for links in ceilings.links:
            if links.backend == backend and here is not None:
                volume = (1 - 1 / links.ranks) / (1 - 1 / now)
                found[links.ranks] = volume * here.at(size) / links.at(size)
    return found


def links_of_curve(job: Job, counts: Sequence[int]) -> Links | None:
    """Return what the gradients take on measured links, at most exposed as a whole."""
    ceilings: Ceilings | None = load_ceilings(job.evidence.trace.manifest.environment)
    size = job.evidence.trace.manifest.config.get("parameters_bytes")
    if ceilings is None or not ceilings.links or not isinstance(size, int) or size <= 0:
        return None
    links = max(ceilings.links, key=lambda each: each.ranks)
    whole = []
    for count in counts:
        growth = max(1.0, math.log2(max(2, count)) / math.log2(links.ranks))
        seconds = 2 * (1 - 1 / count) * size / links.at(size)
        whole.append(1e9 * seconds * growth)
    most = np.array(whole)
    words = (
        f"the gradients' exchange on links between {links.ranks} processes of this machine, by "
        "'profkit ceilings --links': hidden as a whole, or not at all"
    )
    return Links(most / 2, most * 0, most, words)
