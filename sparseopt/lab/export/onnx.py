"""A network as an ONNX file, checked with onnxruntime before anyone relies on it."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from sparseopt.lab.errors import UserError
from sparseopt.lab.system.files import reporting_write_errors

TOLERANCE = 1e-5
IMAGES = 4  # that the check runs; any number may come later


def export_onnx(model: nn.Module, shape: tuple[int, ...], path: Path, *, symbols: int | None = None) -> float:
    """Write the dense network, zeros included, for batches of any size; returns the largest deviation from torch.

    `symbols`: where the network reads text, how many characters there are.
    """
    try:
        import onnx  # noqa: F401 - the exporter needs it, and says so less clearly
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"--format onnx needs {error.name}; install it with: pip install 'sparseopt[export]'"
        ) from error
    model.eval()
    draw, name = torch.Generator().manual_seed(0), "images" if symbols is None else "text"
    if symbols is None:
        inputs = torch.randn(IMAGES, *shape, generator=draw)
    else:
        inputs = torch.randint(symbols, (IMAGES, *shape), generator=draw)
    with reporting_write_errors(path), _quiet():
        torch.onnx.export(
            model,
            (inputs,),
            path,
            dynamo=True,
            external_data=False,
            input_names=[name],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {name: inputs.numpy()})
    with torch.no_grad():
        expected = model(inputs)
    deviation = float((torch.from_numpy(scores) - expected).abs().max() / expected.abs().max().clamp_min(1))
    if not deviation <= TOLERANCE:
        path.unlink()
        raise UserError(
            f"onnxruntime's scores differ from torch's by {deviation:.1e}, more than {TOLERANCE}; nothing was written"
        )
    return deviation


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints its progress, and warns of what is deprecated inside torch."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
