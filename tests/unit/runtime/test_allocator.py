"""Freed memory is kept where glibc is, and nowhere where somebody has chosen otherwise."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from sharecoord.runtime.kernel import allocator
from sharecoord.runtime.kernel.allocator import FreedMemory, keep_freed_memory

PROGRAM = """
import resource, sys
from sharecoord.runtime.kernel.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory(512 << 20, {})
for _ in range(3):
    bytearray(4 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    first, second = bytearray(4 << 20), bytearray(3 << 20)
    del first, second
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


GIVEN_BACK = """
from sharecoord.runtime.kernel.allocator import FreedMemory, keep_freed_memory

assert keep_freed_memory(512 << 20, {})
freed = FreedMemory({})
blocks = [bytearray(4 << 20) for _ in range(20)]
del blocks[::2]
print(freed.above_rest_bytes)
freed.give_back()
print(freed.above_rest_bytes)
"""


def run(program: str, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def faults(how: str) -> int:
    return int(run(PROGRAM, how))


@pytest.mark.skipif(not allocator._is_glibc(), reason="another C library")
def test_memory_comes_from_the_kernel_once() -> None:
    # 7 MiB are 1,792 pages.
    assert faults("kept") < 4_000


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_an_operators_choice_is_left_alone(name: str) -> None:
    assert not keep_freed_memory(512 << 20, {name: "1"})


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown)
    assert not keep_freed_memory(512 << 20, {})
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
    assert FreedMemory({"LD_PRELOAD": "other"}).above_rest_bytes == 0
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory(512 << 20, {})
    freed = FreedMemory({})
    freed.give_back()
    assert freed.above_rest_bytes == 0


@pytest.mark.skipif(not allocator._is_glibc(), reason="another C library")
def test_memory_below_something_in_use_is_kept_until_it_is_given_back() -> None:
    kept, given_back = map(int, run(GIVEN_BACK).split())
    assert 75 << 20 < kept < 90 << 20
    assert 35 << 20 < given_back < 50 << 20
