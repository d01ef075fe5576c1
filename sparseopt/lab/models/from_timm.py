"""Any network of timm by its name, for the data set at hand: `sparseopt train --model timm:resnet18`."""

from torch import nn

from sparseopt.lab.errors import UserError, near


def timm_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network with random initial weights, for images of this shape and so many classes.

    Networks that are made for one size of image (vision transformers) are told the size; the others take any.
    """
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UserError(
            f"--model timm:{name} needs {error.name}, which is not installed; pip install 'sparseopt[timm]'"
        ) from error
    if not timm.is_model(name):
        raise UserError(
            f"--model timm:{name}: timm has no such network{near(name, timm.list_models())}; "
            "timm.list_models() lists all"
        )
    options = {"num_classes": classes, "in_chans": shape[0]}
    try:
        return timm.create_model(name, **options, img_size=shape[1:])
    except TypeError:  # a network that takes images of any size has no such option
        return timm.create_model(name, **options)
