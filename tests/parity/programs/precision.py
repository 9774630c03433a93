"""Policies of 16-bit floats, by layer and for all, and floatx of 64 bits.

A bfloat16 product rounds to 8 bits, a float16 one to 11, and backends round at other places: what
is compared is close to 2**-8 and 2**-9, as gradients are sums through several such roundings.
"""

import numpy as np

from tests.parity.kit import program, regression, seen, stack


def _fit(keras, policy, optimizer=None):
    keras.config.set_dtype_policy(policy)
    layers = keras.layers
    x, y = regression()
    y = y + 1  # errors of one sign: biases' gradients are no differences of rounded numbers
    model = stack(keras, (8,), layers.Dense(8, "tanh", name="hidden"),
                  layers.Dense(1, dtype="float32", name="out"))  # fmt: skip
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    hidden = model.layers[0]
    types = [hidden.compute_dtype, hidden.variable_dtype, hidden.dtype_policy.name]
    return seen(model, x, history=history.history, types=types)


@program(several=2, tolerance=2.0**-8)
def mixed_bfloat16(keras):
    return _fit(keras, "mixed_bfloat16")


@program(tolerance=2.0**-9)
def mixed_float16(keras):
    """With the loss scaling that Keras puts around the optimizer."""
    return _fit(keras, "mixed_float16", keras.optimizers.SGD(0.1, momentum=0.5))


@program(eager=False)
def types_of_layers(keras):
    """Dtypes and casts that a user sees at each layer's border; no arithmetic to round."""
    layers = keras.layers
    found = {}
    x = np.arange(8, dtype="float32").reshape(2, 4)
    for policy in ("float32", "mixed_bfloat16", "float16", "bfloat16"):
        layer = layers.Dense(3, dtype=policy, kernel_initializer="ones", name=f"d_{policy}")
        found[policy] = [layer(x), layer.kernel, layer.compute_dtype, layer.variable_dtype]
    found["flat"] = layers.Flatten(dtype="bfloat16")(x)
    found["cast"] = [keras.ops.cast(x, t) for t in ("int32", "bool", "uint8", "float16", "int8")]
    return found


@program(reference="torch")
def floatx_of_64_bits(keras):
    """JAX keeps 32 bits unless told otherwise; torch says the last loss in 32 bits all the same."""
    keras.config.set_floatx("float64")
    x, y = regression()
    model = stack(keras, (8,), keras.layers.Dense(8, "tanh", name="hidden"),
                  keras.layers.Dense(1, name="out"))  # fmt: skip
    model.compile(keras.optimizers.Adam(0.02), "mse")
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    found = seen(model, x, history=history.history)
    return found | {"metrics": float(found["metrics"]["loss"])}
