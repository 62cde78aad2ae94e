"""Simulated processes: parts of one program that die, freeze and thaw like processes of a machine.

Everything that a process starts (tasks, timers, callbacks) carries the process in its context. A
dead process runs nothing any more, a frozen one runs what has come due after it thaws. A fuse kills
a process before any one of its steps, so a crash can stand at every await.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from sharecoord.testing.virtual_time import VirtualTimeLoop

__all__ = [
    "Process",
    "ProcessLoop",
    "bury_all",
    "run_processes",
]

T = TypeVar("T")

_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Step:
    """A callback of a process that the loop will make."""

    __slots__ = ("args", "callback", "context", "handle")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: contextvars.Context,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.handle: asyncio.Handle | None = None


class Process:
    """One process; see the module.

    Args:
        name: For traces.
        on_death: Called once when it dies, whatever killed it.
    """

    def __init__(self, name: str, on_death: Callable[[Process], None]) -> None:
        self.name = name
        self.dead = False
        self.frozen = False
        self.fuse = 0
        """So many more steps, then it dies; 0 = no fuse burns."""
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)
        self._on_death = on_death
        self._held: list[_Step] = []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop), "run by run_processes"
        self._loop = loop

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Has the process make a call; callable from everywhere."""
        self._loop.call_soon(callback, *args, context=self.context)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Runs a coroutine inside the process."""
        return asyncio.Task(work, loop=self._loop, name=name, context=self.context)

    def kill(self) -> None:
        """As kill -9."""
        if not self.dead:
            self.dead = True
            self._on_death(self)

    def freeze(self) -> None:
        """As SIGSTOP: nothing runs until `thaw`."""
        self.frozen = True

    def thaw(self) -> None:
        """As SIGCONT: all that came due meanwhile runs, in its order."""
        if not self.dead:
            self._go_on()

    def bury(self) -> None:
        """At the end of a simulation: lets what is left of it end, all tasks being cancelled."""
        self.dead = False
        self.fuse = 0
        self._go_on()

    def _go_on(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for step in held:
            self._loop.resume(self, step)

    def run(self, step: _Step) -> None:
        """Makes a step, if the process can."""
        if step.handle is not None and step.handle.cancelled():
            return
        if self.fuse and not self.dead and not self.frozen:
            self.fuse -= 1
            if not self.fuse:
                self.kill()
        if self.dead or self.frozen:
            self._held.append(step)
            return
        step.callback(*step.args)


class ProcessLoop(VirtualTimeLoop):
    """A loop on virtual time that knows whose steps it makes."""

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As of every loop."""
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        context = contextvars.copy_context() if context is None else context
        step = _Step(callback, args, context)
        step.handle = super().call_soon(process.run, step, context=context)
        return step.handle

    def resume(self, process: Process, step: _Step) -> None:
        """Makes a step that came due while its process was frozen."""
        super().call_soon(process.run, step, context=step.context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As of every loop."""
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        context = contextvars.copy_context() if context is None else context
        step = _Step(callback, args, context)
        handle = super().call_at(when, process.run, step, context=context)
        step.handle = handle
        return handle


async def bury_all(processes: Iterable[Process]) -> None:
    """Buries what was killed or frozen, and lets every task but the present one end.

    Timers that came due while a process was dead may begin tasks: those end, too.
    """
    for process in processes:
        process.bury()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=1)


def run_processes(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` on virtual time, with processes; it ends with `bury_all`."""
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(main)
