"""The batches of an epoch, some at a time."""

from __future__ import annotations

from itertools import islice

from keras.src.trainers.epoch_iterator import EpochIterator


class Batches(EpochIterator):
    """Gives (first step, last step, list of batches) for each execution.

    An epoch's last execution may have fewer batches. Keras' own iterator takes that for data that
    ran out: it warns and ends the epoch twice, which a `PyDataset` notices.
    """

    def __next__(self):
        begin, end, iterator = next(self._epoch_iterator)
        batches = list(islice(iterator, self.steps_per_execution))
        if not batches:
            with self.catch_stop_iteration():
                raise StopIteration
            raise StopIteration
        return begin, end, batches
