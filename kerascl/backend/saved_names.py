"""Names in files that Keras wrote under other backends.

Under torch, Keras swaps in optimizers of its own and saves where those live. Their configurations
and variables are the plain optimizers', so such a name leads to the plain one here, with torch or
without.
"""

import sys

from keras.src.optimizers import adadelta, adagrad, adam, adamax, adamw, lion, nadam, rmsprop, sgd

for _module in (adadelta, adagrad, adam, adamax, adamw, lion, nadam, rmsprop, sgd):
    _name = _module.__name__.rpartition(".")[2]
    sys.modules.setdefault(f"keras.src.backend.torch.optimizers.torch_{_name}", _module)
