"""Policies after their run: scores, films, ONNX."""
