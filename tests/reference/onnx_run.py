"""Checks an ONNX file and runs it with ONNX Runtime.

usage: onnx_run.py MODEL.onnx INPUTS.safetensors OUTPUTS.safetensors

Writes the outputs by name, and prints the opset, the metadata and the shapes of the inputs as JSON.
"""
import json
import sys

import onnx
import onnxruntime
from safetensors.numpy import load_file, save_file

path, inputs, outputs = sys.argv[1:4]
model = onnx.load(path)
onnx.checker.check_model(model, full_check=True)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
results = session.run(names, load_file(inputs))
save_file({name: result.copy(order="C") for name, result in zip(names, results)}, outputs)
print(json.dumps({
    "opset": model.opset_import[0].version,
    "metadata": {entry.key: entry.value for entry in model.metadata_props},
    "inputs": {value.name: value.shape for value in session.get_inputs()},
    "outputs": {value.name: value.shape for value in session.get_outputs()},
    "weights": [weight.name for weight in model.graph.initializer],
}))
