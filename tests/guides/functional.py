"""The functional API: several inputs and outputs, shared layers, a graph that is cut open."""

import keras
import numpy as np
from keras import layers, ops


def main():
    rng = np.random.default_rng(0)
    # a ticket: words of a title and of a body, and tags; outputs are a priority and a department
    title, body = keras.Input((None,), name="title"), keras.Input((None,), name="body")
    tags = keras.Input((4,), name="tags")
    words = layers.Embedding(50, 8, name="words")  # one table for both texts
    features = layers.concatenate(
        [layers.LSTM(8)(words(title)), layers.GRU(6)(words(body)), tags], name="features"
    )
    priority = layers.Dense(1, name="priority")(features)
    department = layers.Dense(3, name="department")(features)
    model = keras.Model([title, body, tags], {"priority": priority, "department": department})
    model.summary()
    assert {k: v.shape for k, v in model.output.items()} == {
        "priority": (None, 1), "department": (None, 3),
    }  # fmt: skip
    model.compile(
        keras.optimizers.Adam(0.02),
        loss={
            "priority": keras.losses.BinaryCrossentropy(from_logits=True),
            "department": keras.losses.CategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"priority": 1.0, "department": 0.2},
    )
    x = {
        "title": rng.integers(0, 50, (96, 5)),
        "body": rng.integers(0, 50, (96, 9)),
        "tags": rng.integers(0, 2, (96, 4)).astype("float32"),
    }
    y = {
        "priority": x["tags"][:, :1],
        "department": np.eye(3, dtype="float32")[x["title"][:, 0] % 3],
    }
    losses = model.fit(x, y, epochs=8, batch_size=32, verbose=2).history
    total = np.array(losses["priority_loss"]) + 0.2 * np.array(losses["department_loss"])
    np.testing.assert_allclose(losses["loss"], total, rtol=1e-4)
    assert losses["loss"][-1] < 0.8 * losses["loss"][0]
    found = model.predict(x, verbose=0)
    # the same values through a model cut out of the first
    front = keras.Model(model.inputs, model.get_layer("features").output)
    kernel, bias = model.get_layer("department").get_weights()
    expected = front.predict(x, verbose=0) @ kernel + bias
    np.testing.assert_allclose(found["department"], expected, rtol=1e-4, atol=1e-5)

    # a residual network, nested in another model
    inputs = keras.Input((8, 8, 3), name="image")
    first = layers.Conv2D(4, 3, activation="relu", padding="same")(inputs)
    second = layers.Conv2D(4, 3, activation="relu", padding="same")(first)
    block = keras.Model(inputs, layers.add([first, second]), name="block")
    outputs = layers.Dense(2)(layers.GlobalAveragePooling2D()(block(inputs)))
    whole = keras.Model(inputs, ops.softmax(outputs))
    images = rng.normal(size=(3, 8, 8, 3)).astype("float32")
    inner = block.predict(images, verbose=0).mean((1, 2))
    kernel, bias = next(z for z in whole.layers if isinstance(z, layers.Dense)).get_weights()
    logits = inner @ kernel + bias
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(whole.predict(images, verbose=0), expected, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    main()
