"""Recurrent layers, embeddings, attention and masks."""

import numpy as np

from tests.parity.kit import draw, program, seen, series, stack, tokens


def _train(keras, model, x, y, loss="mse", optimizer=None, epochs=2, **options):
    model.compile(optimizer or keras.optimizers.Adam(0.02), loss, metrics=["mae"])
    history = model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **options)
    return seen(model, x, history=history.history)


@program(several=2)
def lstm_on_a_series(keras):
    layers = keras.layers
    x, y = series(20)
    model = stack(keras, (6, 4), layers.LSTM(5, return_sequences=True), layers.LSTM(4),
                  layers.Dense(1))  # fmt: skip
    return _train(keras, model, x, y)


@program(several=2)
def gru_variants(keras):
    layers = keras.layers
    x, y = series(20)
    model = stack(
        keras, (6, 4), layers.GRU(5, return_sequences=True),
        layers.GRU(4, reset_after=False, return_sequences=True, go_backwards=True),
        layers.GRU(3, activation="relu", recurrent_activation="hard_sigmoid"), layers.Dense(1),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program
def simple_rnn_and_cells(keras):
    """SimpleRNN, stacked cells, unrolled, and a cell of one's own."""

    class Leaky(keras.layers.Layer):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.units, self.state_size = units, units

        def build(self, shape):
            self.kernel = self.add_weight(name="kernel", shape=(shape[-1], self.units))

        def call(self, x, states):
            out = 0.7 * states[0] + 0.3 * keras.ops.tanh(keras.ops.matmul(x, self.kernel))
            return out, [out]

    layers = keras.layers
    x, y = series(16)
    model = stack(
        keras, (6, 4), layers.SimpleRNN(5, return_sequences=True, unroll=True),
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True),
        layers.RNN(Leaky(4)), layers.Dense(1),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program(several=2)
def bidirectional(keras):
    layers = keras.layers
    x, y = series(16)
    model = stack(
        keras, (6, 4), layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.Bidirectional(layers.GRU(3), merge_mode="ave"), layers.Dense(1),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program
def encoder_and_decoder(keras):
    """States of one LSTM start another; inference with models made of the parts."""
    layers = keras.layers
    x, _ = series(16)
    rng = np.random.default_rng(3)
    shifted = rng.normal(size=(16, 5, 3)).astype("float32")
    target = np.tanh(shifted.cumsum(1)).astype("float32")
    encoder_inputs, decoder_inputs = keras.Input((6, 4)), keras.Input((None, 3))
    _, *states = layers.LSTM(5, return_state=True, name="encoder")(encoder_inputs)
    decoder = layers.LSTM(5, return_sequences=True, return_state=True, name="decoder")
    out, _, _ = decoder(decoder_inputs, initial_state=states)
    dense = layers.Dense(3, name="dense")
    model = draw(keras.Model([encoder_inputs, decoder_inputs], dense(out)))
    found = _train(keras, model, [x, shifted], target)
    encoder = keras.Model(encoder_inputs, states)
    given = [keras.Input((5,)), keras.Input((5,))]
    step, *after = decoder(decoder_inputs, initial_state=given)
    stepper = keras.Model([decoder_inputs, *given], [dense(step), *after])
    state, token, told = encoder.predict(x[:4], verbose=0), np.zeros((4, 1, 3), "float32"), []
    for _ in range(4):
        token, *state = stepper.predict([token, *state], verbose=0)
        told.append(token)
    return found | {"told": told}


@program(several=2)
def text_classifier(keras):
    """Embedding with a mask, through an LSTM and an average."""
    layers = keras.layers
    x, y = tokens(24)
    inputs = keras.Input((6,), dtype="int32")
    e = layers.Embedding(20, 5, mask_zero=True, name="words")(inputs)
    both = layers.concatenate([layers.LSTM(4)(e), layers.GlobalAveragePooling1D()(e)])
    model = draw(keras.Model(inputs, layers.Dense(1, "sigmoid")(both)))
    return _train(keras, model, x, y[:, None].astype("float32"), "binary_crossentropy")


@program(reference="torch")  # JAX loses the masks of outputs before metrics
def masks(keras):
    """Masking of values, return_sequences behind it, and what GRU and Bidirectional do then."""
    layers = keras.layers
    x, _ = series(16)
    x[3:9, 4:], x[12:, :2] = 0, 0  # ends missing, and beginnings
    y = np.tanh(x.cumsum(1)[..., :2])
    model = stack(
        keras, (6, 4), layers.Masking(), layers.GRU(4, return_sequences=True),
        layers.Bidirectional(layers.LSTM(3, return_sequences=True, zero_output_for_mask=True)),
        layers.TimeDistributed(layers.Dense(2)),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program(several=2)
def transformer_block(keras):
    """Self-attention with a causal mask, positions, and a padding mask from the embedding."""
    # without biases: that of keys has no gradient but rounding
    layers = keras.layers
    x, y = tokens(16)
    inputs = keras.Input((6,), dtype="int32")
    positions = np.random.default_rng(2).normal(size=(6, 8)).astype("float32")
    e = layers.Embedding(20, 8, mask_zero=True, name="words")(inputs)
    h = layers.add([e, layers.Lambda(lambda t: t + positions, output_shape=(6, 8))(e)])
    a = layers.MultiHeadAttention(2, 4, use_bias=False)(h, h, use_causal_mask=True)
    h = layers.LayerNormalization(epsilon=1e-5)(layers.add([h, a]))
    f = layers.Dense(8)(layers.Dense(12, "gelu")(h))
    h = layers.LayerNormalization(epsilon=1e-5)(layers.add([h, f]))
    out = layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling1D()(h))
    model = draw(keras.Model(inputs, out))
    return _train(keras, model, x, y[:, None].astype("float32"), "binary_crossentropy",
                  keras.optimizers.SGD(0.1))  # fmt: skip


@program
def attentions(keras):
    """Luong's and Bahdanau's attention, grouped queries, cross-attention with scores."""
    layers = keras.layers
    x, y = series(12)
    inputs = keras.Input((6, 4))
    a = layers.Attention(use_scale=True)([inputs, inputs])
    b = layers.AdditiveAttention()([inputs, inputs])
    c = layers.GroupQueryAttention(4, 4, 2, use_bias=False)(inputs, inputs)
    d, scores = layers.MultiHeadAttention(2, 3, value_dim=2, use_bias=False)(
        inputs, inputs, return_attention_scores=True
    )
    e = layers.Dot(axes=(2, 2), normalize=True)([inputs, inputs])
    out = layers.Dense(1)(layers.Flatten()(layers.concatenate([a, b, c, d, e])))
    model = draw(keras.Model(inputs, out))
    return _train(keras, model, x, y) | {
        "scores": keras.Model(inputs, scores).predict(x, verbose=0)
    }


@program
def convolutions_over_time(keras):
    layers = keras.layers
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4, 5, 5, 2)).astype("float32")
    y = x.mean((1, 2, 3))[:, :1]
    model = stack(
        keras, (4, 5, 5, 2), layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True),
        layers.TimeDistributed(layers.MaxPooling2D(2)), layers.ConvLSTM2D(2, 2), layers.Flatten(),
        layers.Dense(1),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program(several=2)
def lengths_that_vary(keras):
    """Batches of other lengths through one model, as with bucketed texts."""
    layers = keras.layers
    model = stack(keras, (None, 4), layers.GRU(4), layers.Dense(1))
    model.compile("adam", "mse")
    notes = []
    for steps in (3, 6, 4, 6):
        x, y = series(8, steps)
        notes.append(model.train_on_batch(x, y))
        notes.append(model.predict(x, verbose=0))
    return seen(model, notes=notes)
