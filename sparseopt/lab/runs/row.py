"""What is recorded of an epoch: one row of numbers by name, a line of metrics.jsonl."""

from typing import Any

Row = dict[str, Any]
