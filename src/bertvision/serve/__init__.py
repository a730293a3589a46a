"""Serve: a trained reader -> Python object, command line, HTTP, web page, ONNX."""
