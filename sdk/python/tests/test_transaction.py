import json
import unittest

from lucius import Command, InvalidError, Submission, Violation, submission_of, submit_tx

COMMAND = Command(tenant_id="tenant_a", request_type="doc.ingest", payload={"language": "en"},
                  input_ref={"uri": "s3://bucket/in.pdf"}, output_ref={"uri": "s3://bucket/out.json"})


class Cursor:
    """A cursor that gives one answer, and notes what it is asked."""

    def __init__(self, answer):
        self.answer, self.asked = answer, None

    def execute(self, query, params):
        self.asked = query, params

    def fetchone(self):
        return (self.answer,)


class RefusedError(Exception):
    """An error as psycopg raises it; psycopg2 has pgcode for sqlstate."""

    def __init__(self, state, detail, field="sqlstate"):
        super().__init__("refused")
        setattr(self, field, state)
        self.diag = type("Diagnostic", (), {"message_detail": detail})


class RefusingCursor(Cursor):
    """One whose database refuses the query."""

    def execute(self, query, params):
        raise self.answer


class MappingCursor(Cursor):
    """One whose rows are mappings, as an application may have set it."""

    def fetchone(self):
        return {"submit": self.answer}


class Transactions(unittest.TestCase):
    def test_a_command_is_submitted(self):
        cursor = Cursor("c-1")
        self.assertEqual(submit_tx(cursor, COMMAND), "c-1")
        query, (body,) = cursor.asked
        self.assertIn("lucius.submit(%s", query)
        self.assertEqual(json.loads(body), {
            "tenant_id": "tenant_a", "request_type": "doc.ingest", "schema_version": "1", "payload": {"language": "en"},
            "input_ref": {"uri": "s3://bucket/in.pdf"}, "output_ref": {"uri": "s3://bucket/out.json"}})

    def test_its_key_is_kept(self):
        cursor = Cursor("c-1")
        submit_tx(cursor, Command(**{**vars(COMMAND), "idempotency_key": "order-7"}))
        self.assertEqual(json.loads(cursor.asked[1][0])["idempotency_key"], "order-7")

    def test_one_that_can_never_be_a_job(self):
        detail = json.dumps({"code": "invalid_envelope", "status": 400, "errors": [{"pointer": "/payload", "message": "is required"}]})
        for error in (RefusedError("LC002", detail), RefusedError("LC002", detail, "pgcode"), Exception({"C": "LC002", "D": detail})):
            with self.assertRaises(InvalidError) as raised:
                submit_tx(RefusingCursor(error), COMMAND)
            self.assertEqual(raised.exception.code, "invalid_envelope")
            self.assertEqual(raised.exception.violations, [Violation("/payload", "is required")])
            self.assertIs(raised.exception.__cause__, error)
        for error in (RefusedError("42501", detail), RefusedError("LC002", "none"), RefusedError("LC002", "{}"), ValueError("odd"), KeyError()):
            with self.assertRaises(type(error)) as raised:
                submit_tx(RefusingCursor(error), COMMAND)
            self.assertIs(raised.exception, error)

    def test_what_became_of_it(self):
        raw = {"state": "refused", "problem": {"code": "payload_invalid", "detail": "No.", "errors": [{"pointer": "/p", "message": "m"}]},
               "job_id": None, "job_state": None, "final_output": None, "error_code": None, "error_message": None}
        cursor = Cursor(json.dumps(raw))
        self.assertEqual(submission_of(cursor, "c-1"), Submission(
            "refused", "payload_invalid", "No.", [Violation("/p", "m")], None, None, None, None, None))
        self.assertEqual(cursor.asked[1], ("c-1",))
        raw.update(state="accepted", problem=None, job_id="j", job_state="SUCCEEDED", final_output={"uri": "x"})
        self.assertEqual(submission_of(Cursor(json.dumps(raw)), "c-1"), Submission(
            "accepted", "", "", [], "j", "SUCCEEDED", {"uri": "x"}, None, None))
        raw.update(state="discarded", problem={"code": "payload_invalid", "detail": "No.", "discarded": "sent twice"}, job_id=None)
        self.assertEqual(submission_of(MappingCursor(json.dumps(raw)), "c-1").discarded, "sent twice")
        self.assertIsNone(submission_of(Cursor(None), "c-1"))
        self.assertEqual(submit_tx(MappingCursor("c-1"), COMMAND), "c-1")
