"""The promises that docs/reliability.md makes, and the commands that try to break them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """A benchmark: its counts at full length and in short, and more arguments.

    `fails` marks one that has to fail.
    """

    name: str
    option: str = ""
    full: int = 0
    short: int = 0
    more: str = ""
    fails: bool = False

    def words(self, amount: int) -> list[str]:
        return [
            f"benchmarks/{self.name}.py",
            *([self.option, str(amount)] if self.option else []),
            *self.more.split(),
        ]

    def amount(self, part: float) -> int:
        return max(self.short, round(self.full * part))


@dataclass(frozen=True)
class Tests:
    """Tests, which have one length only."""

    where: str
    named: str = ""
    fails: bool = False
    full: int = 0

    def amount(self, part: float) -> int:
        return self.full

    def words(self, amount: int) -> list[str]:
        return [
            "-m",
            "pytest",
            "-q",
            "-rN",
            *self.where.split(),
            *(["-k", self.named] if self.named else []),
        ]


@dataclass(frozen=True)
class Check:
    """A promise, and the commands that try to break it."""

    title: str
    promise: str
    steps: Sequence[Script | Tests]


CHECKS: Mapping[str, Check] = {
    "1": Check(
        "SIGKILL at any moment",
        "Every row can be read once it is one second old, if the job had a CPU in that second. "
        "No row is invented. `verify` names the state. Every other file is whole or absent.",
        (Script("kill", "--trials", 200, 6), Script("interrupt", "--trials", 200, 3)),
    ),
    "2": Check(
        "A file cut at every byte",
        "profkit reads only rows that were written. It reports the run as torn, or as ended "
        "early if it has no end record.",
        (
            Script("truncate", "--size", 65_536, 2_000),
            Tests("tests/trace/test_survival.py", "cut_at_any_byte"),
        ),
    ),
    "3": Check(
        "Bytes flipped, 50,000 times in each format",
        "No crash, no traceback, no hang over 5 s, no growing memory, and no changed figure "
        "without a message.",
        (
            Script("mutate_runs", "--count", 50_000, 1_000),
            Script("mutate_traces", "--count", 50_000, 100),
            Script("mutate_logs", "--count", 2_100, 20),
        ),
    ),
    "4": Check(
        "The n-th write fails, for all n",
        "The job continues and ends as without profkit. The files are whole, and the run says "
        "why it ended early.",
        (
            Script("io_errors", "--most", 200, 8),
            Tests(
                "tests/trace/test_survival.py",
                "fails_at_any_time or broken_disk or disk_is_full or grow_no_more or vanishes",
            ),
        ),
    ),
    "5": Check(
        "An exception in every hook and collector",
        "The job trains to the same bits as without profkit, with one warning per place. The "
        "report counts the errors.",
        (
            Tests(
                "tests/instrument/test_frameworks.py tests/instrument/test_loader_workers.py",
                "fault_of_ours",
            ),
            Tests(
                "tests/collectors/test_in_a_run.py tests/callbacks/test_told_steps.py",
                "failed or fails",
            ),
        ),
    ),
    "6": Check(
        "A rank dies",
        "The other ranks end as without profkit. profkit names the missing rank and makes no "
        "statement about waiting.",
        (
            Tests(
                "tests/instrument/test_run_command.py tests/cli/test_trace_faults.py",
                "rank_that_dies or killed_rank",
            ),
            Tests("tests/trust/test_unanswerable.py", "rank"),
        ),
    ),
    "7": Check(
        "A rank or a disk hangs",
        "No call of profkit waits for another rank or a device. profkit names a stopped rank, "
        "which loses no row. At its start and at its end, a job waits at most two seconds for a "
        "disk. If the kernel cannot interrupt a wait, as on a frozen local disk, the process is "
        "gone only after it.",
        (
            Tests("tests/trust/test_hanging_rank.py"),
            Tests("tests/trace/test_survival.py", "hangs"),
            Tests("tests/trust/test_audit.py", "meets"),
        ),
    ),
    "8": Check(
        "Forked and spawned workers",
        "Files stay whole, no row is written twice, and no child process writes or ends the trace.",
        (
            Tests("tests/trace/test_survival.py", "forked or outlives"),
            Tests(
                "tests/instrument/test_loader_workers.py",
                "same_to_the_bit or no_forks or descriptor",
            ),
            Tests("tests/trust/test_forks.py"),
        ),
    ),
    "9": Check(
        "Clocks that disagree",
        "Hosts 50 ms apart give the same figures, even if a clock is set back by an hour during "
        "the job. A clock that is 100 ppm fast changes figures by at most ten times that. No "
        "figure depends on the order of times on two hosts.",
        (Tests("tests/trust/test_clocks.py"),),
    ),
    "10": Check(
        "Impossible times",
        "profkit drops or repairs times that are zero, negative, 236 years long, or out of "
        "order. It counts every affected row. The ranking is that of the clean trace.",
        (
            Tests(
                "tests/importers/test_kineto.py tests/importers/test_base.py",
                "times_that_cannot_be",
            ),
        ),
    ),
    "11": Check(
        "Overhead",
        "The mean overhead is at most 0.15 ms per step, and at most 1 % of a long step. If the "
        "interval contains the limit, the next run may be over it. Every run measures its own "
        "overhead; [performance](performance.md) compares it with peers.",
        (Script("overhead", "--turns", 20, 6, "--processes 4 --keep-heap"),),
    ),
    "12": Check(
        "Long run",
        "Memory does not grow, no descriptor or thread is left, and every step is recorded.",
        (Script("soak", "--minutes", 60, 4),),
    ),
    "13": Check(
        "Size",
        "A run of 32 ranks opens in seconds and in bounded memory. [performance](performance.md) "
        "shows how time and memory grow.",
        (Script("open_trace"),),
    ),
    "14": Check(
        "Deterministic output",
        "Reports and comparisons of a trace are equal to the byte, for any hash seed, number "
        "of threads and order of files.",
        (Tests("tests/trust/test_determinism.py"),),
    ),
    "15": Check(
        "Old and new schemas",
        "profkit reads a stored run of each schema version with equal values. It refuses a newer "
        "major version and names it.",
        (
            Tests(
                "tests/trust/test_golden.py tests/trace/test_contract.py",
                "earlier or kept or newer or older",
            ),
        ),
    ),
    "16": Check(
        "Names that contain code",
        "Terminals, HTML, SVG, Markdown, spreadsheets and the terminal interface show such "
        "names and execute nothing.",
        (
            Tests(
                "tests/trust/test_hostile_names.py tests/report/test_shapes.py tests/tui",
                "no_terminal or formula or hostile or markdown_shows or steer or browser",
            ),
        ),
    ),
    "17": Check(
        "Secrets around a job",
        "Twenty variables, arguments and rows of another tool's file look like secrets. None of "
        "them appears in a file. Files are private to their owner.",
        (Tests("tests/trust/test_secrets.py tests/test_environment.py"),),
    ),
    "18": Check(
        "No network, no code, no file elsewhere",
        "Reading, showing, importing and exporting open no socket, construct no class from a "
        "pickle, start no process, and write only to the given place.",
        (Tests("tests/trust/test_audit.py", "nothing_but"),),
    ),
    "19": Check(
        "Objects, results, start-up",
        "DDP models do not change (copies, pickles, join, the job's own hooks). profkit records "
        "a job with any order of imports. A hint states only what was seen.",
        (Script("harmless"), Tests("tests/harmless")),
    ),
    "20": Check(
        "Run of weeks",
        "A rank writes at most 50 MB per day, whatever its steps, without --stacks workers. Its "
        "memory does not grow. Throughput, step time and phases stay exact, also if the rank is "
        "killed.",
        (
            Script("long_run", "--hours", 6, 1),
            Tests("tests/trace/test_thinning.py", "exact or killed or quantiles or exchange"),
        ),
    ),
    "21": Check(
        "Lines of code",
        "With --stacks, losses are equal to the bit. A job that is killed at any moment leaves "
        "stacks that can be read. No frame of profkit is stored. Hostile names of functions and "
        "files are shown safely. To read a stack never ends the job, also during collections.",
        (
            Tests(
                "tests/collectors/test_stacks.py tests/collectors/test_worker_stacks.py",
                "equal_to_the_bit or killed or no_frame_of",
            ),
            Tests("tests/trust/test_hostile_names.py", "stacks"),
            Tests("tests/collectors/test_thread_stacks.py", "harmed or collections"),
        ),
    ),
    "22": Check(
        "A job that stands still",
        "Long parts of a healthy job, ends, and clocks that jump raise no alarm. A verdict needs "
        "files only: nothing listens, and `why` names the same rank and line after SIGKILL.",
        (
            Tests(
                "tests/hangs/test_alarm.py",
                "no_hang or no_alarm or says_nothing or jumps or not_hang",
            ),
            Tests("tests/hangs/test_jobs.py"),
        ),
    ),
    "23": Check(
        "Sharded jobs",
        "Under profkit, losses of FSDP, tensor and pipeline jobs are equal to the bit. Every "
        "collective has one row with its bytes, and samples count once per data-parallel rank.",
        (Tests("tests/instrument/test_sharded.py", "equal_to_the_bit or bytes or samples_count"),),
    ),
    "24": Check(
        "Watching for changes",
        "Looking for changes while a job runs takes at most 10 us per step, or 0.01 % of a step, "
        "and a change of 20 % is said.",
        (Script("change_cost", "--runs", 3, 1),),
    ),
    "A": Check(
        "Check of the checks",
        "Without validation and checksums, check 3 must fail, and it does.",
        (
            Script("mutate_runs", "--count", 2_000, 200, "--without-validation", fails=True),
            Tests(
                "tests/importers/test_mutations.py tests/trust/test_damage.py",
                "planted or without_validation",
            ),
        ),
    ),
    "B": Check(
        "Unanswerable questions",
        "profkit reports every known unanswerable case as inconclusive or as an error, in both "
        "directions. Gates follow this verdict.",
        (Tests("tests/trust/test_unanswerable.py"),),
    ),
}
