import enum
import sys
import unittest
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import ModuleType
from typing import Any, Dict, List, Literal, Mapping, NewType, Optional, Sequence, Set, Tuple, TypedDict, Union
from unittest.mock import patch

from lucius import CANCELLED, Final, Outcome, RetryAfter, Task, Worker
from lucius._payload import decoder

from .fake import Queue
from . import typed_worker


class Color(enum.Enum):
    RED = "red"


Id = NewType("Id", str)


@dataclass
class Node:
    children: List["Node"]
    id: Id = Id("")


@dataclass
class Everything:
    any: Any = None
    literal: Literal["a", 1] = "a"
    either: Union[int, List[str]] = 1
    color: Color = Color.RED
    pair: Tuple[int, str] = (1, "")
    many: Tuple[int, ...] = ()
    sequence: Sequence[float] = ()
    by_name: Mapping[str, bool] = field(default_factory=dict)
    nothing: None = None
    maybe: Optional[int] = None
    derived: int = field(default=0, init=False)


class Typed(unittest.TestCase):
    def done(self, step_type, payload):
        outcome = typed_worker.worker.do(Task.of(step_type, payload, input_ref={"uri": "u"}))
        return outcome.result or (outcome.code, outcome.message, outcome.retryable)

    def test_a_handler_gets_its_payload(self):
        self.assertEqual(self.done("EXTRACT", {"words": 3, "pages": [{"number": 1, "title": None}], "other": 1}), {"uri": "u.txt", "words": 4})
        self.assertEqual(self.done("SUMMARIZE", {"language": "en", "other": 1}), {"uri": "en", "words": 0})
        self.assertEqual(self.done("HALVE", {"n": 4}), {"uri": "half:2"})

    def test_a_payload_that_does_not_fit_fails_for_good(self):
        for step_type, payload, message in (
            ("EXTRACT", {}, "/words: is missing"),
            ("EXTRACT", {"words": "three"}, "/words: must be an integer"),
            ("EXTRACT", {"words": True}, "/words: must be an integer"),
            ("EXTRACT", {"words": 1, "pages": [{"number": 1}, {"number": None}]}, "/pages/1/number: must be an integer"),
            ("EXTRACT", {"words": -1}, "words must not be negative"),
            ("SUMMARIZE", {"language": "en", "words": 1.5}, "/words: must be an integer"),
            ("HALVE", {"n": 3}, "3 is odd"),
        ):
            with self.subTest(payload=payload):
                self.assertEqual(self.done(step_type, payload), ("payload_invalid", message, False))

    def test_do_reports_as_run_does(self):
        worker = Worker("extract")

        @worker.step("EXTRACT")
        def extract(task):
            if task.cancelled.is_set():
                raise RuntimeError("it is late")
            if task.attempt == 1:
                raise RetryAfter(30, "BUSY", "It is busy.")
            return {"uri": f"{task.job_id}/{task.tenant_id}"}
        self.assertEqual(worker.do(Task.of("EXTRACT")), Outcome(None, "BUSY", "It is busy.", True, 30))
        self.assertEqual(worker.do(Task.of("EXTRACT", attempt=2, jobId="j1")), Outcome({"uri": "j1/tenant"}))
        late = Task.of("EXTRACT")
        late.cancelled.cancel(CANCELLED)
        self.assertEqual(worker.do(late), Outcome(None, "cancelled", "RuntimeError: it is late"))
        self.assertEqual(worker.do(Task.of("OCR")).code, "step_type_unknown")

    def test_annotations_are_what_json_has(self):
        decode = decoder(Everything)
        got = decode({"either": ["x"], "color": "red", "pair": [1, "a"], "many": [1, 2], "sequence": [1, 2.5], "by_name": {"a": True}, "literal": 1})
        self.assertEqual((got.either, got.color, got.pair, got.many, got.sequence, got.by_name, got.literal),
                         (["x"], Color.RED, (1, "a"), (1, 2), [1.0, 2.5], {"a": True}, 1))
        for payload, message in (
            ({"literal": True}, "/literal: must be one of 'a', 1"), ({"either": None}, "/either: must be one of int, list"),
            ({"color": "blue"}, "/color: must be one of 'red'"), ({"pair": [1]}, "/pair: must have 2 items"),
            ({"many": {}}, "/many: must be an array"), ({"by_name": {"a/b": 1}}, "/by_name/a~1b: must be a boolean"),
            ({"by_name": []}, "/by_name: must be an object"), ({"nothing": 0}, "/nothing: must be null"),
            ({"maybe": "1"}, "/maybe: must be an integer"), ([], "must be an object"),
        ):
            with self.subTest(payload=payload), self.assertRaises(Final) as raised:
                decode(payload)
            self.assertTrue(raised.exception.message.startswith(message), raised.exception.message)

    def test_an_error_of_the_program_is_no_payload(self):
        @dataclass
        class Wrong:
            field: "Missing"  # noqa: F821
        with self.assertRaises(NameError):
            Worker("extract").step("EXTRACT", payload=Wrong)(lambda task, payload: None)

    def test_a_type_that_json_does_not_have_is_refused(self):
        class Bill(TypedDict):
            due: Optional[List[datetime]]

        @dataclass
        class Inner:
            due: Dict[int, str]

        @dataclass
        class Outer:
            inner: Tuple[Inner, ...]
        for kind in (datetime, Set[str], Union[str, Decimal], bytes):
            @dataclass
            class Payload:
                due: kind
            with self.subTest(kind=kind), self.assertRaisesRegex(TypeError, "Payload.due has the type .* annotate it as"):
                Worker("extract").step("EXTRACT", payload=Payload)(lambda task, payload: None)
        for payload, message in ((Bill, "Bill.due has the type datetime"), (Outer, "Inner.due has keys of type int")):
            with self.subTest(payload=payload), self.assertRaisesRegex(TypeError, message):
                decoder(payload)

    def test_types_may_contain_themselves_and_have_other_names(self):
        decode = decoder(Node)
        self.assertEqual(decode({"children": [{"children": [], "id": "a"}]}), Node([Node([], Id("a"))]))
        with self.assertRaisesRegex(Final, "/id: must be a string"):
            decode({"children": [], "id": 1})

    def test_aliases_may_contain_themselves(self):
        forms = ['Json = typing.Union[typing.Dict[str, "Json"], typing.List["Json"], str]\n']
        if sys.version_info >= (3, 12):
            forms.append("type Json = dict[str, Json] | list[Json] | str\n")
        for form in forms:
            module = ModuleType("recursive")  # Where the names of its types are looked up.
            with self.subTest(form), patch.dict(sys.modules, {module.__name__: module}):
                exec("import dataclasses, typing\n" + form + "@dataclasses.dataclass\nclass Given:\n    tree: Json\n", module.__dict__)
                tree = {"a": ["b", {"c": "d"}]}
                self.assertEqual(decoder(module.Given)({"tree": tree}).tree, tree)

    def test_middleware_sees_the_task(self):
        queue, seen = Queue({"words": 3}), []
        self.addCleanup(queue.close)

        def middleware(task, call):
            seen.append(task.payload)
            return call(task)
        worker = Worker("extract", url=queue.url, middleware=[middleware])

        @worker.step("EXTRACT", payload=typed_worker.Extract)
        def extract(task, payload):
            worker.stop()
            return {"uri": f"words:{payload.words}"}
        worker.run()
        self.assertEqual((seen, queue.reports[0][1]["result_ref"]), ([{"words": 3}], {"uri": "words:3"}))


if __name__ == "__main__":
    unittest.main()
