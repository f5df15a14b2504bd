"""Evaluations of the policy, within training or in a process beside it; policies as videos and as ONNX files."""
