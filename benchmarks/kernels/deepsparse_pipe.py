"""DeepSparse in a process of its own, with a Python and a numpy that it can use. This file runs at both ends of the pipe.

A request is one line of JSON; what is timed never crosses the pipe: the other end keeps the input, and calls the engine itself.
"""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class DeepSparse:
    """Networks at the other end of the pipe, by the number that `load` gives them."""

    def __init__(self, python: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [python, __file__, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> "DeepSparse":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def load(self, path: Path, x: Any) -> int:
        data = x.numpy()
        self._send({"load": str(path), "shape": list(data.shape)}, data.tobytes())
        return self._receive()[0]["number"]

    def run(self, number: int) -> Any:
        """The output for the input it was loaded with."""
        import numpy

        self._send({"run": number}, b"")
        header, data = self._receive()
        return numpy.frombuffer(bytearray(data), dtype="float32").reshape(header["shape"])

    def seconds(self, number: int, calls: int, clock: str) -> float:
        """That so many calls take, measured there: on the wall, or of the CPU."""
        self._send({"time": number, "calls": calls, "clock": clock}, b"")
        return self._receive()[0]["seconds"]

    def _send(self, header: dict[str, Any], data: bytes) -> None:
        send(self._process.stdin, header, data)

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        return receive(self._process.stdout)


def send(stream: Any, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    stream.write(struct.pack("<QQ", len(text), len(data)) + text + data)
    stream.flush()


def receive(stream: Any) -> tuple[dict[str, Any], bytes]:
    sizes = stream.read(16)
    if len(sizes) < 16:
        raise EOFError("the other end of the pipe is gone")
    header, data = struct.unpack("<QQ", sizes)
    return json.loads(stream.read(header)), stream.read(data)


def serve(threads: int) -> None:
    import numpy  # pyright: ignore
    from deepsparse import Engine  # pyright: ignore

    replies, sys.stdout = sys.stdout.buffer, sys.stderr
    engines: list[Any] = []
    while True:
        try:
            header, data = receive(sys.stdin.buffer)
        except EOFError:
            return
        if "load" in header:
            x = numpy.frombuffer(data, dtype="float32").reshape(header["shape"])
            engine = Engine(model=header["load"], batch_size=len(x), num_cores=threads)
            engines.append((engine, [x.copy()]))
            send(replies, {"number": len(engines) - 1}, b"")
        elif "time" in header:
            engine, inputs = engines[header["time"]]
            now = time.process_time if header["clock"] == "cpu" else time.perf_counter
            start = now()
            for _ in range(header["calls"]):
                engine.run(inputs)
            send(replies, {"seconds": now() - start}, b"")
        else:
            engine, inputs = engines[header["run"]]
            output = engine.run(inputs)[0]
            send(replies, {"shape": list(output.shape)}, output.tobytes())


if __name__ == "__main__":
    serve(int(sys.argv[1]))
