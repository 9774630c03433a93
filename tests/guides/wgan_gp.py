"""A Wasserstein GAN with a gradient penalty: the gradient of a gradient's length."""

import keras
import numpy as np
from keras import layers, ops

import kerascl


class WGAN(keras.Model):
    """A critic that is trained more often than the generator."""

    def __init__(self, critic, generator, latent, critic_steps=2, weight=10.0):
        super().__init__()
        self.critic, self.generator = critic, generator
        self.latent, self.critic_steps, self.weight = latent, critic_steps, weight
        self.seeds = keras.random.SeedGenerator(1)

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.c_optimizer, self.g_optimizer = critic_optimizer, generator_optimizer

    def penalty(self, real, fake, share):
        mixed = real + share * (fake - real)
        with kerascl.GradientTape() as tape:
            tape.watch(mixed)
            scores = self.critic(mixed, training=True)
        slopes = tape.gradient(scores, [mixed])[0]
        return ops.mean((ops.sqrt(ops.sum(ops.square(slopes), axis=1) + 1e-12) - 1.0) ** 2)

    def train_step(self, real):
        size = ops.shape(real)[0]
        for _ in range(self.critic_steps):
            fake = self.generator(keras.random.normal((size, self.latent), seed=self.seeds))
            share = keras.random.uniform((size, 1), seed=self.seeds)
            with kerascl.GradientTape() as tape:
                gap = ops.mean(self.critic(fake)) - ops.mean(self.critic(real))
                penalty = self.penalty(real, fake, share)
                loss = gap + penalty * self.weight
            weights = self.critic.trainable_variables
            self.c_optimizer.apply(tape.gradient(loss, weights), weights)
        with kerascl.GradientTape() as tape:
            noise = keras.random.normal((size, self.latent), seed=self.seeds)
            g_loss = -ops.mean(self.critic(self.generator(noise)))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return {"critic": loss, "generator": g_loss, "penalty": penalty}


def main():
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    critic = keras.Sequential(
        [keras.Input((2,)), layers.Dense(16, "tanh"), layers.Dense(1, use_bias=False)]
    )
    generator = keras.Sequential([keras.Input((3,)), layers.Dense(16, "relu"), layers.Dense(2)])
    gan = WGAN(critic, generator, 3)
    # the penalty's gradient by the first kernel, against differences in float64
    real, fake = (rng.normal(size=(8, 2)).astype("float32") for _ in range(2))
    share = rng.uniform(size=(8, 1)).astype("float32")
    with kerascl.GradientTape() as tape:
        value = gan.penalty(*(ops.convert_to_tensor(a) for a in (real, fake, share)))
    found = tape.gradient(value, critic.trainable_weights[0]).numpy()
    k1, b1, k2 = (w.astype("float64") for w in critic.get_weights())
    mixed = real.astype("float64") + share * (fake - real)

    def by_hand(k1):
        slopes = ((1 - np.tanh(mixed @ k1 + b1) ** 2) * k2[:, 0]) @ k1.T
        return ((np.sqrt((slopes**2).sum(1)) - 1) ** 2).mean()

    np.testing.assert_allclose(float(value), by_hand(k1), rtol=1e-4)
    expected = np.zeros_like(k1)
    for place in np.ndindex(k1.shape):
        step = np.zeros_like(k1)
        step[place] = 1e-6
        expected[place] = (by_hand(k1 + step) - by_hand(k1 - step)) / 2e-6
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)

    gan.compile(keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.Adam(0.005, beta_1=0.5))
    real = rng.normal(2.0, 0.3, (128, 2)).astype("float32")
    before = gan.get_weights()
    logs = gan.fit(real, batch_size=32, epochs=5, verbose=2).history
    assert set(logs) == {"critic", "generator", "penalty"}
    assert np.isfinite(list(logs.values())).all()
    assert all((a != b).any() for a, b in zip(before, gan.get_weights(), strict=True))


if __name__ == "__main__":
    main()
