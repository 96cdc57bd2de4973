"""Turns the views that `profkit.analysis` builds into text and JSON."""

import sys

from profkit.notebook import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
