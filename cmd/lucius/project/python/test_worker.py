"""Tests of the worker's handlers, without a server: python3 -m unittest"""
import unittest

from lucius import Task

from worker import worker


class Worker(unittest.TestCase):
    def test_extract(self):
        outcome = worker.do(Task.of("EXTRACT", input_ref={"uri": "s3://bucket/report.pdf"}))
        self.assertEqual(outcome.result, {"uri": "s3://bucket/report.pdf.txt"})

    def test_summarize(self):
        outcome = worker.do(Task.of("SUMMARIZE", {"words": 100}, input_ref={"uri": "s3://bucket/text"}))
        self.assertEqual(outcome.result, {"uri": "s3://bucket/text.summary", "words": 100})

    def test_a_long_summary_fails_for_good(self):
        outcome = worker.do(Task.of("SUMMARIZE", {"words": 20_000}, input_ref={"uri": "s3://bucket/text"}))
        self.assertEqual((outcome.code, outcome.retryable), ("TOO_LONG", False))

    def test_publish(self):
        outcome = worker.do(Task.of("PUBLISH", output_ref={"uri": "s3://bucket/out"}))
        self.assertEqual(outcome.result, {"uri": "s3://bucket/out"})


if __name__ == "__main__":
    unittest.main()
