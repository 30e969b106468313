"""Writes a PyTorch model as a file that the C++ library trains: `ExportedModel::load("model.tkm")`.

    import trainkit
    trainkit.export_model(model, (example_x,), "model.tkm")

    python -m trainkit.export models.py:make_model --out model.tkm

The file is a safetensors file with the weights. Its metadata describe the graphs of training and evaluation as calls of
ATen operators; it holds no code. docs/formats/exported-model.md describes it.
"""

import argparse
import contextlib
import copy
import ctypes
import importlib.util
import io
import json
import operator
import os
import sys
import traceback

import torch
from torch.utils import _pytree as pytree

VERSION = 1
DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
          torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
# Arithmetic on sizes, and how to get an output of several.
PYTHON_FUNCTIONS = {
    operator.getitem: "getitem", operator.add: "add", operator.sub: "sub", operator.mul: "mul",
    operator.floordiv: "floordiv", operator.truediv: "truediv", operator.mod: "mod", operator.neg: "neg",
    operator.pow: "pow", operator.eq: "eq", operator.ne: "ne", operator.lt: "lt", operator.le: "le", operator.gt: "gt",
    operator.ge: "ge", operator.and_: "and", operator.or_: "or", torch.sym_max: "max", torch.sym_min: "min",
    torch.sym_float: "float", torch.sym_int: "int", torch.sym_not: "not", torch.sym_ite: "ite",
}
# Checks of the tracer: they compute nothing.
CHECKS = {"aten::_assert_scalar", "aten::sym_constrain_range", "aten::sym_constrain_range_for_size",
          "aten::_assert_async", "aten::_assert_tensor_metadata"}


class ExportError(RuntimeError):
    """A model that cannot be exported, with the reason and, where there is one, the remedy."""


# ---- The graph as data


class _Writer:
    """Turns the graph of a torch.export.ExportedProgram into JSON values. Operators and lines of source are listed once."""

    def __init__(self):
        self.operators, self.sources = {}, {}

    def graph(self, module, inputs=None):
        """`inputs`: what the placeholders are, or None for a nested graph."""
        slots, calls, names = {}, [], []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                slots[node] = len(slots)
                names.append(node.name)
        outputs = []
        for node in module.graph.nodes:
            if node.op == "output":
                outputs = self.value(node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],), slots)
            elif node.op == "get_attr":
                if not isinstance(_attribute(module, node.target), torch.fx.GraphModule):
                    raise ExportError(f"the graph has a constant of its own: {node.target}")
            elif node.op == "call_function" and not _is_check(node):
                calls.append(self.call(module, node, slots))
                slots[node] = len(slots)
        graph = {"inputs": inputs if inputs is not None else len(names), "calls": calls, "outputs": outputs}
        return graph

    def call(self, module, node, slots):
        target, entry = node.target, {}
        if isinstance(target, torch._ops.OpOverload):
            schema = target._schema
            key = (schema.name, schema.overload_name)
            number, _ = self.operators.setdefault(key, (len(self.operators), str(schema)))
            given = dict(zip((a.name for a in schema.arguments), node.args)) | dict(node.kwargs)
            entry = {"op": number, "args": {name: self.value(v, slots) for name, v in given.items()}}
        elif isinstance(target, torch._ops.HigherOrderOperator):
            entry = self.nested(module, node, slots)
        elif target in PYTHON_FUNCTIONS:
            entry = {"py": PYTHON_FUNCTIONS[target], "args": [self.value(v, slots) for v in node.args]}
        else:
            raise ExportError(f"the model calls {target}, which is no operator of PyTorch{_where(node)}")
        line = _source(node)
        if line:
            entry["source"] = self.sources.setdefault(line, len(self.sources))
        return entry

    def nested(self, module, node, slots):
        name = node.target._name if hasattr(node.target, "_name") else node.target.name()
        graphs = [i for i, a in enumerate(node.args) if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast") or len(graphs) != 1:
            raise ExportError(f"the model uses {name}, control flow that depends on data{_where(node)}; "
                              "compute both branches and choose with torch.where")
        at = graphs[0]
        graph = self.graph(_attribute(module, node.args[at].target))
        entry = {"graph": graph, "args": [self.value(v, slots) for v in node.args[at + 1:]]}
        if name == "wrap_with_set_grad_enabled":
            entry["grad"] = bool(node.args[0])
        else:
            dtype = node.args[1]
            entry["autocast"] = {"enabled": bool(node.args[2]), "dtype": str(dtype)[6:] if dtype else None}
        return entry

    def value(self, v, slots):
        if isinstance(v, torch.fx.Node):
            return {"v": slots[v]}
        if isinstance(v, (list, tuple)):
            return [self.value(one, slots) for one in v]
        if isinstance(v, torch.dtype):
            return {"dtype": str(v)[6:]}
        if isinstance(v, torch.device):
            return {"device": "model"}
        if isinstance(v, torch.layout):
            if v != torch.strided:
                raise ExportError(f"the model uses the layout {v}")
            return {"layout": "strided"}
        if isinstance(v, torch.memory_format):
            return {"memory_format": str(v)[6:]}
        if isinstance(v, float) and (v != v or v in (float("inf"), float("-inf"))):
            return {"float": str(v)}
        if v is None or isinstance(v, (bool, int, float, str)):
            return v
        raise ExportError(f"an argument of type {type(v).__name__} has no form in the file")


def _attribute(module, target):
    for part in target.split("."):
        module = getattr(module, part)
    return module


def _is_check(node):
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in CHECKS


def _source(node):
    """Returns the innermost line of the model's own source: "model.py:12 in forward: x = self.fc(x)"."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    frames = [(lines[i], lines[i + 1].strip() if i + 1 < len(lines) else "") for i in range(0, len(lines), 2)
              if lines[i].lstrip().startswith("File ")]
    torch_folder = os.path.dirname(torch.__file__)
    own = [frame for frame in frames if torch_folder not in frame[0]] or frames
    if not own:
        return ""
    parts = own[-1][0].strip().split(", ")
    if len(parts) < 3:
        return ""
    file = os.path.basename(parts[0][len("File "):].strip('"'))
    return f"{file}:{parts[1].removeprefix('line ')} {parts[2]}: {own[-1][1]}"[:200]


def _where(node):
    line = _source(node)
    return f" ({line})" if line else ""


# ---- Export


def _trace(model, args, kwargs, dynamic_shapes, training):
    model.train(training)
    mode = "training" if training else "evaluation"
    said = io.StringIO()  # torch.export prints graphs when it fails
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
        sys.stderr.write(said.getvalue())
        return program
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.dirname(torch.__file__) not in f.filename
                  and os.path.abspath(f.filename) != os.path.abspath(__file__)]
        where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
        raise ExportError(f"torch.export cannot trace the model in {mode} mode{where}: {reason}. Control flow that "
                          "depends on the values of tensors has no graph; a dimension that the model fixes needs "
                          "dynamic_shapes without it") from error


def _default_shapes(args, kwargs):
    def of(value):
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, torch.Tensor) and value.dim() > 0 else None
    return pytree.tree_map(of, tuple(args)), pytree.tree_map(of, dict(kwargs))


def _graph_inputs(program):
    """What the placeholders of a graph are."""
    kinds, inputs = [], 0
    tensors = {entry["position"]: entry for entry in _user_inputs(program)}
    for position, spec in enumerate(program.graph_signature.input_specs):
        kind = spec.kind.name
        if kind == "USER_INPUT":
            if "shape" not in tensors[position]:
                kinds.append(["fixed", tensors[position]["name"]])
                continue
            kinds.append(["input", inputs])
            inputs += 1
        elif kind in ("PARAMETER", "BUFFER"):
            kinds.append([kind.lower(), spec.target])
        elif kind == "CONSTANT_TENSOR":
            kinds.append(["constant", spec.target])
        else:
            raise ExportError(f"the graph has an input of kind {kind}")
    return kinds


def _dimensions(value):
    return [d if isinstance(d, int) else str(d) for d in value.shape]


def _user_inputs(program):
    """The inputs of the user: names, dtypes and shapes; a dimension that is a text may have any size. Those that are no
    tensors have the value of the example, and no shape."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = []
    for position, spec in enumerate(program.graph_signature.input_specs):
        if spec.kind.name != "USER_INPUT":
            continue
        entry = {"name": getattr(spec.arg, "name", ""), "position": position}
        value = placeholders[entry["name"]].meta.get("val") if entry["name"] in placeholders else None
        if isinstance(value, torch.Tensor):
            entry |= {"dtype": str(value.dtype)[6:], "shape": _dimensions(value)}
        inputs.append(entry)
    return inputs


def _input_list(program):
    inputs = _user_inputs(program)
    fixed = [entry["name"] for entry in inputs if "shape" not in entry]
    return [{k: v for k, v in entry.items() if k != "position"} for entry in inputs if "shape" in entry], fixed


def _key_name(key):
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def _output_names(program):
    spec = program.call_spec.out_spec
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    names = [".".join(_key_name(key) for key in path) for path, _ in paths]
    return [name or "output" for name in names]


def _ties(model):
    """Maps a name to the earlier one of the same tensor."""
    first, ties = {}, {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        if id(tensor) in first:
            ties[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return ties


def describe(model, args=(), kwargs=None, dynamic_shapes=None):
    """Returns the description (a dict for JSON) and the tensors of a model."""
    kwargs = dict(kwargs or {})
    if dynamic_shapes is None:
        by_position, by_name = _default_shapes(args, kwargs)
        dynamic_shapes = by_name if kwargs and not args else by_position if not kwargs else None
        if dynamic_shapes is None:
            raise ExportError("give all example inputs by position or all by name, or dynamic_shapes")
    was_training = model.training
    writer, graphs, programs = _Writer(), {}, {}
    try:
        for training in (True, False):
            program = _trace(model, tuple(args), kwargs, dynamic_shapes, training)
            kinds = _graph_inputs(program)
            key = "train" if training else "eval"
            graphs[key], programs[key] = writer.graph(program.graph_module, kinds), program
        if (names := _output_names(programs["eval"])) != _output_names(programs["train"]):
            graphs["eval"]["names"] = names
    finally:
        model.train(was_training)
    train = programs["train"]
    mutated = [s for s in train.graph_signature.output_specs if s.kind.name not in ("USER_OUTPUT",)]
    if mutated:
        raise ExportError(f"the graph returns {mutated[0].kind.name}, which this version does not know")
    tensors, constants = {}, {}
    ties = _ties(model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        tensors[name] = tensor.detach()
    for key, program in programs.items():
        for spec in program.graph_signature.input_specs:
            if spec.kind.name == "CONSTANT_TENSOR":
                constants[f"{key}.{spec.target}"] = program.constants[spec.target].detach()
        for entry in graphs[key]["inputs"]:
            if entry[0] == "constant":
                entry[1] = f"{key}.{entry[1]}"
    persistent = set(model.state_dict(keep_vars=True))
    operators = sorted(writer.operators.items(), key=lambda item: item[1][0])
    inputs, fixed = _input_list(train)
    description = {
        "version": VERSION,
        "torch": torch.__version__.split("+")[0],
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "inputs": inputs,
        "fixed": fixed,
        "outputs": _output_names(train),
        "parameters": [{"name": n, "requires_grad": p.requires_grad} for n, p in model.named_parameters()],
        "buffers": [{"name": n, "persistent": n in persistent} for n, _ in model.named_buffers()],
        "constants": sorted(constants),
        "ties": ties,
        "operators": [{"name": name, "overload": overload, "schema": schema}
                      for (name, overload), (_, schema) in operators],
        "sources": list(writer.sources),
        "train": graphs["train"],
        "eval": graphs["eval"],
    }
    return description, tensors, {f"constant.{name}": tensor for name, tensor in constants.items()}


# ---- The file


def _bytes_of(tensor):
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


def _write(path, tensors, metadata):
    """Writes a safetensors file; the file appears when it is whole."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, at = {"__metadata__": metadata}, 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise ExportError(f"{name} has the dtype {tensor.dtype}, which the file format does not have")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    draft = f"{path}.tmp-{os.getpid()}"
    try:
        with open(draft, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                file.write(_bytes_of(tensors[name]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        if os.path.exists(draft):
            os.remove(draft)


def _read(path):
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]]) if end > begin else \
            torch.empty(0, dtype=dtypes[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return json.loads(header["__metadata__"]["trainkit.model"]), tensors


# ---- The check: the file's graphs against the model


class _Reader:
    """Runs the graphs of a file in Python, as ExportedModel does in C++."""

    NUMBERS = {name: function for function, name in PYTHON_FUNCTIONS.items()}

    def __init__(self, description, tensors, device):
        self.description, self.device = description, device
        self.tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        for entry in description["parameters"]:
            self.tensors[entry["name"]].requires_grad_(entry["requires_grad"])
        self.operators = []
        for entry in description["operators"]:
            space, name = entry["name"].split("::")
            packet = getattr(getattr(torch.ops, space), name)
            self.operators.append(getattr(packet, entry["overload"] or "default"))

    def parameters(self):
        return {entry["name"]: self.tensors[entry["name"]] for entry in self.description["parameters"]}

    def __call__(self, inputs, training):
        graph = self.description["train" if training else "eval"]
        values = []
        for kind, name in graph["inputs"]:
            if kind == "input":
                values.append(inputs[name])
            elif kind == "fixed":
                values.append(None)
            else:
                name = self.description["ties"].get(name, name)
                values.append(self.tensors[f"constant.{name}" if kind == "constant" else name])
        return self.run(graph, values)

    def run(self, graph, values):
        values = list(values)
        for call in graph["calls"]:
            values.append(self.call(call, values))
        return [self.decode(v, values) for v in graph["outputs"]]

    def call(self, call, values):
        if "op" in call:
            return self.call_operator(self.operators[call["op"]], call["args"], values)
        arguments = [self.decode(v, values) for v in call["args"]]
        if "py" in call:
            return self.NUMBERS[call["py"]](*arguments)
        if "grad" in call:
            with torch.set_grad_enabled(call["grad"]):
                return self.run(call["graph"], arguments)
        autocast = call["autocast"]
        dtype = getattr(torch, autocast["dtype"]) if autocast["dtype"] else None
        with torch.autocast(self.device.type, dtype=dtype, enabled=autocast["enabled"]):
            return self.run(call["graph"], arguments)

    def call_operator(self, function, arguments, values):
        positional, named = [], {}
        in_order = True
        for argument in function._schema.arguments:
            if argument.name not in arguments:
                in_order = False
                continue
            value = self.decode(arguments[argument.name], values)
            if in_order and not argument.kwarg_only:
                positional.append(value)
            else:
                named[argument.name] = value
        return function(*positional, **named)

    def decode(self, v, values):
        if isinstance(v, list):
            return [self.decode(one, values) for one in v]
        if not isinstance(v, dict):
            return v
        (kind, content), = v.items()
        if kind == "v":
            return values[content]
        if kind in ("dtype", "layout", "memory_format"):
            return getattr(torch, content)
        return self.device if kind == "device" else float(content)


def _leaves(outputs):
    return [leaf for leaf in pytree.tree_flatten(outputs)[0]]


def _rows(inputs, shapes, count):
    """The inputs with `count` rows in each free first dimension; None if there is none."""
    changed, any_free = [], False
    shapes = iter(shapes)
    for tensor in inputs:
        shape = next(shapes)["shape"] if isinstance(tensor, torch.Tensor) else []
        if shape and isinstance(shape[0], str):
            repeats = -(-count // max(1, tensor.shape[0]))
            tensor = torch.cat([tensor] * repeats)[:count] if tensor.shape[0] else tensor
            any_free = True
        changed.append(tensor)
    return changed if any_free else None


def _loss(outputs):
    return sum((one.float().square().mean() if one.dtype.is_floating_point else 0) for one in outputs
               if isinstance(one, torch.Tensor))


def check(path, model, args=(), kwargs=None):
    """Compares outputs, gradients and buffers of the file's graphs with the model's, at the example's batch, at 1 row
    and at another number of rows. Raises ExportError with the first difference."""
    description, tensors = _read(path)
    example, tree = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    count = next((t.shape[0] for t in example if isinstance(t, torch.Tensor) and t.dim() > 0), 1)
    device = next((t.device for t in model.parameters()), torch.device("cpu"))
    for training in (True, False):
        for rows in dict.fromkeys((count, 1, count + 1)):
            inputs = example if rows == count else _rows(example, description["inputs"], rows)
            if inputs is None:
                continue
            _compare(copy.deepcopy(model), _Reader(description, copy.deepcopy(tensors), device), inputs, tree, training, rows)


def _compare(model, file, inputs, tree, training, rows):
    model.train(training)
    mode = "training" if training else "evaluation"
    place = f"with {rows} rows in {mode} mode"
    call_args, call_kwargs = pytree.tree_unflatten(inputs, tree)
    torch.manual_seed(0)
    try:
        expected = _leaves(model(*call_args, **call_kwargs))
    except Exception:
        return  # the model itself does not take so few rows
    torch.manual_seed(0)
    try:
        found = file([one for one in inputs if isinstance(one, torch.Tensor)], training)
    except Exception as error:
        raise ExportError(f"the exported graph fails {place}: {str(error).strip().splitlines()[0]}") from error
    graph = file.description["train" if training else "eval"]
    for name, one, other in zip(graph.get("names", file.description["outputs"]), expected, found, strict=True):
        _compare_tensors(f"output {name}", one, other, place)
    loss, found_loss = _loss(expected), _loss(found)
    if training and isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()
        found_loss.backward()
        parameters = file.parameters()
        for name, parameter in model.named_parameters():
            _compare_tensors(f"the gradient of {name}", parameter.grad, parameters[name].grad, place)
    for name, buffer in model.named_buffers():
        _compare_tensors(f"buffer {name}", buffer, file.tensors[name], place)


def _compare_tensors(what, one, other, place):
    if one is None and other is None or not isinstance(one, torch.Tensor):
        return
    if not isinstance(other, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        raise ExportError(f"{what} of the exported graph differs {place}: expected {tuple(one.shape)} {one.dtype}")
    if not torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True):
        difference = (one.double() - other.double()).abs().max().item()
        raise ExportError(f"{what} of the exported graph differs {place} by up to {difference:.3g}")


def export_model(model, example_inputs, path, dynamic_shapes=None, *, checked=True):
    """Writes `model` to `path`, and compares the file with the model.

    example_inputs: a tuple of arguments of model.forward, or a dict of arguments by name. Tensors have some rows in
        their first dimension, at least 2; the file takes any number of rows.
    dynamic_shapes: as for torch.export.export, for other dimensions that may change. By default the first dimension of
        each tensor.

    Raises ExportError with the reason, the line of the model and a remedy where there is one.
    """
    args, kwargs = ((), dict(example_inputs)) if isinstance(example_inputs, dict) else (tuple(example_inputs), {})
    configs = [m.config for m in model.modules() if getattr(getattr(m, "config", None), "use_cache", False)]
    if configs:
        for config in configs:  # the decoder of T5 has its own
            config.use_cache = False
        print("trainkit.export: config.use_cache is set to False: a cache of earlier tokens is not trained")
    description, tensors, constants = describe(model, args, kwargs, dynamic_shapes)
    if description["fixed"]:
        print(f"trainkit.export: fixed as in the example: {', '.join(description['fixed'])}")
    foreign = [entry["name"] for entry in description["operators"] if not entry["name"].startswith("aten::")]
    if foreign:
        print(f"trainkit.export: {', '.join(foreign)} is no operator of PyTorch: the C++ program must have it, and name it in "
              "ExportedModelOptions::operators. Models of transformers with experts need none with "
              "experts_implementation=\"batched_mm\" in their configuration")
    dropouts = sorted({m.p for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0})
    if dropouts:
        print(f"trainkit.export: dropout is fixed: p = {', '.join(map(str, dropouts))}")
    metadata = {"format": "trainkit.model", "trainkit.model": json.dumps(description, separators=(",", ":"))}
    _write(path, tensors | constants, metadata)
    if checked:
        try:
            check(path, model, args, kwargs)
        except BaseException:
            os.remove(path)
            raise
    return description


def _load_function(text):
    file, _, name = text.rpartition(":")
    if not file:
        raise SystemExit("usage: python -m trainkit.export FILE.py:function --out model.tkm")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location("trainkit_exported", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def main():
    parser = argparse.ArgumentParser(prog="python -m trainkit.export", description=__doc__.splitlines()[0])
    parser.add_argument("function", help="FILE.py:function, which returns (model, example_inputs) or "
                        "(model, example_inputs, dynamic_shapes)")
    parser.add_argument("--out", required=True, help="file to write")
    options = parser.parse_args()
    try:
        description = export_model(*_load_function(options.function)()[:2], options.out)
    except ExportError as error:
        raise SystemExit(f"trainkit.export: {error}") from None
    size = os.path.getsize(options.out)
    print(f"wrote {options.out}: {len(description['train']['calls'])} calls of {len(description['operators'])} operators, "
          f"{len(description['parameters'])} parameters, {size} bytes")


if __name__ == "__main__":
    main()
