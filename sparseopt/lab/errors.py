"""What goes wrong in the lab and can be set right by the person at the keyboard."""


class UserError(Exception):
    """What the person at the keyboard can set right: one line that names the remedy, and the exit code."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
