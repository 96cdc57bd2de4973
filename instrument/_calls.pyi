from collections.abc import Callable
from typing import Any

from profkit.instrument.sent import Sent as Sent

class Calls:
    def __init__(
        self,
        calls: Any,
        here: Any,
        layout: Any,
        set_eval_frame: Callable[[Any], Any],
        report: Callable[[str, Exception], object],
        most_open: int,
        /,
    ) -> None: ...
    def done(self, sent: Sent, work: Any, /) -> Callable[[Any], None]: ...
    def wrap_wait(self, original: Callable[..., Any], /) -> Callable[..., Any]: ...

class Hooks:
    def __init__(self, calls: Calls, hooks: Any, /) -> None: ...
    def before(self, args: Any, /) -> None: ...
    def after(self, args: Any, /) -> None: ...
