"""Ctrl-C as a request, of a run and of the sweep around it."""

import os
import signal

from sparseopt.lab.system.interrupt import StopRequest


def test_a_run_that_ends_just_then_passes_the_request_on() -> None:
    sweep, run = StopRequest(), StopRequest()
    with sweep.listening():
        with run.listening():
            os.kill(os.getpid(), signal.SIGTERM)
            assert run.made
        assert sweep.made


def test_a_request_comes_from_nowhere_else() -> None:
    sweep, run = StopRequest(), StopRequest()
    with sweep.listening():
        with run.listening():
            pass
        assert not sweep.made
    before = signal.getsignal(signal.SIGINT)
    with run.listening():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
