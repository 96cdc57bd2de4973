"""Tests of what profkit finds out about its process."""

import _thread
import functools

import pytest

from profkit.own_process import threads_are_patched


def test_threads_whose_identity_is_another_function_are_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not threads_are_patched()
    monkeypatch.setattr(_thread, "get_ident", lambda: 1)  # as gevent and eventlet do
    assert threads_are_patched()


def test_a_wrapped_start_of_threads_leaves_them_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debuggers do that."""
    wrapped = functools.partial(_thread.start_new_thread)
    monkeypatch.setattr(_thread, "start_new_thread", wrapped)
    assert not threads_are_patched()
