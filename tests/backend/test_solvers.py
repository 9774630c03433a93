"""A network trained by solvers of matrix units, emulated, as by those of the device itself."""

import keras
import numpy as np
import pytest
from keras import layers

import kerascl as kc
from kerascl.kernels.tuning import database
from kerascl.runtime import device
from tests.kernels import emulator
from tests.solvers import emulated

pytestmark = pytest.mark.skipif(
    device.default().info.kind != "cpu", reason="a GPU does not run the emulator"
)


@pytest.fixture
def force(monkeypatch):
    """force(name) puts the solvers with this in their names first, where they apply."""

    def forget():
        database._choose.cache_clear()
        kc.engine.programs.clear()

    def change(name: str) -> list[str]:
        emulated.install(monkeypatch.setattr)
        monkeypatch.setenv("KERASCL_SOLVERS", name)
        forget()
        planned = []

        def note(kind, plan):
            def noted(self, problem, info, epilogue):
                made = plan(self, problem, info, epilogue)
                planned.append(f"{self.name} moments" if epilogue.moments else self.name)
                return made

            monkeypatch.setattr(kind, "plan", noted)

        for kind in (emulated.Emulated, emulated.EmulatedAttention):
            note(kind, kind.plan)
        return planned

    yield change
    forget()


def network() -> keras.Model:
    """A first layer, two residual blocks of which one halves the image, and a dense layer; smooth,
    as one relu that flips in the last bit changes all that follows."""

    def normalised(x, filters, kernel, stride=1):
        x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    def active(x):
        return layers.Activation("silu")(x)

    image = keras.Input((24, 24, 3))
    x = layers.AveragePooling2D(2)(active(normalised(image, 32, 7, 2)))
    for filters, stride in ((32, 1), (64, 2)):
        beside = x if stride == 1 else normalised(x, filters, 1, stride)
        inside = active(normalised(x, filters, 3, stride))
        x = active(layers.Add()([beside, normalised(inside, filters, 3)]))
    x = layers.Dense(8)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, x)


def transformer() -> keras.Model:
    """Two blocks of attention, the second with grouped heads, as layers of a decoder have it."""
    tokens = x = keras.Input((20, 24))
    for attention in (
        layers.MultiHeadAttention(2, 16), layers.GroupQueryAttention(8, 4, 2),
    ):  # fmt: skip
        inside = layers.LayerNormalization()(x)
        x = layers.Add()([x, attention(inside, inside, use_causal_mask=True)])
        inside = layers.Dense(48, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(24)(inside)])
    return keras.Model(tokens, layers.Dense(8)(layers.GlobalAveragePooling1D()(x)))


def trained(policy: str, make=network) -> np.ndarray:
    """How far three steps move the weights."""
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(5)
    model, rng = make(), np.random.default_rng(5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.9), loss=loss)
    begun = [np.asarray(w, np.float64) for w in model.get_weights()]
    x, y = rng.standard_normal((8, *model.input_shape[1:])).astype("f"), rng.integers(0, 8, 8)
    for _ in range(3):
        model.train_on_batch(x, y)
    return np.concatenate(
        [(w - b).ravel() for w, b in zip(model.get_weights(), begun, strict=True)]
    )


# Sums in another order change the last bit of some 16-bit floats, 2**-8 of these.
@pytest.mark.slow
@pytest.mark.every(3)
@pytest.mark.parametrize(
    "policy, reference, bound",
    [("float32", "float64", 5e-6), ("mixed_bfloat16", "mixed_bfloat16", 1e-2)],
)
@pytest.mark.parametrize("name", ["wgmma", "mma64x64"])
def test_training(name, policy, reference, bound, force, monkeypatch):
    check(name, policy, reference, bound, force, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name, policy", [
    *((n, "mixed_bfloat16") for n in (
        "wmma64x64", "rdna4wmma64x64", "cdna3mfma64x64", "xmx8_32x32", "xmx16_32x32",
    )),
    *((n, "float32") for n in ("cdna2f32mfma64x64", "rdna4wmma64x64", "xmx16_32x32")),
])  # fmt: skip
def test_training_of_others(name, policy, force, monkeypatch):
    reference, bound = ("float64", 5e-6) if policy == "float32" else (policy, 1e-2)
    if policy == "float32" and "f32" not in name:
        bound = 2.0**-15  # each number as two bfloat16
    check(name, policy, reference, bound, force, monkeypatch)


@pytest.mark.slow
@pytest.mark.every(4)
@pytest.mark.parametrize("name, policy", [
    *((n, "mixed_bfloat16") for n in ("wmma", "rdna4wmma", "cdna3mfma", "xmx8", "xmx16")),
    *((n, "float32") for n in ("cdna2f32mfma", "rdna4wmma", "xmx16")),
    ("cdna2f32mfma", "mixed_float16"),
])  # fmt: skip
def test_training_of_a_transformer(name, policy, force, monkeypatch):
    """Attention and its gradients by units, in both kinds of heads, and products beside them."""
    monkeypatch.setenv("KERASCL_PRECISION", "high")
    reference, bound = ("float64", 5e-6) if policy == "float32" else (policy, 1e-2)
    if policy == "float32" and "f32" not in name:
        bound = 2.0**-14  # each number as two bfloat16, in attention three times over
    expected = trained(reference, transformer)
    planned = force(name)
    found = trained(policy, transformer)
    assert {name, f"{name}_grad"} < set(planned)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < bound, f"relative error {error:.1e}"


def check(name, policy, reference, bound, force, monkeypatch):
    monkeypatch.setenv("KERASCL_PRECISION", "high")  # emulated TF32 is exact
    expected = trained(reference)
    planned = force(name)
    found = trained(policy)
    assert sum(name in used for used in planned) >= 12
    assert any("moments" in used for used in planned) == (name == "wgmma")
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < bound, f"relative error {error:.1e}"


def test_a_fault_spoils_the_result(force, monkeypatch, rng):
    monkeypatch.setenv("KERASCL_PRECISION", "high")
    plain = emulator._source
    a, b = rng.standard_normal((2, 40, 40)).astype("f")

    def unfenced(*args):
        source, pointers = plain(*args)
        return source.replace("WG_FENCE;", ""), pointers

    def product():
        return kc.matmul(kc.array(a), kc.array(b)).numpy()

    planned = force("wgmma")
    np.testing.assert_allclose(product(), a @ b, rtol=1e-4, atol=1e-4)
    assert planned
    monkeypatch.setattr(emulator, "_source", unfenced)
    kc.engine.programs.clear()
    assert np.isnan(product()).any()


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["mma64x64", "rdna4wmma64x64", "cdna3mfma64x64", "xmx8_32x32"])
def test_a_quantised_model(name, force, rng):
    """Whole numbers are multiplied exactly, whoever does it: an embedding, and layers whose kernels
    lie in the usual order and in that of heads."""
    tokens = keras.Input((20,), dtype="int32")
    x = layers.Dense(96, "silu")(layers.Embedding(50, 64)(tokens))
    x = layers.EinsumDense("abc,cde->abde", (None, 4, 16))(x)
    model = keras.Model(tokens, layers.Dense(32)(layers.Reshape((20, 64))(x)))
    model.quantize("int8")
    texts = rng.integers(0, 50, (4, 20))
    expected = model.predict(texts, verbose=0)
    planned, found = force(name), keras.models.clone_model(model)  # what was captured has a solver
    found.set_weights(model.get_weights())
    found = found.predict(texts, verbose=0)
    assert planned.count(name) == 3
    # What is rounded to the next whole number is now and then a bit above or below its half.
    assert np.linalg.norm(found - expected) < 2e-3 * np.linalg.norm(expected)
