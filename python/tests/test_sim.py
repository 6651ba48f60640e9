"""seqpar.sim with the program that SEQPAR_SIM names."""

import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "seqpar"))
import sim  # (only this file: the package would load the library)

rows = sim.run(records=True, machine="h200x8", nodes=[1, 2], tokens="16K", algo=["zigzag", "usp"], what_if=["net.gbs*=2"])
assert [(row["ranks"], row["algorithm"]) for row in rows] == [(8, "zigzag"), (8, "usp"), (16, "zigzag"), (16, "usp")], rows
assert all(0 < row["forward_us"] < row["step_us"] and row["size"] == 16384 for row in rows)
assert rows[1]["network_bytes"] == 0 < rows[3]["network_bytes"]

shapes = sim.run(records=True, nodes=1, tokens="16K", algo="mesh", inner=[2, 4], tokens_per_gpu=True)
assert [row["inner"] for row in shapes] == [2, 4] and shapes[0]["size"] == 8 * 16384

none = sim.run(records=True, nodes=2, scan="diag,64K", algo="doubling")
assert none == [], none  # refused
try:
    import pandas
except ImportError:
    pass
else:
    frame = sim.run(nodes=range(1, 3), tokens="16K", algo="zigzag")
    assert list(frame["ranks"]) == [8, 16] and frame["forward_us"].dtype == float, frame
    empty = sim.run(nodes=2, scan="diag,64K", algo="doubling")
    assert len(empty) == 0 and list(empty.columns) == list(frame.columns), empty

for options, part in (({"what_if": ["net.speed*=2"]}, "unknown key"), ({"algo": "none"}, "none"), ({"tokens": "1X"}, "1X"),
                      ({"nodes": 0}, "--nodes"), ({"nodes": []}, "--nodes"), ({"unknown": 1}, "--unknown"), ({"csv": "a"}, "csv"),
                      ({"help": True}, "help"), ({"measure": "a.json"}, "measure"), ({"scan": "diag,1K", "tokens": "8K"}, "--tokens"),
                      ({"trace": "/nonexistent/a.json"}, "--trace")):
    try:
        sim.run(**options)
    except ValueError as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"{options} is accepted")

page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text()
commands = [shlex.split(line, comments=True)[1:] for line in page.splitlines() if line.startswith("    seqpar_sim ")]
commands = [command for command in commands if not any("my_" in word for word in command)]  # those need a measurement
assert len(commands) >= 12, commands
with tempfile.TemporaryDirectory() as folder:  # some write files
    for command in commands:
        done = subprocess.run([os.path.abspath(sim.program()), *command], cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 3, (command, done.stdout)
    assert sorted(path.name for path in pathlib.Path(folder).iterdir()) == ["scaling.csv", "scaling.svg", "timeline.json"]

alone = subprocess.run([sim.program(), "--ranks", "1", "--ring", "1K"], stdout=subprocess.PIPE, text=True, check=True).stdout
assert " ring " in alone and "nan" not in alone, alone  # a step without neighbors takes no time

os.environ["SEQPAR_SIM"] = "/nonexistent/seqpar_sim"
try:
    sim.run()
except FileNotFoundError as error:
    assert "/nonexistent" in str(error)
else:
    raise AssertionError("a missing program is accepted")
del os.environ["SEQPAR_SIM"]
for package in ("lib/seqpar/python/seqpar", "lib/python3/dist-packages/seqpar", "."):  # installed trees, a wheel
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for each in ("bin", package):
            (root / each).mkdir(parents=True, exist_ok=True)
        own = root / "bin" / "seqpar_sim"
        own.write_text("#!/bin/sh\n")
        own.chmod(0o755)
        copied = shutil.copy(sim.__file__, root / package)
        spec = importlib.util.spec_from_file_location("sim_of_a_tree", copied)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.program() == str(own), (package, module.program())
print("seqpar.sim: all answers are right")
