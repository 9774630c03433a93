"""Padding, masks and recurrent layers: a mask's way, own cells, states, both directions."""

import keras
import numpy as np
from keras import layers, ops


class Plain(layers.Layer):
    """A cell: one product for the input, one for the state."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), name="w")
        self.u = self.add_weight(shape=(self.units, self.units), name="u")

    def call(self, x, states):
        h = ops.tanh(ops.matmul(x, self.w) + ops.matmul(states[0], self.u))
        return h, [h]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, kernel, recurrent, bias):
    h = c = np.zeros(recurrent.shape[0])
    for step in x:
        i, f, g, o = np.split(step @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    return h


def main():
    rng = np.random.default_rng(0)
    texts = [[7, 1, 8], [3, 2, 5, 9, 4], [6]]
    padded = keras.utils.pad_sequences(texts, padding="post")
    embedding, recurrent = layers.Embedding(10, 4, mask_zero=True), layers.LSTM(3)
    mask = embedding.compute_mask(padded)
    np.testing.assert_array_equal(mask, padded != 0)
    model = keras.Sequential([embedding, recurrent])
    found = model(padded).numpy()
    table = embedding.get_weights()[0]
    for row, text in zip(found, texts, strict=True):
        expected = lstm(table[text], *recurrent.get_weights())
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)

    x = rng.normal(size=(2, 6, 3)).astype("float32")
    cell = Plain(4)
    h = np.zeros((2, 4))
    found = layers.RNN(cell)(x)
    for k in range(6):
        h = np.tanh(x[:, k] @ cell.w.numpy() + h @ cell.u.numpy())
    np.testing.assert_allclose(found, h, rtol=1e-4, atol=1e-5)

    stateful = layers.LSTM(4, stateful=True)
    halves = [stateful(x[:, :3]), stateful(x[:, 3:])]
    stateful.reset_state()
    np.testing.assert_allclose(stateful(x), halves[1], rtol=1e-4, atol=1e-5)
    both = layers.Bidirectional(layers.LSTM(5))
    ahead, back = np.split(both(x).numpy(), 2, axis=1)
    weights = both.get_weights()
    for k in range(2):
        np.testing.assert_allclose(ahead[k], lstm(x[k], *weights[:3]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(back[k], lstm(x[k, ::-1], *weights[3:]), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
