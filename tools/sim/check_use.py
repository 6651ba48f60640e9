#!/usr/bin/env python3
"""check_use.py PROGRAM FOLDER: wrong options of seqpar_sim are errors that name them; tables, timelines and plots are sound."""
import collections
import csv
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

PROGRAM, FOLDER = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
FOLDER.mkdir(exist_ok=True)
NAMED = {"broken.json": "{", "list.json": "[]", "model.json": '{"hidden": 64, "heads": 3, "kvHeads": 2, "headDim": 64, "softmaxLayers": 1}',
         "half.json": '{"hidden": 64.5, "heads": 2, "kvHeads": 2, "headDim": 64, "softmaxLayers": 1}', "points.csv": "algorithm,x,value\nzigzag,8\n"}
for name, text in NAMED.items():
    (FOLDER / name).write_text(text)


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=FOLDER)


# Arguments, and texts that the error must have: the option, the value, the expectation.
WRONG = (
    ("--nodes 0", "--nodes", "'0'", "1 to 4096"), ("--nodes 2,x", "--nodes", "'x'", "1 to 4096"), ("--nodes 4096", "--nodes", "32768", "4096"),
    ("--ranks -3", "--ranks", "'-3'", "1 to 4096"), ("--gpus-per-node 0", "--gpus-per-node", "'0'"), ("--ranks 4 --nodes 2", "--ranks", "--nodes"),
    ("--tokens nan", "--tokens", "nan"), ("--tokens 1X", "--tokens", "1X", "K, M, G"), ("--tokens 1.5", "--tokens", "1.5", "whole"),
    ("--tokens -8K", "--tokens"), ("--tokens 1e30", "--tokens", "1e30"), ("--tokens 64G", "--tokens", "at most"),
    ("--tokens 1000 --nodes 2", "--tokens", "1000", "multiple"), ("--machine nope", "--machine", "nope", "h200x8"),
    ("--machine broken.json", "--machine broken.json", "parse error"), ("--machine list.json", "--machine list.json", "object"),
    ("--machine .", "--machine ."), ("--model nope", "--model", "nope", "llama3-8b"), ("--model model.json", "kvHeads", "divisor of heads"),
    ("--model half.json", "hidden", "64.5", "whole number"), ("--model softmax:0x128", "softmax:0x128", "positive"),
    ("--model none:8x128", "none", "softmax"), ("--algo none", "--algo none", "zigzag"), ("--algo zeco", "--algo zeco", "zigzag"),
    ("--algo zigzag,", "--algo", "empty"), ("--inner=-1", "--inner", "'-1'"), ("--what-if net.speed=1", "--what-if", "net.speed", "unknown key"),
    ("--what-if net.gbs=0", "after --what-if", "net.gbs", "0", "from"), ("--what-if rank[8].rate*=0.5", "rank[8]", "0 to 7"),
    ("--what-if rank[1].rate*=0", "rank[1].rate*=0", "factor"), ("--scan diag", "--scan", "OP"), ("--scan none,1K", "--scan", "none", "diag"),
    ("--scan diag,1", "--scan", "4 or more"), ("--scan diag,1K,,2K", "--scan", "empty"), ("--scan diag,1K --algo zigzag", "--algo zigzag", "chain"),
    ("--scan diag,1K --ring 1K", "--scan", "--ring"), ("--scan diag,1K --tokens 8K", "--scan", "--tokens"), ("--exchange none,1K", "none", "to_heads"),
    ("--ring 1K --algo chain", "--ring", "--algo"), ("--calls 2", "--calls", "--scan"), ("--ring 1K --calls 0", "--calls", "'0'"),
    ("--pass both", "--pass", "both", "step"), ("--csv none/rows.csv", "--csv", "none/rows.csv"), ("--trace .", "--trace ."),
    ("--csv a --plot a", "--csv", "--plot", "same file"), ("--trace-ranks 4", "--trace-ranks", "--trace"), ("--plot-value time", "--plot-value"),
    ("--published points.csv", "--published", "--plot"), ("--plot a.svg --published points.csv --algo zigzag", "--published", "zigzag,8"),
    ("--measure-gpus 2", "--measure"), ("--measure a --nodes 2", "--measure", "--nodes"), ("--unknown", "--unknown"))
for text, *parts in WRONG:
    done = run(*text.split())
    message = done.stderr + done.stdout
    missing = [part for part in parts if part not in message]
    if done.returncode not in (1, 2) or missing:
        sys.exit(f"{text}: exit status {done.returncode}, without {missing}:\n{message}")
    if (FOLDER / "a").exists() or (FOLDER / "a.svg").exists():
        sys.exit(f"{text}: a file was written")

# A step of a hybrid model on two nodes: rows and the timeline.
done = run("--nodes", 2, "--tokens", "32K", "--model", "hybrid-8b", "--csv", "rows.csv", "--trace", "trace.json", "--trace-ranks", 3,
           "--plot", "all.svg")
if done.returncode != 0:
    sys.exit(done.stderr)
for row in csv.DictReader(open(FOLDER / "rows.csv")):
    number = {key: float(value) for key, value in row.items() if key not in ("operation", "algorithm")}
    ok = 0 < number["forward_us"] < number["step_us"] and 0 <= number["forward_exposed_us"] <= number["forward_us"]
    ok = ok and 0 <= number["step_exposed_us"] <= number["step_us"] and 0 <= number["waiting_us"] <= number["step_us"]
    if not ok or number["tokens_s_gpu"] <= 0:
        sys.exit(f"impossible numbers: {row}")

tracks, processes, threads = collections.defaultdict(list), {}, set()
for event in json.loads((FOLDER / "trace.json").read_text())["traceEvents"]:
    if event["ph"] == "X":
        tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"], event["name"]))
    elif event["name"] == "process_name":
        processes[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
        threads.add((event["pid"], event["tid"]))
if len(processes) != 6 or len(set(processes.values())) != 6 or set(tracks) != threads or {pid for pid, _ in tracks} != set(processes):
    sys.exit(f"processes {processes}, threads {threads}, tracks {set(tracks)}")
for track, spans in tracks.items():
    end = 0
    for begin, duration, name in sorted(spans):
        if begin < end - 1e-6 or duration < 0 or not name:
            sys.exit(f"track {track}: {name} from {begin} for {duration} us, after one that ends at {end}")
        end = begin + duration
if run("--ranks", 2, "--exchange", "shift,64K", "--trace", "shift.json").returncode != 0:
    sys.exit("--trace of an exchange fails")
if "seqparSendRecv" not in (FOLDER / "shift.json").read_text():
    sys.exit("the timeline of an exchange is empty")

# Volumes that follow from the algorithms.
rows = {}
for calls in (1, 5):
    run("--ranks", 4, "--exchange", "allgather,1M", "--calls", calls, "--csv", "volume.csv")
    rows[calls] = float(next(csv.DictReader(open(FOLDER / "volume.csv")))["node_bytes"])
if rows[1] != rows[5] or rows[1] != 3 * (1 << 20) / 4:
    sys.exit(f"an all-gather of 1 MiB among 4 ranks sends {rows} bytes a rank by number of calls, expected 786432")
run("--ranks", 8, "--tokens", "64K", "--model", "llama3-8b", "--algo", "ring,ulysses", "--mask", "full", "--pass", "forward", "--csv", "volume.csv")
sent = {row["algorithm"]: float(row["node_bytes"]) for row in csv.DictReader(open(FOLDER / "volume.csv"))}
shard = 8192 * 128 * 2  # tokens x dim x bytes of one head
expected = {"ring": 7 * 2 * 8 * shard, "ulysses": 7 / 8 * ((32 + 2 * 8 + 32) * shard + 8192 * 32 * 4)}  # with lse
if sent != expected:
    sys.exit(f"bytes of a forward {sent}, expected {expected}")

NAMESPACE = "{http://www.w3.org/2000/svg}"
run("--nodes", "1,2", "--tokens", "32K", "--algo", "ring_self_attention", "--inner", "0,4", "--plot", "wide.svg")
root = xml.etree.ElementTree.parse(FOLDER / "wide.svg").getroot()
names = [text for text in root.findall(NAMESPACE + "text") if "inner=" in text.text]
if not names or any(float(text.get("x")) + 7.2 * len(text.text) > float(root.get("width")) for text in names):
    sys.exit("the legend of a plot is wider than the plot")
print(f"{len(WRONG)} errors, {len(tracks)} tracks, volumes and plots are right")
