#!/usr/bin/env python3
"""Writes the ONNX files of the tests, and what ONNX Runtime and Pillow make of them.

    python3 -m venv /tmp/onnx && /tmp/onnx/bin/pip install onnx onnxruntime numpy pillow safetensors
    /tmp/onnx/bin/python crates/backbone/tests/data/make.py

Files whose names begin with `bad-` are hostile or damaged. `golden.safetensors` holds, for every other file, the
images (`FILE/images`) and the values that a backbone computes of them (`FILE/VALUE`), each image alone.
"""
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(7)
golden = {}


def weight(*shape, scale=0.5):
    return (random.standard_normal(shape) * scale).astype(np.float32)


class Graph:
    """A graph that grows node by node; every node's value has a name."""

    def __init__(self, shape=("N", 3, 10, 10)):
        self.nodes, self.tensors, self.checked = [], [], []
        self.image = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)

    def tensor(self, value, kind=np.float32):
        name = f"w{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype=kind), name))
        return name

    def ints(self, *values):
        return self.tensor(values, np.int64)

    def __call__(self, operator, *inputs, name=None, outputs=None, **attributes):
        outputs = outputs or [name or f"{operator.lower()}{len(self.nodes)}"]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, **attributes))
        if name:
            self.checked.append(name)
        return outputs[0] if len(outputs) == 1 else outputs

    def model(self, outputs, opset=18, nodes=None, tensors=None):
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(nodes or self.nodes, "g", [self.image], values, tensors or self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def write(self, file, outputs=None, opset=18, images=None):
        """Writes the file, and the golden values of all named nodes."""
        outputs = outputs or [self.checked[-1]]
        onnx.save(self.model(outputs, opset), HERE / f"{file}.onnx")
        session = onnxruntime.InferenceSession(
            self.model(self.checked, opset).SerializeToString(), providers=["CPUExecutionProvider"])
        if images is None:
            shape = [3 if type(size) is str else size for size in [d.dim_param or d.dim_value for d in
                     self.image.type.tensor_type.shape.dim]]
            shape[0] = 2 if self.image.type.tensor_type.shape.dim[0].dim_param else 1
            images = random.random(shape).astype(np.float32)
        golden[f"{file}/images"] = images
        rows = [session.run(self.checked, {"image": image[None]}) for image in images]
        for index, name in enumerate(self.checked):
            golden[f"{file}/{name}"] = np.concatenate([row[index].reshape(1, -1) for row in rows])


def convolutions():
    """A network of convolutions, with all that such networks are made of."""
    g = Graph()
    x = g("Conv", "image", g.tensor(weight(8, 3, 3, 3)), g.tensor(weight(8)), name="conv",
          kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x = g("BatchNormalization", x, g.tensor(weight(8) + 1), g.tensor(weight(8)), g.tensor(weight(8)),
          g.tensor(np.abs(weight(8)) + 0.1), name="batch_norm", epsilon=1e-3)
    x = g("Clip", x, g.tensor(0.0), g.tensor(6.0), name="relu6")
    y = g("Conv", x, g.tensor(weight(8, 1, 3, 3)), name="depthwise", kernel_shape=[3, 3], group=8,
          pads=[1, 1, 1, 1])
    g("Conv", x, g.tensor(weight(4, 4, 3, 3)), name="grouped", kernel_shape=[3, 3], group=2, auto_pad="SAME_UPPER",
      strides=[2, 2])
    g("Conv", x, g.tensor(weight(4, 8, 3, 3)), name="dilated", kernel_shape=[3, 3], dilations=[2, 2])
    y = g("HardSwish", y, name="hard_swish")
    s = g("GlobalAveragePool", y, name="squeeze")
    s = g("Relu", g("Conv", s, g.tensor(weight(2, 8, 1, 1)), kernel_shape=[1, 1]), name="relu")
    s = g("HardSigmoid", g("Conv", s, g.tensor(weight(8, 2, 1, 1)), kernel_shape=[1, 1]), name="excite",
          alpha=1 / 6, beta=0.5)
    y = g("Mul", y, s, name="scaled")
    x = g("Add", x, y, name="residual")
    g("AveragePool", x, name="mean_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
      count_include_pad=1)
    g("AveragePool", x, name="mean_pool_without_pads", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    g("AveragePool", x, name="mean_pool_of_stride_1", kernel_shape=[2, 2], strides=[1, 1])
    g("MaxPool", x, name="max_pool_ceil", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    x = g("MaxPool", x, name="max_pool", kernel_shape=[2, 2], strides=[2, 2])
    g("InstanceNormalization", x, g.tensor(weight(8) + 1), g.tensor(weight(8)), name="instance_norm")
    g("PRelu", g("Neg", x), g.tensor(np.abs(weight(8, 1, 1))), name="p_relu")
    x = g("Flatten", g("GlobalAveragePool", x), name="pooled")
    g("Gemm", x, g.tensor(weight(5, 8)), g.tensor(weight(5)), name="features", transB=1, alpha=0.5)
    g.write("convolutions")


def transformer():
    """Patches, attention and the small steps into which older exporters divide LayerNorm and GELU."""
    g = Graph((1, 3, 16, 16))
    x = g("Conv", "image", g.tensor(weight(8, 3, 8, 8, scale=0.1)), kernel_shape=[8, 8], strides=[8, 8])
    shape = g("Concat", g("Unsqueeze", g("Gather", g("Shape", x), g.tensor(0, np.int64)), g.ints(0)),
              g.ints(8, -1), axis=0)
    x = g("Transpose", g("Reshape", x, shape), name="patches", perm=[0, 2, 1])
    token = g("Expand", g.tensor(weight(1, 1, 8)), g("Concat", g("Gather", g("Shape", x), g.ints(0)),
              g.ints(1, 8), axis=0))
    x = g("Concat", token, x, name="tokens", axis=1)
    n = g("LayerNormalization", x, g.tensor(weight(8) + 1), g.tensor(weight(8)), name="layer_norm", epsilon=1e-6)
    qkv = g("Add", g("MatMul", n, g.tensor(weight(8, 24))), g.tensor(weight(24)), name="qkv")
    qkv = g("Transpose", g("Reshape", qkv, g.ints(1, 5, 3, 2, 4)), perm=[2, 0, 3, 1, 4])
    q, k, v = g("Split", qkv, axis=0, outputs=["q", "k", "v"], num_outputs=3)
    q, k, v = (g("Squeeze", part, g.ints(0)) for part in (q, k, v))
    a = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), g.tensor(0.5))
    a = g("Softmax", a, name="attention", axis=-1)
    x = g("Add", x, g("Reshape", g("Transpose", g("MatMul", a, v), perm=[0, 2, 1, 3]), g.ints(0, 0, -1)),
          name="attended")
    centred = g("Sub", x, g("ReduceMean", x, g.ints(-1)))
    variance = g("ReduceMean", g("Pow", centred, g.tensor(2.0)), g.ints(-1))
    x = g("Div", centred, g("Sqrt", g("Add", variance, g.tensor(1e-6))), name="normalised")
    h = g("Gemm", g("Reshape", x, g.ints(-1, 8)), g.tensor(weight(8, 12)), g.tensor(weight(12)))
    gelu = g("Mul", g("Mul", h, g("Add", g("Erf", g("Div", h, g.tensor(np.sqrt(2)))), g.tensor(1.0))), g.tensor(0.5))
    x = g("Reshape", gelu, g.ints(1, 5, 12), name="gelu")
    x = g("Slice", x, g.ints(0), g.ints(1), g.ints(1), name="token")
    g("Reshape", x, g.ints(0, -1), name="features")
    g.write("transformer")


def arithmetic():
    """Operators that work number by number."""
    g = Graph(("N", 3, 3, 4))
    x = g("Sub", "image", g.tensor(0.5), name="sub")
    for operator in ("Abs", "Ceil", "Erf", "Exp", "Floor", "HardSwish", "Identity", "Neg", "Relu", "Sigmoid", "Softplus",
                     "Tanh"):
        g(operator, x, name=operator.lower())
    positive = g("Add", "image", g.tensor(0.5), name="add")
    for operator in ("Log", "Reciprocal", "Sqrt"):
        g(operator, positive, name=operator.lower())
    g("Elu", x, name="elu", alpha=0.7)
    g("LeakyRelu", x, name="leaky_relu", alpha=0.2)
    g("HardSigmoid", x, name="hard_sigmoid")
    g("Clip", x, "", g.tensor(0.1), name="clip")
    g("Pow", positive, g.tensor(1.5), name="pow")
    g("Max", x, g.tensor(0.1), g.tensor(weight(3, 1, 1)), name="max")
    g("Min", x, g.tensor(weight(3, 4)), name="min")
    g("Where", g("Cast", g("Floor", g("Add", x, g.tensor(1.0))), to=TensorProto.BOOL), x, g.tensor(-2.0), name="where")
    g("Where", g("Equal", g("Identity", x), g("Abs", x)), g.tensor(1.0), x, name="equal")
    for operator in ("ReduceMax", "ReduceMean", "ReduceL2", "ReduceSum"):
        g(operator, x, g.ints(1, -1), name=operator.lower(), keepdims=0)
    g("Reshape", g("ReduceSum", x), g.ints(1, 1), name="sum_of_all")
    g("Softmax", x, name="softmax", axis=1)
    g.write("arithmetic")
    g = Graph(("N", 3, 3, 4))
    g("Gelu", "image", name="gelu")
    g("Gelu", "image", name="gelu_tanh", approximate="tanh")
    g.write("gelu", opset=20)


def layout():
    """Operators that move numbers, and the shapes that exporters compute within the graph."""
    g = Graph((1, 3, 8, 6))
    x = "image"
    # How PyTorch's older exporter writes the padding of two sides.
    pads = g("Concat", g.ints(1, 2, 0, 1), g("ConstantOfShape", g.ints(4), value=numpy_helper.from_array(
        np.zeros(1, np.int64))), axis=0)
    pads = g("Slice", g("Reshape", pads, g.ints(-1, 2)), g.ints(-1), g.ints(np.iinfo(np.int64).min + 1), g.ints(0),
             g.ints(-1))
    pads = g("Cast", g("Reshape", g("Transpose", pads, perm=[1, 0]), g.ints(-1)), to=TensorProto.INT64)
    g("Pad", x, pads, g("Constant", value_float=0.25), name="pad")
    g("Pad", x, g.ints(0, 0, 0, 1, 0, 0, 0, 2), name="reflect", mode="reflect")
    # How it writes a size that is given or kept.
    kept = g("Concat", g("Shape", x, start=0, end=2), g("Constant", value_ints=[-1, 6]), axis=0)
    ones = g("ConstantOfShape", g("Shape", kept), value=numpy_helper.from_array(np.ones(1, np.int64)))
    minus = g("Mul", ones, g.tensor(-1, np.int64))
    wanted = g("Where", g("Equal", kept, minus), g("Div", g("Sub", g("Add", ones, g.ints(16)), ones), g.ints(2)), kept)
    g("Expand", g("Slice", x, g.ints(0), g.ints(1), g.ints(2)), wanted, name="expand")
    g("Slice", x, g.ints(7, 5), g.ints(1, -100), g.ints(2, 3), g.ints(-2, -1), name="slice")
    g("Gather", x, g.ints(2, 0, 0), name="gather", axis=1)
    g("Flatten", g("Transpose", x, perm=[0, 2, 1, 3]), name="transpose", axis=2)
    a, b = g("Split", x, g.ints(2, 6), axis=2, outputs=["a", "b"])
    g("Concat", b, a, name="concat", axis=-2)
    g("Squeeze", g("Unsqueeze", x, g.ints(1, -1)), g.ints(-1), name="unsqueeze")
    g("Reshape", x, g.ints(0, -1, 3), name="features")
    g.checked.remove("transpose")
    g("Transpose", x, name="transposed", perm=[0, 3, 1, 2])
    g.write("layout", outputs=["features"])


def older():
    """Operators as version 11 writes them: axes as attributes."""
    g = Graph(("N", 3, "H", "W"))
    x = g("Conv", "image", g.tensor(weight(4, 3, 3, 3)), kernel_shape=[3, 3])
    x = g("Squeeze", g("ReduceMean", x, axes=[3]), axes=[3])
    x = g("Squeeze", g("ReduceMean", x, name="mean", axes=[2], keepdims=1), axes=[2])
    g("Unsqueeze", x, name="column", axes=[2])
    a, b = g("Split", x, axis=1, split=[1, 3], outputs=["a", "b"])
    g("Softmax", b, name="features", axis=1)
    g.write("older", opset=11, images=random.random((2, 3, 9, 7)).astype(np.float32))


def grey():
    g = Graph((1, 1, 6, 6))
    g("Flatten", g("Conv", "image", g.tensor(weight(2, 1, 3, 3)), kernel_shape=[3, 3]), name="features")
    g.write("grey")


def identity():
    """Gives the prepared image itself."""
    g = Graph(("N", 3, "H", "W"))
    g("Identity", "image", name="itself")
    g.write("identity", images=random.random((1, 3, 2, 2)).astype(np.float32))


def two_outputs():
    """Two outputs, and behind one of them an operator that is not on the list."""
    g = Graph()
    x = g("Flatten", g("GlobalAveragePool", "image"), name="features")
    g("ArgMax", x, axis=1, outputs=["class"])
    g.write("two-outputs", outputs=["features", "class"])


def resizing():
    """Pillow's bilinear filter on floats."""
    image = random.random((13, 10)).astype(np.float32)
    golden["resize/from"] = image
    for height, width in ((5, 4), (13, 20), (31, 3), (26, 10)):
        resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
        golden[f"resize/{height}x{width}"] = np.asarray(resized, dtype=np.float32)


def save_bad(name, model):
    data = model if isinstance(model, bytes) else model.SerializeToString()
    (HERE / f"bad-{name}.onnx").write_bytes(data)


def pooled():
    g = Graph()
    g("Flatten", g("GlobalAveragePool", "image"), outputs=["features"])
    return g


def hostile_structure():
    sound = pooled().model(["features"])
    g = Graph()
    g("Conv", "image", g.tensor(weight(4, 3, 3, 3)), kernel_shape=[3, 3], outputs=["features"])
    weighty = g.model(["features"])
    save_bad("truncated", weighty.SerializeToString()[:-200])
    save_bad("text", b"This is no ONNX file at all.\n")
    save_bad("empty-file", b"")
    save_bad("rten-magic", b"RTEN" + bytes(64))

    g = Graph()
    g.nodes = [helper.make_node("Add", ["image", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
               helper.make_node("Flatten", ["b"], ["features"])]
    save_bad("cycle", g.model(["features"]))

    for name, operator, domain in (("operator", "NonMaxSuppression", ""), ("domain", "Gelu", "com.microsoft"),
                                   ("control\ncharacters", "Evil\nline\x1b[31m" + "x" * 500, "")):
        g = Graph()
        g.nodes = [helper.make_node(operator, ["image"], ["features"], domain=domain)]
        save_bad(name.replace("\n", "-"), g.model(["features"]))

    branch = helper.make_graph([helper.make_node("Identity", ["image"], ["inner"])], "branch", [],
                               [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)])
    g = Graph()
    g.nodes = [helper.make_node("If", [g.tensor(True, np.bool_)], ["features"], then_branch=branch,
                                else_branch=branch)]
    save_bad("if", g.model(["features"]))

    model = onnx.ModelProto()
    model.CopyFrom(sound)
    del model.graph.node[:], model.graph.output[:]
    save_bad("empty-graph", model)
    model.CopyFrom(sound)
    model.graph.node[0].input[0] = "nowhere"
    save_bad("undefined", model)
    model.CopyFrom(sound)
    model.graph.node.append(model.graph.node[0])
    save_bad("twice", model)
    model.CopyFrom(sound)
    model.opset_import[0].version = 9
    save_bad("old", model)
    model.CopyFrom(sound)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, (1, 3, 1, 1)))
    model.graph.node.insert(0, helper.make_node("Add", ["image", "mask"], ["masked"]))
    model.graph.node[1].input[0] = "masked"
    save_bad("two-inputs", model)

    for name, shape, kind in (("rank", ("N", 48), TensorProto.FLOAT), ("bytes", ("N", 3, 8, 8), TensorProto.UINT8),
                              ("batch", (16, 3, 8, 8), TensorProto.FLOAT),
                              ("channels", ("N", "C", 8, 8), TensorProto.FLOAT),
                              ("giant-image", (1, 3, 10**9, 10**9), TensorProto.FLOAT)):
        g = Graph(shape)
        g.image = helper.make_tensor_value_info("image", kind, shape)
        g("Flatten", "image", outputs=["features"])
        save_bad(name, g.model(["features"]))


def hostile_tensors():
    def with_weight(tensor):
        tensor.name = "weight"
        g = Graph()
        g.tensors = [tensor]
        g.nodes = [helper.make_node("Add", ["image", "weight"], ["sum"]),
                   helper.make_node("Flatten", ["sum"], ["features"])]
        return g.model(["features"])

    giant = TensorProto(dims=[1 << 40, 1 << 40], data_type=TensorProto.FLOAT, raw_data=bytes(16))
    save_bad("giant-weight", with_weight(giant))
    negative = TensorProto(dims=[-1], data_type=TensorProto.FLOAT, raw_data=bytes(4))
    save_bad("negative-weight", with_weight(negative))
    short = TensorProto(dims=[3, 1, 1], data_type=TensorProto.FLOAT, raw_data=bytes(8))
    save_bad("short-weight", with_weight(short))
    outside = TensorProto(dims=[1], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="../../../etc/passwd")
    save_bad("external", with_weight(outside))
    save_bad("nan-weight", with_weight(numpy_helper.from_array(np.array([0, np.nan, 0], np.float32).reshape(3, 1, 1))))
    save_bad("text-weight", with_weight(TensorProto(dims=[1], data_type=TensorProto.STRING, string_data=[b"x"])))


def hostile_sizes():
    g = Graph()
    wide = g("Expand", g.tensor([[[[1.0]]]]), g.ints(1, 3, 1 << 20, 1 << 20))
    g("Flatten", g("GlobalAveragePool", g("Add", "image", wide)), outputs=["features"])
    save_bad("expand", g.model(["features"]))
    g = Graph((1, 3, 64, 64))
    value = "image"
    for _ in range(40):
        value = g("Concat", value, value, axis=2)
    g("Flatten", g("GlobalAveragePool", value), outputs=["features"])
    save_bad("doubling", g.model(["features"]))
    g = Graph((1, 3, 128, 128))
    column = g("Reshape", "image", g.ints(1, -1, 1))
    square = g("MatMul", column, g("Transpose", column, perm=[0, 2, 1]))
    g("ReduceMean", square, g.ints(2), keepdims=0, outputs=["features"])
    save_bad("outer-product", g.model(["features"]))
    g = Graph((1, 1, 1024, 1024))
    g("Conv", "image", g("Expand", g.tensor([[[[0.1]]]]), g.ints(8, 1, 511, 511)), kernel_shape=[511, 511],
      outputs=["wide"])
    g("Flatten", g("GlobalAveragePool", "wide"), outputs=["features"])
    save_bad("work", g.model(["features"]))
    g = Graph((1, 3, 64, 64))
    values = ["image"] + [g("Expand", "image", g.ints(300, 3, 64, 64)) for _ in range(80)]
    total = values[0]
    for value in values[1:]:
        total = g("Add", total, value)
    g("Reshape", g("ReduceMean", total), g.ints(1, 1), outputs=["features"])
    save_bad("memory", g.model(["features"]))
    g = Graph((1, 3, 256, 256))
    g("Flatten", "image", outputs=["features"])
    save_bad("many-features", g.model(["features"]))
    g = Graph()
    g("Shape", "image", outputs=["features"])
    save_bad("integer-features", g.model(["features"]))
    g = Graph((1, 3, 4, 4))
    g("Conv", "image", g.tensor(weight(1, 3, 5, 5)), kernel_shape=[5, 5], outputs=["features"])
    save_bad("small-image", g.model(["features"]))
    g = Graph((1, 3, 4, 4))
    g("Flatten", g("Conv", "image", g.tensor(weight(1, 3, 1, 1)), kernel_shape=[1, 1], strides=[0, 0]),
      outputs=["features"])
    save_bad("stride", g.model(["features"]))
    g = Graph((1, 3, 4, 4))
    g("MaxPool", "image", kernel_shape=[2, 2], outputs=["features"])
    save_bad("no-strides", g.model(["features"]))
    g = Graph((1, 3, 4, 4))
    g("Flatten", g("Gather", "image", g.ints(7), axis=1), outputs=["features"])
    save_bad("gather", g.model(["features"]))
    # Sound weights, and still no finite features for a grey image, or for a dark one.
    for name, shift in (("nan-features", 10.0), ("nan-of-dark", 0.1)):
        g = Graph((1, 3, 4, 4))
        g("Flatten", g("Log", g("Sub", "image", g.tensor(shift))), outputs=["features"])
        save_bad(name, g.model(["features"]))


for make in (convolutions, transformer, arithmetic, layout, older, grey, identity, two_outputs, resizing, hostile_structure,
             hostile_tensors, hostile_sizes):
    make()
save_file(golden, HERE / "golden.safetensors")
