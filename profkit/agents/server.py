"""The server: a tool for each question, over stdin and stdout only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from profkit.agents.answers import Answers, named
from profkit.errors import ProfkitError
from profkit.version import __version__

INSTRUCTIONS = """\
profkit measures training jobs. Call `runs` first, then `report` or `explain`. Times are ns or ms as
the key says; intervals are 95 %. "cannot judge" and null mean that the run does not show it: say
so, and name the measurement that `why_not_judged` or `data_quality` asks for."""


def make_server(answers: Answers) -> Any:
    """Return a server whose tools only read."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise ProfkitError(
            "'profkit mcp' needs the package mcp, version 2: pip install 'profkit[mcp]'"
        ) from None
    server = MCPServer("profkit", instructions=INSTRUCTIONS, version=__version__)
    only_reads = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for name, question in answers.tools().items():
        tool, about = guarded_tool(question, ToolError), inspect.getdoc(question)
        server.add_tool(tool, name=name, description=about, annotations=only_reads)
    return server


def guarded_tool(question: Callable[..., Any], error_type: type[Exception]) -> Callable[..., Any]:
    """Return a tool that reports what the user can fix as an error of the tool."""

    def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = question(*args, **kwargs)
        except ProfkitError as error:
            raise error_type(str(error)) from None
        return found

    return named(question, call)
