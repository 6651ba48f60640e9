"""Reads flight records and names the first call that differs between ranks.

    python -m seqpar.trace seqpar.*.json

A rank writes its record, the last 1024 calls of a communicator, to SEQPAR_TRACE_FILE when the communicator fails. Pass
the files of all ranks. This file needs only Python: it may be copied to the records and run as a script. The exit
status is 0 if no rank differs, 1 if some do, 2 for files that are not records.
"""

import argparse
import collections
import json
import pathlib
import sys


def read(paths):
    """{communicator: {rank: record}}"""
    communicators = collections.defaultdict(dict)
    for path in paths:
        try:
            record = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            if record["version"] != 1:
                raise ValueError(f"version {record['version']}, expected 1")
            communicators[record["communicator"]][record["rank"]] = record
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"seqpar.trace: {path} is no flight record: {error}") from error
    return communicators


def collectives(record):
    """{number: call} of the calls that all ranks must issue in the same order."""
    return {call["collective"]: call for call in record["calls"] if call["collective"] > 0}


def signature(call):
    """The part of a call that must be equal on all ranks."""
    return (call["call"], tuple(call["values"].items()))


def in_words(call, beside=None):
    """A call; of its values only those that differ from the reference call `beside`."""
    values = call["values"]
    if beside is not None and beside["call"] == call["call"]:
        values = {name: value for name, value in values.items() if beside["values"].get(name) != value}
    return call["call"] + (" with " + ", ".join(f"{name} {value}" for name, value in values.items()) if values else "")


def returned(call):
    """Whether the rank returned from the call and continued."""
    return call["returned_ns"] is not None and not call["failed"]


def state(call):
    if call["failed"]:
        return "failed"
    if not returned(call):
        return "has not returned"
    if call["operations"] > call["ended"] and call["begun_ns"] is not None:
        return "has started on its stream and is not finished"
    return "returned"


def list_ranks(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def groups(calls):
    """[(ranks, call)] of equal calls, the most common first."""
    found = collections.defaultdict(list)
    for rank, call in calls.items():
        found[signature(call)].append(rank)
    order = sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))
    return [(ranks, calls[ranks[0]]) for ranks in order]


def first_difference(records):
    """Lines about the first call that differs between ranks; [] if none does.

    A rank that is still in an earlier call does not differ: it waits. A rank that returned from it without the next
    call does.
    """
    of_rank = {rank: collectives(record) for rank, record in sorted(records.items())}
    latest = {rank: max(calls, default=0) for rank, calls in of_rank.items()}
    last = {rank: calls.get(latest[rank]) for rank, calls in of_rank.items()}
    left = {rank for rank, call in last.items() if call is None or returned(call)}
    first = min((min(calls) for calls in of_rank.values() if calls), default=1)
    for number in range(first, max(latest.values(), default=0) + 1):
        calls = {rank: of_rank[rank][number] for rank in of_rank if number in of_rank[rank]}
        found = groups(calls)
        behind = [rank for rank in of_rank if latest[rank] < number]
        if len(found) < 2 and not left.intersection(behind):
            continue
        lines = [f"the first call in which ranks differ is collective {number}:"]
        for ranks, call in found:
            beside = next((other for _, other in found if other is not call and other["call"] == call["call"]), None)
            states = sorted({state(calls[rank]) for rank in ranks})
            lines.append(f"  {list_ranks(ranks)}: {in_words(call, beside)} ({'; '.join(states)})")
        for rank in behind:
            after = f"its last was collective {latest[rank]}, {last[rank]['call']}, which {state(last[rank])}" if last[rank] else "it issued none"
            lines.append(f"  rank {rank} issued no such call; {after}")
        forgotten = [rank for rank in of_rank if rank not in calls and latest[rank] >= number]
        if forgotten:
            lines.append(f"  no longer in the record of {list_ranks(forgotten)}, far ahead")
        return lines
    return []


def waiting(records):
    """Lines about calls that ranks had not returned from."""
    stuck = {}
    for rank, record in sorted(records.items()):
        if record["calls"] and not returned(record["calls"][-1]):
            call = record["calls"][-1]
            stuck.setdefault((call["collective"], call["call"], state(call)), []).append(rank)
    return [f"  {list_ranks(ranks)}: {f'collective {number}, ' if number else ''}{call}, which {how}"
            for (number, call, how), ranks in stuck.items()]


def report(communicator, records):
    """Lines about one communicator, and whether ranks differ."""
    size = next(iter(records.values()))["ranks"]
    lines = [f"communicator {communicator}: {len(records)} of {size} ranks"]
    missing = [rank for rank in range(size) if rank not in records]
    if missing:
        lines.append(f"  no record of {list_ranks(missing)}: killed, or not given here")
    for rank, record in sorted(records.items()):
        lines.append(f"  rank {rank}: {record['recorded']} calls; {record['reason']}")
    difference = first_difference(records)
    if difference:
        return lines + difference, True
    return lines + ["no rank differs in its collective calls", *waiting(records)], False


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m seqpar.trace", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="flight records of one job, one per rank")
    differs = False
    for communicator, records in sorted(read(parser.parse_args(arguments).files).items()):
        lines, here = report(communicator, records)
        print("\n".join(lines))
        differs = differs or here
    return int(differs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            sys.exit(2)
        raise
