"""A trained network as files for others: ONNX, the Hugging Face Hub."""
