"""The output of seqpar.trace for synthetic flight records."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "seqpar"))
import trace  # (not Python's module: the path above precedes it)


def call(number, name="seqparAllScan", failed=False, returned=1, collective=None, **values):
    return {"number": number, "collective": number if collective is None else collective, "call": name, "algorithm": None,
            "bytes": 8, "called_ns": 1, "returned_ns": returned, "begun_ns": 1, "done_ns": returned, "operations": 1,
            "ended": 1 if returned else 0, "failed": failed, "values": values}


def record(rank, calls, ranks=2, communicator="c"):
    return {"version": 1, "communicator": communicator, "rank": rank, "ranks": ranks, "host": "h", "pid": 1,
            "reason": "because", "recorded": len(calls), "calls": calls}


def answer(*records):
    """(exit status, text)"""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        files = []
        for i, one in enumerate(records):
            path = pathlib.Path(folder) / str(i)
            path.write_text(one if isinstance(one, str) else json.dumps(one))
            files.append(str(path))
        try:
            status = trace.main(files)
        except SystemExit as end:
            return 2, str(end.code)
    return status, out.getvalue()


def expect(records, status, *parts):
    got, text = answer(*records)
    assert got == status and all(part in text for part in parts), (got, status, parts, text)


alike = [call(1, heads=2), call(2, heads=3)]
expect([record(0, alike), record(1, alike)], 0, "no rank differs")

# A different value, a different call, and the first of several differences.
expect([record(0, alike), record(1, [call(1, heads=2), call(2, heads=4), call(3)])], 1, "collective 2",
       "rank 0: seqparAllScan with heads 3", "rank 1: seqparAllScan with heads 4")
expect([record(r, [call(1, "seqparAllGather" if r == 1 else "seqparAllScan")], ranks=3) for r in range(3)], 1,
       "ranks 0, 2: seqparAllScan", "rank 1: seqparAllGather")

# A rank that returned from its last call and stopped differs; one that is still in it, or failed in it, waits.
expect([record(0, alike), record(1, alike[:1])], 1, "rank 1 issued no such call; its last was collective 1")
expect([record(0, alike), record(1, [])], 1, "rank 1 issued no such call; it issued none")
expect([record(0, alike), record(1, [call(1, heads=2, returned=None)])], 0, "rank 1: collective 1", "has not returned")
expect([record(0, alike), record(1, [call(1, heads=2, failed=True)])], 0, "rank 1: collective 1", "failed")

# Calls between some ranks only do not count, and an overwritten call is not a missing one.
expect([record(0, [call(1, "seqparSendRecv", collective=0), call(2, collective=1)]), record(1, [call(1)])], 0)
expect([record(0, [call(7)]), record(1, [call(number) for number in range(1, 8)])], 0)
expect([record(0, [call(7)], 3), record(1, [call(6), call(7)], 3), record(2, [call(6, heads=1), call(7)], 3)], 1,
       "collective 6", "no longer in the record of rank 0")

# Ranks without a record, and several communicators.
expect([record(0, alike, 3), record(1, alike, 3)], 0, "no record of rank 2")
expect([record(0, alike, 1, "a"), record(0, alike, communicator="b"), record(1, alike[:1], communicator="b")], 1,
       "communicator a: 1 of 1", "communicator b: 2 of 2")
expect(["{}"], 2, "is no flight record")
expect([json.dumps({**record(0, alike), "version": 2})], 2, "version 2")
print("seqpar.trace: all answers are right")
