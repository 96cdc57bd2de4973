"""The reasons for which a job stands still, and how alarming each is."""

from __future__ import annotations

from enum import Enum

from profkit.hangs import incidents


class HangClass(str, Enum):
    """The reasons for which a job stands still."""

    NEVER_ENTERED = "never entered"
    ENTERED_LATE = "entered late"
    MISMATCH = "mismatch"
    NONE_LEFT = "all entered, none left"
    RANK_DEAD = "rank dead"
    RANK_STOPPED = "rank stopped"
    DEVICE_BUSY = "device busy"
    COMPILE = "compile on one rank"
    DATA = "waiting for data"
    STORE = "waiting for the store or rendezvous"
    EVALUATION = "only some ranks evaluate"
    ALL_EVALUATE = "evaluation"
    ALL_COMPILE = "compilation"
    CHECKPOINT = "checkpoint"
    OWN_CODE = "in the job's own code"
    UNCLEAR = "inconclusive"


NEVER_LONG = frozenset(
    {HangClass.MISMATCH, HangClass.RANK_DEAD, HangClass.RANK_STOPPED, HangClass.NONE_LEFT}
)
"""The classes that no part of a healthy job has for long."""


class Level(str, Enum):
    """An alarm is a hang. A notice is a part that may take long."""

    ALARM = incidents.ALARM
    NOTICE = "notice"
