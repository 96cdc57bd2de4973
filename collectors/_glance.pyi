from types import CodeType

def look(
    thread: int, due_ns: int, below: CodeType | None, /
) -> tuple[list[tuple[CodeType, int]], int, int] | None: ...
