"""examples/train_gla.py by one and by two ranks of a sequence, and the code blocks of docs/pytorch.md, in order."""

import csv
import pathlib
import re
import sys
import tempfile
import unittest

import venvs

ROOT = venvs.ROOT


class Training(unittest.TestCase):
    def losses(self, folder, name, ranks, *arguments):
        log = folder / f"{name}.csv"
        statuses, output = venvs.run_ranks(ranks, [ROOT / "examples" / "train_gla.py", "--steps", "6", "--log", log,
                                                        "--tokens", "251", *arguments])
        self.assertEqual(statuses, [0] * ranks, output)
        self.assertIn("tokens/s", output)
        with open(log) as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]

    def test_sequence_parallelism_does_not_change_the_losses(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            picture = folder / "losses.png"
            one = self.losses(folder, "one", 1, "--plot", picture)
            two = self.losses(folder, "two", 2, "--sp", "2")
            local = self.losses(folder, "local", 2, "--sp", "2", "--algorithm", "local")
            self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            self.assertLess(one[-1], one[0])
            # What rounding makes of them, against what forgetting the state at the shard's border does.
            rounding = max(abs(a - b) for a, b in zip(one, two))
            forgetting = max(abs(a - b) for a, b in zip(one, local))
            print(f"losses {one}\ndifference by sharding {rounding:.2e}, without the exchange {forgetting:.2e}")
            self.assertLess(abs(one[0] - two[0]), 16 * 2.0 ** -24 * one[0] * 251 ** 0.5)
            self.assertLess(rounding, forgetting / 10)


class Documentation(unittest.TestCase):
    def test_code_blocks_run(self):
        text = (ROOT / "docs" / "pytorch.md").read_text()
        blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
        self.assertGreater(len(blocks), 3)
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write("\n".join(blocks))
            program.flush()
            statuses, output = venvs.run_ranks(2, [program.name])
        self.assertEqual(statuses, [0, 0], output)


if __name__ == "__main__":
    venvs.interpreter()
    unittest.main(verbosity=2)
