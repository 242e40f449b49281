"""A server for tests: it answers by a script, and keeps what it was asked."""

import json
import os
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


class Request:
    """One request: its path, its query, its headers and its JSON."""

    def __init__(self, method, target, headers, body):
        parts = urlsplit(target)
        self.method, self.path, self.query = method, parts.path, dict(parse_qsl(parts.query))
        self.tags = [value for name, value in parse_qsl(parts.query) if name == "tag"]
        self.headers, self.body = headers, body


class Fake:
    """``answer`` takes a request and returns status and JSON, with headers if it likes. An error is a problem by default.

    After an answer with a Transfer-Encoding the connection is reset, or closed if it says so.
    """

    def __init__(self, answer):
        self.requests = []
        self.answer = answer
        guard = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                request = Request(self.command, self.path, self.headers, body)
                with guard:
                    fake.requests.append(request)
                status, content, *headers = fake.answer(request)
                if status == 0:  # No answer.
                    self.close_connection = True
                    return
                encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                given = dict(*headers)
                if status >= 400 and encoded is not content:
                    given.setdefault("Content-Type", "application/problem+json")
                for name, value in given.items():
                    self.send_header(name, value)
                if "Transfer-Encoding" not in given:
                    self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)
                if "Transfer-Encoding" in given:
                    if "Connection" not in given:
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    os.close(self.connection.detach())

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # A client that hangs up.
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Queue(Fake):
    """A server with a queue: each payload is one task, handed out once.

    ``refuse`` takes the body of a completion, and returns None or a status and a problem. A
    batch as a whole is refused if ``refuse`` refuses it. ``accepts`` says whether the token
    of a request is accepted.
    """

    def __init__(self, *payloads, lease=60, beat=None, refuse=lambda body: None, accepts=lambda request: True):
        self.waiting = [self._item(i, p, lease) for i, p in enumerate(payloads)]
        self.reports = []
        self.batches = []
        self.done = threading.Event()
        guard = threading.Lock()

        def report(verb, body):
            self.reports.append((verb, body))
            if len(self.reports) >= len(payloads):
                self.done.set()
            return 200, {"rev": body["expected_rev"] + 1}

        def result(item):
            status, content = refuse(item) or report("complete", item)
            return {"work_id": item["work_id"], "status": status, **({"error": content} if status >= 400 else content)}

        def answer(request):
            if not accepts(request):
                return 401, {"code": "unauthenticated", "detail": "The token has expired."}
            with guard:
                if request.path == "/v1/work:claim":
                    taken, self.waiting = self.waiting[:request.body["max"]], self.waiting[request.body["max"]:]
                    if taken:
                        return 200, {"items": taken}
                elif request.path == "/v1/work:complete":
                    items = request.body["items"]
                    self.batches.append(len(items))
                    return refuse(request.body) or (200, {"results": [result(item) for item in items]})
                else:
                    work_id, verb = request.path[len("/v1/work/"):].split(":")
                    if verb == "heartbeat":
                        return 200, {**self._item(0, {}, lease), "work_id": work_id, **(beat or {})}
                    return verb == "complete" and refuse(request.body) or report(verb, request.body)
            self.done.wait(0.02)
            return 200, {"items": []}

        super().__init__(answer)

    @staticmethod
    def _item(index, payload, lease):
        return {
            "work_id": f"w{index}", "rev": 2, "updated_at": "2026-01-27T10:00:00.000Z",
            "lease": {"expires_at": f"2026-01-27T10:{lease // 60:02d}:{lease % 60:02d}.000Z"},
            "directive": {"jobId": f"job{index}", "stepId": "extract", "tenant_id": "tenant_a", "step_type": "EXTRACT",
                          "service": "extract", "attempt_no": 1, "payload": payload, "traceparent": None,
                          "input_ref": {"uri": "s3://bucket/in.pdf"}},
        }
