"""What people type in their first hour, line by line, and what NumPy says to it.

In every line `x` and `y` are float32 of shape (3, 4), `v` and `w` float32 of shape (5,), `m` is
float32 (3, 3) and well conditioned, `n` int32 of shape (6,), `b` bool of shape (3, 4), and `z`
complex64 of shape (4,); fresh for each line, random in each run.
"""

# The same line for both: `xp` is kerascl, then NumPy.
SAME = """
x + 1
1 - x
x * y / 2
x @ y.T
v ** 2
2 ** v
n // 2
n % 4
-x
+x
abs(x)
x == y
(x > 0) & (y > 0)
~b
b | (x < 0)
n << 1
divmod(n, 3)
x[0]
x[-1, 2]
x[1:, ::2]
x[:, None, :]
x[..., 0]
x[::-1]
x[x > 0]
x[[0, 2]]
x[[0, 1, 2], [1, 2, 3]]
x[b]
x[xp.array([2, 0])]
x[n[0] % 3]
v[v.argsort()]
x.shape
x.ndim
x.size
x.T
x.sum()
x.sum(axis=0)
x.sum(0, keepdims=True)
x.mean(1)
x.std(axis=1, ddof=1)
x.var()
x.max(axis=1)
x.argmin(1)
x.min(initial=-9)
b.any(axis=0)
b.all()
x.cumsum(axis=1)
v.cumprod()
x.reshape(4, 3)
x.reshape((2, -1))
x.reshape(-1)
x.ravel()
x.flatten()
x.transpose(1, 0)
x.swapaxes(0, 1)
x.squeeze()
x.astype("int32")
n.astype(xp.float32)
x.astype(float).shape
x.copy()
x.clip(-0.5, 0.5)
x.round(2)
x.dot(v[:4])
x.diagonal()
m.trace()
x.take([0, 1], axis=1)
v.repeat(2)
v.argmax()
v.argsort()
v.sort(); v
x.sort(axis=0); x
x.tolist()
x[0, 0].item()
v.nonzero()
v.ptp() if hasattr(v, "ptp") else v.max() - v.min()
len(x)
[float(e) for e in v]
[row.sum() for row in x]
sum(v)
max(v)
float(v[0])
int(n[0])
bool(v[0] > 0)
f"{v[0]:.3f}"
v[1] = 5; v
v[1:3] = 0; v
v[v > 0] = 0; v
v[-1] += 2; v
x[0] = v[:4]; x
x[:, 1] = 7; x
x[1, 2] = -1.5; x
x[b] = y[b]; x
x[[0, 2]] = y[[1, 1]]; x
x[..., -1] *= 2; x
x[:] = 0; x
x[...] = y; x
x[::2, ::-1] = y[:2]; x
n[2] = 3.7; n
v += 1; v
v -= v.mean(); v
v *= 2; v
v /= 2; v
v **= 2; v
n //= 2; n
n %= 3; n
n |= 1; n
n <<= 2; n
m @= m; m
u = v.copy(); u[0] = 9; (u, v)
u = v + 0; v[0] = 9; (u, v)
xp.zeros((2, 3))
xp.zeros(3)
xp.ones((2, 3), dtype=xp.int32)
xp.full((2, 2), 7.0)
xp.empty((2, 3)).shape
xp.eye(3)
xp.eye(3, k=1)
xp.identity(2)
xp.arange(10)
xp.arange(2, 10, 3)
xp.arange(0.0, 1.0, 0.25)
xp.linspace(0, 1, 5)
xp.zeros_like(x)
xp.ones_like(n)
xp.full_like(x, 3)
xp.array([[1, 2], [3, 4]])
xp.array([1.5, 2.5], dtype=xp.float32)
xp.array([True, False])
xp.meshgrid(v, v[:3])
xp.tril(m)
xp.triu(m, 1)
xp.diag(v)
xp.diag(m)
xp.concatenate([x, y])
xp.concatenate([x, y], axis=1)
xp.stack([v, v])
xp.vstack([v, v])
xp.hstack([v, v])
xp.column_stack([v, v])
xp.split(x, 2, axis=1)
xp.array_split(v, 2)
xp.tile(v, (2, 1))
xp.repeat(x, 2, axis=1)
xp.roll(v, 2)
xp.flip(x, axis=0)
xp.rot90(x)
xp.pad(v, 2)
xp.pad(x, ((1, 1), (0, 2)), constant_values=9)
xp.pad(v, (1, 2), mode="edge")
xp.expand_dims(v, 0)
xp.squeeze(x[None])
xp.moveaxis(x[None], 0, -1)
xp.broadcast_to(v, (2, 5))
xp.atleast_1d(v[0])
xp.atleast_2d(v)
xp.append(v, v)
xp.insert(v, 1, 9.0)
xp.delete(v, 1)
xp.sin(x) + xp.cos(y)
xp.exp(x)
xp.log(abs(x) + 1)
xp.sqrt(abs(x))
xp.tanh(x)
xp.arctan2(x, y)
xp.maximum(x, 0)
xp.minimum(x, y)
xp.where(x > 0, x, 0)
xp.where(b)
xp.clip(x, 0, 1)
xp.sign(x)
xp.floor(x)
xp.isnan(x)
xp.isfinite(x)
xp.isclose(x, x + 1e-9)
xp.allclose(x, x)
xp.array_equal(x, x)
xp.nan_to_num(x)
xp.sum(x)
xp.sum(x, axis=(0, 1))
xp.mean(x, axis=0)
xp.std(x)
xp.median(x)
xp.percentile(v, 30)
xp.quantile(v, [0.1, 0.9])
xp.average(v, weights=abs(v))
xp.cumsum(v)
xp.diff(v)
xp.gradient(v)
xp.prod(v)
xp.max(x, axis=1)
xp.argmax(x, axis=1)
xp.any(b)
xp.count_nonzero(b)
xp.nanmean(x)
xp.sort(x, axis=0)
xp.argsort(v)
xp.unique(n)
xp.unique(n, return_counts=True)
xp.searchsorted(xp.sort(v), 0.0)
xp.digitize(v, [-1.0, 0.0, 1.0])
xp.bincount(n)
xp.histogram(v, bins=4)
xp.histogram(v, bins=4, density=True)
xp.histogram(v, bins=[-3.0, -1.0, 0.0, 1.0, 3.0], weights=abs(v))
xp.interp(xp.array([-0.5, 0.2, 0.9, 7.0]), xp.array([0.0, 0.5, 1.0]), xp.array([1.0, 3.0, 2.0]))
xp.nonzero(b)
xp.argwhere(b)
xp.isin(n, [1, 2])
xp.dot(v, v)
xp.matmul(x, y.T)
xp.outer(v, v)
xp.inner(v, v)
xp.vdot(v, v)
xp.einsum("ij,kj->ik", x, y)
xp.tensordot(x, y, axes=([1], [1]))
xp.trace(m)
xp.kron(v[:2], v[:2])
xp.cross(v[:3], v[1:4])
xp.linalg.norm(v)
xp.linalg.norm(x)
xp.linalg.norm(x, axis=1)
xp.linalg.norm(v, ord=1)
xp.linalg.norm(x, "fro")
xp.linalg.norm(x, xp.inf)
xp.linalg.inv(m)
xp.linalg.solve(m, v[:3])
xp.linalg.det(m)
xp.linalg.slogdet(m)
xp.linalg.lstsq(xp.tile(m, (2, 1)), xp.tile(v[:3], 2), rcond=None)[0]
abs(xp.linalg.eig(m)[0]).sum()
abs(xp.linalg.eigvals(m)).max()
xp.linalg.eigh(m + m.T)[0]
xp.linalg.svd(x, full_matrices=False)[1]
abs(xp.linalg.qr(m)[1])
xp.linalg.cholesky(m @ m.T)
xp.linalg.pinv(x)
xp.linalg.matrix_rank(m)
xp.linalg.matrix_power(m, 3)
xp.linalg.eigvalsh(m + m.T)
xp.fft.fft(v)
xp.fft.ifft(xp.fft.fft(v)).real
xp.fft.rfft(v)
xp.fft.fftfreq(5)
z.conj()
z.real + z.imag
abs(z)
xp.angle(z)
xp.real(z * 1j)
xp.bitwise_and(n, 3)
xp.logical_and(b, x > 0)
xp.power(v, 3)
xp.mod(n, 3)
xp.hypot(x, y)
xp.deg2rad(v)
xp.trapezoid(v)
xp.cov(x)
xp.corrcoef(x)
xp.apply_along_axis(lambda r: r.sum(), 1, x)
xp.polyval(xp.array([1.0, -2.0, 3.0]), v)
xp.convolve(v, v[:3])
xp.pi * 2
xp.inf
xp.newaxis
xp.e
xp.float32(3.5) + v
xp.int32(7)
x.dtype == xp.float32
n.dtype == "int32"
xp.finfo(xp.float32).eps
xp.iinfo(xp.int32).max
xp.result_type(xp.float32, xp.int32) is not None
xp.asarray(v)
xp.shape(x)
xp.ndim(x)
xp.size(x)
xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1)
xp.triu_indices(3)
xp.ravel_multi_index((xp.array([1, 2]), xp.array([0, 3])), (3, 4))
xp.unravel_index(xp.array([5, 7]), (3, 4))
xp.select([x > 0.5, x < -0.5], [x, -x], 0)
"""

# The same of what is written less often.
LESS = """
xp.around(x, 1)
xp.round(x)
xp.rint(n)
xp.fix(x)
xp.fabs(n - 4)
xp.float_power(abs(n) + 1, -2)
xp.degrees(v)
xp.radians(v)
xp.true_divide(n, 4)
xp.invert(n)
xp.amax(x, axis=0)
xp.amin(x, axis=1, keepdims=True)
xp.modf(v * 3)
xp.frexp(v * 100)
xp.ldexp(v, n[:5])
xp.spacing(v)
xp.bitwise_count(n - 4)
xp.unwrap(v * 7)
xp.unwrap(x * 9, axis=0)
xp.unwrap(n * 3, period=8)
xp.iscomplex(z)
xp.iscomplexobj(z)
xp.isrealobj(x)
xp.isscalar(2.5)
xp.flatnonzero(b)
xp.partition(v, 2)[2]
xp.take_along_axis(v, xp.argpartition(v, 3), 0)[3]
xp.lexsort((n, n % 3))
xp.lexsort(xp.stack([v, -v]))
xp.sort_complex(z)
xp.mgrid[0:3, 0:2]
xp.mgrid[0:1:5j]
xp.mgrid[0.0:1.0:0.25, 1:3]
xp.ogrid[0:3, 0:2]
xp.r_[1, 2, 3:6]
xp.r_[v, 0, 0, 1:4]
xp.r_["1", x, y]
xp.r_["0,2", v, v]
xp.r_["0,2,0", v, v]
xp.r_[0:1:5j]
xp.c_[v, v]
xp.c_[x, v[:3]]
xp.c_[1:4]
x[xp.s_[1:, ::2]]
xp.index_exp[1:3][0]
x[xp.ix_([0, 2], [1, 3])]
x[xp.ix_(xp.array([True, False, True]), [1, 3])]
xp.indices((2, 3))
xp.indices((2, 3), sparse=True)
xp.fromfunction(lambda i, j: i * 10 + j, (2, 3))
xp.broadcast_shapes((3, 1), (1, 4))
xp.diag_indices(3)
xp.diag_indices_from(m)
xp.tril_indices(3, -1)
xp.tril_indices_from(m)
xp.triu_indices_from(x, 1)
xp.mask_indices(3, xp.tril)
xp.choose(n % 3, [n, -n, 7])
xp.choose(n, [1, 2, 3], mode="wrap")
xp.choose(n, [1, 2, 3], mode="clip")
xp.compress([True, False, True], x, axis=0)
xp.compress(v > 0, v)
xp.extract(b, x)
xp.piecewise(v, [v < -0.5, v > 0.5], [lambda t: -t, lambda t: t * t, 7.0])
xp.piecewise(v, v > 0, [lambda t: t * t, lambda t: -t])
xp.piecewise(v, [v > -1, v > 0], [1, 2])
xp.put(v, [0, 2], [9.0, 8.0]); v
xp.put(v, [1, 7], 3.0, mode="wrap"); v
xp.put(x, [11, -2], [9.0]); x
xp.place(x, x > 0, [1.0, 2.0, 3.0]); x
xp.putmask(x, x > 0, y); x
xp.putmask(x, b, [1.0, 2.0]); x
xp.copyto(x, v[:4]); x
xp.copyto(x, y, where=b); x
xp.put_along_axis(x, xp.argsort(x, axis=1)[:, :1], 5.0, 1); x
xp.fill_diagonal(m, 0); m
xp.fill_diagonal(x, [1.0, 2.0]); x
u = xp.zeros((7, 3), dtype=xp.float32); xp.fill_diagonal(u, 4, wrap=True); u
u = xp.zeros((3, 3, 3), dtype=xp.float32); xp.fill_diagonal(u, [1.0, 2.0, 3.0]); u
xp.ediff1d(v)
xp.ediff1d(n, to_begin=-9, to_end=[8, 9])
xp.union1d(n, [1, 2, 77])
xp.intersect1d(n, [1, 2, 3, 4, 5])
xp.intersect1d(n, [5, 4, 4, 3, 1, 0], return_indices=True)
xp.setdiff1d(n, [1, 2, 3])
xp.setxor1d(n, [1, 2, 3, 77])
xp.histogram_bin_edges(v, bins=3)
xp.histogram2d(v, v[::-1], bins=3)
xp.histogram2d(v, v[::-1], bins=[2, [-5.0, 0.0, 5.0]], density=True)
xp.histogramdd(x, bins=2)[0]
xp.histogramdd(x[:, :2], bins=(2, 3), range=[(-1, 1), (-2, 2)], weights=abs(v[:3]))
xp.block([[m, m], [m, m]])
xp.block([[m, xp.zeros((3, 1))], [xp.ones((1, 4))]])
xp.block([1, v])
xp.resize(v, (2, 4))
xp.resize(x, 5)
xp.rollaxis(x[None], 2)
xp.rollaxis(x[None], 0, 3)
xp.trim_zeros(xp.array([0, 0, 1, 0, 2, 0]))
xp.trim_zeros(xp.array([0, 0, 1, 0, 2, 0]), "b")
xp.apply_over_axes(xp.sum, x[None], [0, 2])
xp.array_equiv(v, v[None])
xp.vander(v, 3)
xp.polyfit(v, w, 2)
xp.polyfit(xp.arange(5), x.ravel()[:10].reshape(5, 2), 1)
xp.polyfit(v, w, 1, w=abs(v) + 1)
xp.polyfit(v, w, 1, cov=True)
xp.polyfit(v, w, 1, full=True)[1]
xp.polyadd(v, w[:3])
xp.polysub(v[:2], w)
xp.polymul(v, w)
xp.polydiv([2.0, 5.0, 1.0, 7.0], [1.0, 2.0])
xp.polyder(v)
xp.polyder(v, 2)
xp.polyint(v)
xp.polyint(v, 2, k=[1.0, 2.0])
xp.poly(v)
xp.poly(m)
abs(xp.roots(v)).sum()
abs(xp.roots([0.0, 1.0, 0.0, 0.0]))
xp.matvec(m, v[:3])
xp.vecmat(v[:3], m)
xp.vecmat(z[:3], m)
xp.linalg.cond(m)
xp.linalg.cond(m, 1)
xp.linalg.cond(x)
xp.linalg.multi_dot([x, y.T, m, v[:3]])
xp.linalg.multi_dot([v[:3], x])
xp.linalg.tensorsolve(m.reshape(3, 1, 3), v[:3].reshape(3, 1))
xp.linalg.tensorinv(m, 1)
xp.fft.rfft2(x)
xp.fft.irfft2(xp.fft.rfft2(x))
xp.frombuffer(bytes([1, 0, 2, 0]), dtype="int16")
xp.fromiter((k * 2 for k in range(3)), dtype=xp.int32)
xp.issubdtype(xp.float32, xp.floating)
xp.issubdtype(xp.int32, xp.inexact)
xp.promote_types(xp.int8, xp.int16) == xp.int16
xp.euler_gamma
x[xp.array(True)] = 7; x
x[xp.array(False)] = 7; x
x[True] = y; x
m[0, 0][xp.array(False)]
x.argmax(axis=0, keepdims=True)
"""

# NumPy's own functions on arrays of kerascl: the same result, and it stays on the device.
NUMPY = """
np.sin(x)
np.add(x, y)
np.add(x, y.numpy())
np.add(x.numpy(), y)
x.numpy() + y
x.numpy() @ y.T
np.float32(2) * x
np.maximum(x, 0)
np.exp(np.abs(x))
np.add.reduce(x)
np.add.reduce(x, axis=1)
np.multiply.outer(v, v)
np.sum(x, axis=0)
np.mean(x)
np.concatenate([x, y])
np.stack([v, v])
np.vstack([v, v])
np.where(x > 0, x, 0)
np.clip(x, 0, 1)
np.einsum("ij,kj->ik", x, y)
np.dot(x, y.T)
np.reshape(x, (4, 3))
np.transpose(x)
np.linalg.norm(x)
np.linalg.solve(m, v[:3])
np.fft.fft(v)
np.sort(v)
np.argmax(x, axis=1)
np.zeros_like(x)
np.ones_like(n)
np.isnan(x)
np.cumsum(v)
np.matmul(x, y.T)
np.broadcast_to(v, (2, 5))
np.median(x)
np.quantile(v, 0.3)
np.split(x, 2, axis=1)
np.expand_dims(v, 0)
np.outer(v, v)
"""

# (a line of kerascl, the same in NumPy)
PAIRS = [
    # as JAX's users write
    ("x.at[0].set(1.0)", "np.concatenate([np.ones((1, 4), 'f'), x[1:]])"),
    ("v.at[jnp.array([0, 0])].add(1.0)", "v + np.eye(5, dtype='f')[0] * 2"),
    ("jax.grad(lambda t: jnp.sum(t ** 3))(v)", "3 * v ** 2"),
    ("jax.grad(lambda t: t ** 2)(2.0)", "np.float32(4)"),
    ("jax.grad(jax.grad(lambda t: t ** 3))(2.0)", "np.float32(12)"),
    ("jax.grad(lambda t: jnp.sum(t * v))(v)", "v"),
    ("jax.value_and_grad(lambda t: jnp.sum(t * t))(v)", "(np.sum(v * v), 2 * v)"),
    ("jax.grad(lambda a, c: jnp.sum(a * c), argnums=(0, 1))(v, w)", "(w, v)"),
    ("jax.grad(lambda p: jnp.sum(p['a'] * p['c']))({'a': v, 'c': w})['a']", "w"),
    ("jax.jit(lambda t: jnp.tanh(t) * 2)(v)", "np.tanh(v) * 2"),
    ("jax.vmap(jnp.dot)(x, y)", "(x * y).sum(1)"),
    ("jax.vmap(lambda a, c: a + c, in_axes=(0, None))(x, v[:4])", "x + v[:4]"),
    ("jax.jacobian(lambda t: t ** 2)(v)", "np.diag(2 * v)"),
    ("jax.hessian(lambda t: jnp.sum(t ** 3))(v)", "np.diag(6 * v)"),
    ("jax.jvp(lambda t: jnp.sin(t), (v,), (w,))", "(np.sin(v), np.cos(v) * w)"),
    ("jax.vjp(lambda t: jnp.sin(t), v)[1](w)[0]", "np.cos(v) * w"),
    ("jax.cond(v[0] > 0, lambda t: t, lambda t: -t, v)", "v if v[0] > 0 else -v"),
    ("jax.while_loop(lambda i: i < 10, lambda i: i + 3, 0)", "np.int32(12)"),
    ("jax.fori_loop(0, 4, lambda i, c: c + i, v)", "v + 6"),
    ("jax.scan(lambda c, e: (c + e, c * e), 0.0, v)[0]", "v.sum()"),
    ("jax.stop_gradient(v)", "v"),
    ("jax.grad(lambda t: jnp.sum(jax.stop_gradient(t) * t))(v)", "v"),
    ("jax.random.normal(jax.random.key(0), (2, 3)).shape", "(2, 3)"),
    ("jax.random.uniform(jax.random.key(0), (7,)).dtype.name", "'float32'"),
    ("jax.random.split(jax.random.key(0)).shape", "(2, 2)"),
    ("jax.random.split(jax.random.key(0), 5).shape", "(5, 2)"),
    ("jnp.sort(jax.random.permutation(jax.random.key(1), 10))", "np.arange(10)"),
    ("jnp.sort(jax.random.permutation(jax.random.key(1), v))", "np.sort(v)"),
    ("jax.random.choice(jax.random.key(1), v, (3,)).shape", "(3,)"),
    ("jnp.sort(jax.random.choice(jax.random.key(1), 6, (6,), replace=False))", "np.arange(6)"),
    ("jax.random.bernoulli(jax.random.key(1), (3,), 1.0)", "np.ones(3, bool)"),
    ("jax.nn.relu(x)", "np.maximum(x, 0)"),
    ("jax.nn.softmax(x)", "np.exp(x) / np.exp(x).sum(-1, keepdims=True)"),
    ("jax.nn.one_hot(n % 3, 3)", "np.eye(3, dtype='f')[n % 3]"),
    ("jax.nn.sigmoid(x)", "1 / (1 + np.exp(-x))"),
    ("jax.nn.tanh(x)", "np.tanh(x)"),
    # as MLX's users write
    ("kc.softmax(x, axis=-1)", "np.exp(x) / np.exp(x).sum(-1, keepdims=True)"),
    ("kc.gelu(v).shape", "(5,)"),
    ("kc.softmax(x).sum(axis=-1)", "np.ones(3, 'f')"),
    ("v.numpy()", "v"),
    ("v.evaluate()", "v"),
    ("kc.sigmoid(x)", "1 / (1 + np.exp(-x))"),
    ("kc.relu(x)", "np.maximum(x, 0)"),
    ("kc.logsumexp(v)", "np.log(np.exp(v).sum())"),
    # as CuPy's users write
    ("kc.asarray(v.numpy())", "v"),
    ("kc.rsqrt(abs(v))", "1 / np.sqrt(abs(v))"),
    ("kc.random.seed(0)", "None"),
    ("kc.random.rand(2, 3).shape", "(2, 3)"),
    ("kc.random.randn(4).dtype.name", "'float32'"),
    ("kc.random.default_rng(0).normal(size=(2, 3)).shape", "(2, 3)"),
    ("kc.random.default_rng(0).integers(0, 1, 4)", "np.zeros(4, int)"),
    ("kc.random.default_rng(0).random(3).shape", "(3,)"),
    ("kc.sort(kc.random.default_rng(0).permutation(8))", "np.arange(8)"),
    ("kc.random.default_rng(0).choice(v, 2).shape", "(2,)"),
    # at home in NumPy and Python
    ("np.asarray(v)", "v"),
    ("np.array(v, 'float64')", "v.astype('float64')"),
    ("np.dtype(kc.float32)", "np.dtype('float32')"),
    ("np.zeros(3, kc.int32)", "np.zeros(3, 'int32')"),
    ("pickle.loads(pickle.dumps(v))", "v"),
    ("pickle.loads(pickle.dumps(v.dtype)) is kc.float32", "True"),
    ("pickle.loads(pickle.dumps(kc.State(v))).value", "v"),
    ("copy.copy(v)", "v"),
    ("copy.deepcopy([v])[0]", "v"),
    ("copy.deepcopy(kc.State(v)).value", "v"),
    ("list(v)[1]", "v[1]"),
    ("dict(a=v)['a']", "v"),
    ("kc.array(v)", "v"),
    ("kc.array([v[0], v[1]])", "v[:2]"),
    ("kc.array(range(4))", "np.arange(4)"),
]
