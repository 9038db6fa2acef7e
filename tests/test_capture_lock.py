"""Captures of CUDA graphs beside threads that use the same device: nothing runs meanwhile, and nobody blocks."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch

from voxgraft.nn.layers import CAPTURE_LOCK, CaptureLock, capture_graph

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: there is no GPU")
PATIENCE = 60


def run_threads(*functions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "blocked"


def test_threads_that_work_and_capture_are_never_beside_a_capture_and_none_blocks() -> None:
    lock, watch = CaptureLock(), threading.Lock()
    working, capturing, wrong, captures = 0, 0, list[str](), 0

    def count(works: int, captured: int) -> None:
        nonlocal working, capturing, captures
        with watch:
            working, capturing = working + works, capturing + captured
            captures += captured > 0
            if capturing and (working or capturing > 1):
                wrong.append(f"{working} threads work beside {capturing} captures")

    def capture() -> None:
        with lock.capture():
            count(0, 1)
            time.sleep(0.0005)
            count(0, -1)

    def worker(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(60):
            with lock.work():
                count(1, 0)
                if draw.random() < 0.5:  # both threads may want to at once
                    count(-1, 0)
                    capture()
                    count(1, 0)
                count(-1, 0)

    def outsider() -> None:
        for _ in range(40):
            capture()

    run_threads(lambda: worker(1), lambda: worker(2), lambda: worker(3), outsider)
    assert not wrong
    assert captures > 100


def test_work_goes_on_beside_other_work() -> None:
    lock, both = CaptureLock(), threading.Barrier(2, timeout=PATIENCE)

    def worker() -> None:
        with lock.work():
            both.wait()

    run_threads(worker, worker)


def test_a_capture_comes_before_work_that_begins_later() -> None:
    lock, order, begun = CaptureLock(), list[str](), threading.Event()

    def busy() -> None:
        with lock.work():
            begun.set()
            while not lock._num_waiting:
                time.sleep(0.001)
            threading.Thread(target=late, daemon=True).start()
            time.sleep(0.05)
            order.append("busy")

    def late() -> None:
        with lock.work():
            order.append("late")

    def capture() -> None:
        begun.wait(PATIENCE)
        with lock.capture():
            order.append("capture")

    run_threads(busy, capture)
    while len(order) < 3:
        time.sleep(0.001)
    assert order == ["busy", "capture", "late"]


def test_work_inside_of_work_and_of_a_capture_goes_on_while_another_thread_waits_to_capture() -> None:
    lock, order = CaptureLock(), list[str]()

    def nested() -> None:
        with lock.work():
            threading.Thread(target=capture, daemon=True).start()
            while not lock._num_waiting:
                time.sleep(0.001)
            with lock.work():
                order.append("inner")
            assert lock._working == {threading.get_ident()}  # the outer block still keeps captures away
            time.sleep(0.02)
            order.append("outer")

    def capture() -> None:
        with lock.capture(), lock.work():
            order.append("capture")

    run_threads(nested)
    while len(order) < 3:
        time.sleep(0.001)
    assert order == ["inner", "outer", "capture"]


def test_a_capture_inside_of_a_capture_is_an_error_and_does_not_block() -> None:
    lock = CaptureLock()
    with pytest.raises(RuntimeError, match="inside of a capture"), lock.capture(), lock.capture():
        pass
    with lock.work():
        assert lock._working == {threading.get_ident()}


def test_an_interrupted_wait_for_a_capture_lets_others_work() -> None:
    lock, holds, release, worked = CaptureLock(), threading.Event(), threading.Event(), threading.Event()

    def busy() -> None:
        with lock.work():
            holds.set()
            release.wait()

    def late() -> None:
        while not lock._num_waiting:
            time.sleep(0.001)
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1)).start()
        with lock.work():  # waits for the capture that waits
            worked.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    main, before = threading.main_thread().ident or 0, signal.signal(signal.SIGUSR1, interrupt)
    try:
        for function in (busy, late):
            threading.Thread(target=function, daemon=True).start()
        holds.wait(PATIENCE)
        with pytest.raises(KeyboardInterrupt), lock.capture():
            pass
        assert worked.wait(PATIENCE), "blocked"
    finally:
        release.set()
        signal.signal(signal.SIGUSR1, before)


def test_a_capture_that_fails_leaves_the_device_to_others() -> None:
    lock, order = CaptureLock(), list[str]()

    def failing() -> None:
        with lock.work():
            with pytest.raises(RuntimeError), lock.capture():
                raise RuntimeError
            order.append("eager")  # and it works on, so that no other thread captures now
            assert lock._working == {threading.get_ident()}

    def other() -> None:
        with lock.work(), lock.capture():
            order.append("capture")

    run_threads(failing, other)
    assert sorted(order) == ["capture", "eager"]
    assert not lock._working


@cuda
def test_captures_beside_a_thread_that_waits_for_the_device_succeed() -> None:
    """Two threads, each on a stream of its own, as in the server: one waits for the whole device again and again."""
    failures, ended = list[Exception](), threading.Event()
    given = torch.randn(256, 256, device="cuda")

    def compute() -> torch.Tensor:
        x = given
        for _ in range(200):
            x = torch.tanh(x @ given)
        return x

    def waits() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            while not ended.is_set():
                with CAPTURE_LOCK.work():
                    compute()
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()

    def captures() -> None:
        try:
            compute()
            for _ in range(20):
                graph, output = capture_graph(compute)
                graph.replay()
                torch.testing.assert_close(output, compute())
        except Exception as error:
            failures.append(error)
        ended.set()

    run_threads(waits, captures)
    assert not failures


@cuda
def test_after_a_failed_capture_the_thread_and_the_next_capture_are_as_before() -> None:
    given, stream = torch.ones(1024, device="cuda"), torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        capture_graph(lambda: given * float(given.sum()))  # waits for the device
    assert torch.cuda.current_stream() == stream
    graph, output = capture_graph(lambda: given + 1)
    graph.replay()
    assert torch.equal(output, torch.full_like(given, 2))
    torch.cuda.empty_cache()
