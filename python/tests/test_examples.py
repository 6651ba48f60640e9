"""The training examples on one and on two ranks of a sequence, and the code blocks of the documents, page by page."""

import csv
import pathlib
import subprocess
import tempfile
import unittest

import doc_blocks
import venvs

ROOT = venvs.ROOT


class Training(unittest.TestCase):
    def losses(self, example, folder, ranks, *arguments):
        log = folder / f"{len(list(folder.iterdir()))}.csv"
        statuses, output = venvs.run_ranks(ranks, [ROOT / "examples" / example, "--steps", "6", "--log", log, "--tokens", "125",
                                                   *arguments])
        self.assertEqual(statuses, [0] * ranks, output)
        self.assertRegex(output, r"step +5 +loss [\d.]+ +\d+ tokens/s +\d+ MiB")
        with open(log) as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]

    def test_sequence_parallelism_does_not_change_the_losses(self):
        for example in ("train_gla.py", "train_gpt.py", "hybrid.py", "train_hybrid_gdn.py", "train_hybrid_mamba.py",
                        "train_shared_prefix.py", "swa_halo.py", "finetune_hf.py"):
            with self.subTest(example), tempfile.TemporaryDirectory() as name:
                one = self.losses(example, pathlib.Path(name), 1)
                two = self.losses(example, pathlib.Path(name), 2, "--sp", "2")
                others = [two]
                if example == "train_gla.py":  # data parallel: the same sequences, one per rank
                    others.append(self.losses(example, pathlib.Path(name), 2, "--batch", "1"))
                difference = max(abs(a - b) for other in others for a, b in zip(one, other))
                print(f"{example}: losses {one}\ndifference by sharding {difference:.2e}")
                self.assertLess(one[-1], one[0])
                self.assertLess(abs(one[0] - two[0]), 16 * 2.0 ** -24 * one[0] * 125 ** 0.5)
                # One curve: the difference is rounding, which Adam magnifies, and less than the progress of six steps.
                self.assertLess(difference, (one[0] - one[-1]) / 50)

    def test_impossible_options_are_named(self):
        for example, arguments, text in (("train_gla.py", ("--sp", "2"), "--sp is 2, expected a divisor of the 1 ranks"),
                                         ("train_gla.py", ("--tokens", "1"), "--tokens is 1, expected at least 2"),
                                         ("train_gpt.py", ("--heads", "3"), "--width is 64, expected a multiple of 6"),
                                         ("train_gpt.py", ("--heads", "2", "--kv-heads", "4"), "--kv-heads is 4, expected a divisor"),
                                         ("train_gla.py", ("--data", "/nowhere"), "--data is /nowhere, expected a file"),
                                         ("train_gla.py", ("--data", __file__, "--tokens", "999999"), "expected at least the 999999 --tokens")):
            with self.subTest(arguments):
                statuses, output = venvs.run_ranks(1, [ROOT / "examples" / example, *arguments])
                self.assertEqual(statuses, [1], output)
                self.assertIn(text, output)
                self.assertNotIn("Traceback", output)

    def test_training_continues_without_killed_ranks(self):
        with tempfile.TemporaryDirectory() as name:
            losses, ends = [], []
            for number, (ranks, kill, seed) in enumerate(((1, 0, 0), (3, 2, 1), (2, 1, 3))):
                log = pathlib.Path(name) / f"{number}.csv"
                # The seed of the kills only: parameters and batches have --seed 0.
                done = subprocess.run((venvs.interpreter(), ROOT / "examples" / "elastic.py", "--ranks", str(ranks), "--kill", str(kill),
                                       "--kill-seed", str(seed), "--steps", "8", "--tokens", "125", "--log", log), timeout=600,
                                      env=venvs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertEqual(done.stdout.count("is killed at"), kill, done.stdout)
                with open(log) as file:
                    losses.append([float(row["loss"]) for row in csv.DictReader(file)])
                ends.append(done.stdout)
            for others, output in zip(losses[1:], ends[1:]):
                self.assertEqual(len(others), 8, output)
                for one, other in zip(losses[0], others):
                    # The order of sums in fp32 differs with the number of ranks.
                    self.assertLess(abs(one - other), 1e-5 * one, output)

    def test_other_ranks_outlive_processes_that_end(self):
        done = subprocess.run((venvs.interpreter(), ROOT / "python" / "tests" / "torch_exits.py", "return", "exception", "sys_exit", "shrink_kill"),
                              timeout=600, env=venvs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_lost_state_is_visible_and_plot_is_drawn(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            picture = folder / "losses.png"
            one = self.losses("train_gla.py", folder, 1, "--plot", picture)
            local = self.losses("train_gla.py", folder, 2, "--sp", "2", "--algorithm", "local")
            log = folder / "baseline.csv"
            statuses, output = venvs.run_ranks(2, [ROOT / "examples" / "train_gla.py", "--steps", "6", "--tokens", "126", "--sp", "2",
                                                   "--baseline", "--log", log])
            self.assertEqual(statuses, [0, 0], output)
            self.assertRegex(output, r"1 per sequence of 63 tokens(?s:.*)2 per sequence of 126 tokens(?s:.*)"
                                     r"\n\d+\.\d{4} of the \d+ tokens/s per rank of data parallelism")
            self.assertEqual(len(log.read_text().splitlines()), 7)
            self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            self.assertGreater(abs(one[0] - local[0]), 64 * 2.0 ** -24 * one[0] * 125 ** 0.5)


class Documentation(unittest.TestCase):
    def test_code_blocks_run(self):
        pages = {page: venvs.code_of(page) for page in ("pytorch.md", "sharding.md", "coming_from.md")}
        quickstart = (ROOT / "examples" / "quickstart_torch.py").read_text()
        blocks = {" ".join(block): doc_blocks.program_of(*block) for block in doc_blocks.BLOCKS}
        for page, code in {**pages, "quickstart_torch.py": quickstart, **blocks}.items():
            with self.subTest(page), tempfile.NamedTemporaryFile("w", suffix=".py") as program:
                program.write(code)
                program.flush()
                ranks = 3 if page == "coming_from.md" else 2
                statuses, output = venvs.run_ranks(ranks, [program.name])
                self.assertEqual(statuses, [0] * ranks, output)


if __name__ == "__main__":
    venvs.interpreter()
    unittest.main(verbosity=2)
