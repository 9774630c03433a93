"""The ``conftest`` that Keras' test files import, and the recorder of their results.

Keras leaves its own file out of the wheel; its tests need the two markers, ``skip_if_backend`` and
torch loaded before TensorFlow (the other way round crashes).
"""

import contextlib
import inspect
import os
import random
import socket
import types
import zlib

with contextlib.suppress(ImportError):
    import torch  # noqa: F401

import numpy as np
import pytest
from keras.src import backend as keras_backend
from keras.src.backend import backend

if backend() == "kerascl":
    import sparse_data

NOT_TRAINABLE = ("numpy", "openvino")


def skip_if_backend(given_backend, reason):
    """The decorator that test files import from here."""
    return pytest.mark.skipif(backend() == given_backend, reason=reason)


def pytest_configure(config):
    config.addinivalue_line("markers", "requires_trainable_backend: wants a backend that trains")
    config.addinivalue_line("markers", "multi_device: wants several devices")


def pytest_sessionstart():
    if backend() == "kerascl":
        sparse_data.install()  # in front of pytest's own finder


def pytest_runtest_setup():
    """Each test draws its data from one seed, so that a failure comes again."""
    seed = int(os.environ.get("UPSTREAM_SEED", 0))
    random.seed(seed)  # of which Keras makes its own seeds
    np.random.seed(seed)


def pytest_collection_modifyitems(items):
    for item in items:
        data = getattr(getattr(item, "module", None), "TestPyDataset", None)
        if data is not None and backend() == "kerascl":
            _name_cpu(data.__getitem__)
        if "requires_trainable_backend" in item.keywords and backend() in NOT_TRAINABLE:
            item.add_marker(pytest.mark.skip(reason=f"{backend()} does not train"))
        if "multi_device" in item.keywords and not _many_devices():
            item.add_marker(pytest.mark.skip(reason="wants several devices"))


def _name_cpu(function) -> None:
    """trainer_test's data set has a table of what backends call a CPU; puts us for torch."""
    constants = tuple(
        tuple(backend() if x == "torch" else x for x in c) if isinstance(c, tuple) else c
        for c in function.__code__.co_consts
    )
    function.__code__ = function.__code__.replace(co_consts=constants)


def _without_annotations() -> None:
    """ops_test compares signatures with Keras' own functions, whose parameters have no types."""
    for room in ("core", "image", "linalg", "math", "nn", "numpy"):
        for function in vars(getattr(keras_backend, room)).values():
            if isinstance(function, types.FunctionType):
                signature = inspect.signature(function)
                function.__signature__ = signature.replace(
                    return_annotation=inspect.Signature.empty,
                    parameters=[
                        parameter.replace(annotation=inspect.Parameter.empty)
                        for parameter in signature.parameters.values()
                    ],
                )


if backend() == "kerascl":
    _without_annotations()


def _many_devices() -> bool:
    if backend() != "jax":
        return False
    import jax

    return jax.device_count() > 1


def _forbid_network() -> None:
    """Connections to other machines fail at once: no test may download anything."""
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def local(host) -> bool:
        name = host.decode() if isinstance(host, bytes) else host
        return name in (None, "", "localhost", "0.0.0.0", "::1") or name.startswith("127.")

    def guarded_resolve(host, *args, **kwargs):
        if not local(host):
            raise socket.gaierror(f"tests do not reach the network: {host}")
        return resolve(host, *args, **kwargs)

    def guarded_connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not local(address[0]):
            raise ConnectionRefusedError(f"tests do not reach the network: {address}")
        return connect(self, address)

    socket.getaddrinfo, socket.socket.connect = guarded_resolve, guarded_connect


_forbid_network()


class Recorder:
    """A plugin that reports through ``write``, and runs what a job (see worker.py) asks for."""

    def __init__(self, write, job: dict):
        self.write, self.job = write, job

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        job = self.job
        start, end = (len(items) * k // job["parts"] for k in (job["part"], job["part"] + 1))
        of, count = job["of"]
        first = (of + zlib.crc32(job["file"].encode()) - start) % count  # files have few tests, too
        chosen = items[start:end][first::count]
        items[:] = [item for item in chosen if item.nodeid not in job["skip"]]
        self.write(collected=[item.nodeid for item in items])

    def pytest_collectreport(self, report):
        if report.failed:
            message, where = _explain(report)
            self.write(id=report.nodeid, phase="collect", outcome="failed", seconds=0.0,
                       message=message, where=where)  # fmt: skip

    def pytest_runtest_logstart(self, nodeid):
        self.write(start=nodeid)

    def pytest_runtest_logreport(self, report):
        outcome, message, where = report.outcome, "", ""
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "passed"
        elif report.failed:
            message, where = _explain(report)
        elif report.skipped and isinstance(report.longrepr, tuple):
            message = str(report.longrepr[2])
        self.write(id=report.nodeid, phase=report.when, outcome=outcome, seconds=report.duration,
                   message=message, where=where)  # fmt: skip

    def pytest_runtest_logfinish(self, nodeid):
        self.write(finish=nodeid)


def _explain(report) -> tuple[str, str]:
    """The error in one line, and the innermost line of kerascl (else of anything) on its way."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
        errors = [line[1:].strip() for line in lines if line.startswith("E ")] or lines[-1:]
        return (errors[-1] if errors else "")[:300], ""
    message = " ".join(crash.message.split())[:300]
    places = []
    trace = report.longrepr.reprtraceback
    for traceback, _, _ in getattr(report.longrepr, "chain", None) or [(trace, crash, None)]:
        for entry in traceback.reprentries:
            place = getattr(entry, "reprfileloc", None)
            if place is not None:
                places.append((place.path.replace(os.sep, "/"), place.lineno))
    ours = [(path, line) for path, line in places if "/kerascl/" in f"/{path}"]
    path, line = (ours or places or [(crash.path, crash.lineno)])[-1]
    return message, f"{path[path.rfind('kerascl/') if ours else path.rfind('/src/') + 5 :]}:{line}"
