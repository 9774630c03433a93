"""One process of the run: pytest on one test file after another, as asked for on standard input.

Each line read is JSON: a pool.Unit with its "path", node ids to "skip", pytest's "options", and a
pair "of": [k, n] runs each n-th test from the k-th. Each event is a line of JSON on the file
descriptor given as the only argument, the last one of a unit having the key "end", with pytest's
status.
"""

import json
import os
import resource
import sys


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # tests start processes of their own
    events = os.fdopen(descriptor, "w", encoding="utf-8")

    def write(**event) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    import conftest  # torch first, then Keras
    import pytest

    write(ready=True)
    for line in sys.stdin:
        job = json.loads(line)
        before = resource.getrusage(resource.RUSAGE_SELF)
        recorder = conftest.Recorder(write, job)
        status = pytest.main([*job["options"], job["path"]], plugins=[conftest, recorder])
        sys.stdout.flush()
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        write(end=int(status), file=job["file"], processor=used, mib=after.ru_maxrss // 1024)


if __name__ == "__main__":
    main()
