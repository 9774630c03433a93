"""An elementwise operation, a reduction and a kernel of one's own, and a Keras layer made of one.

    python examples/own_kernels.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import numpy as np

import kerascl as kc

softsign = kc.elementwise(
    "softsign", "x / (1 + fabs(x))", grad=lambda g, y, x: g / (1 + kc.abs(x)) ** 2
)
norm = kc.reduction("norm", "x * x", "a + b", 0, "sqrt(a)", grad=lambda g, y, x: g * x / y)
row_sums = kc.kernel(
    """
    __kernel void row_sums(__global const x_T* x, __global y_T* y) {
      __local float part[GROUP];
      const int row = get_group_id(0), item = get_local_id(0);
      float sum = 0;
      for (int k = item; k < x_DIM1; k += GROUP) sum += x_LOAD(row * x_DIM1 + k);
      part[item] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int step = GROUP / 2; step > 0; step /= 2) {
        if (item < step) part[item] += part[item + step];
        barrier(CLK_LOCAL_MEM_FENCE);
      }
      if (item == 0) y_STORE(row, part[0]);
    }
    """,
    "row_sums",
    inputs="x",
    outputs={"y": lambda x: (x.shape[:1], x.dtype)},
    grid=lambda x: 16 * x.shape[0],
    local=16,
    template={"GROUP": 16},
    grad=lambda g, y, x: kc.broadcast_to(g[:, None], x.shape),
)


class Softsign(keras.layers.Layer):
    """Keras' activation of that name, by the operation above."""

    def call(self, x):
        return softsign(x)


def main():
    x = kc.array(np.random.default_rng(0).normal(size=(4, 100)).astype("float32"))
    print("softsign", softsign(x[0, :4]))
    print("norms   ", norm(x, axis=1))
    print("sums    ", row_sums(x))
    print("slopes  ", kc.grad(lambda t: kc.sum(row_sums(softsign(t))))(x)[0, :4])

    data = np.random.default_rng(1).normal(size=(512, 8)).astype("float32")
    labels = np.tanh(data.sum(1, keepdims=True))
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(32), Softsign(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    losses = model.fit(data, labels, epochs=10, verbose=0).history["loss"]
    print(f"a network with it: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
