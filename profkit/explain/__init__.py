"""Why two runs differ: the ledger, its evidence and its causes."""

import sys

from profkit.notebook import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
