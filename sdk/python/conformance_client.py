"""The conformance client: sdk/conformance/README.md says what it does."""

import threading
import time
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from lucius import Client, Command, ConflictError, Final, InvalidError, NotFoundError, ProblemError, TimedOutError, Worker

TENANT = "tenant_" + uuid.uuid4().hex[:8]
asked = threading.Event()  # A handler waits: until it is cancelled in the first attempt.
worker = Worker(service="conformance", claim_wait=1)


@worker.step("CONFORM")
def conform(task):
    if task.payload["do"] == "fail":
        raise Final("CONFORMANCE_FINAL", "told to fail")
    if task.payload["do"] == "wait":
        asked.set()
        task.cancelled.wait(60)
        task.raise_if_cancelled()
    return {"uri": f"conformance://{task.job_id}/{task.attempt}"}


def command(do, request_type="sdk.conform", doc_id=None, tags=None, **more):
    return Command(tenant_id=TENANT, request_type=request_type, payload={"do": do, **more}, doc_id=doc_id, tags=tags,
                   input_ref={"uri": "conformance://in"}, output_ref={"uri": "conformance://out"})


def story(client):
    # 1
    first, second = client.submit(command("succeed")), client.submit(command("succeed"))
    assert second.replayed and second.job_id == first.job_id, (first, second)
    job = client.wait(first.job_id, timeout=60)
    assert job.succeeded and job.final_output["uri"] == f"conformance://{job.job_id}/1", job
    history, watched = list(client.history(job.job_id)), list(client.watch(job.job_id))
    assert [e.event_id for e in history] == [e.event_id for e in watched], (history, watched)
    assert [e.to for e in history if e.raw["object"] == "job"][-1] == "SUCCEEDED"

    # 2
    doc_id, tags = "conformance doc", {"env": "test", "a.key": "4=2 & more"}
    good, bad = client.submit_batch([command("succeed", n=2, doc_id=doc_id, tags=tags), command("succeed", request_type="unknown")])
    assert isinstance(bad, ProblemError) and bad.code == "unknown_request_type", bad
    assert client.wait(good.job_id, timeout=60).succeeded

    # 3
    waiting = client.submit(command("wait")).job_id
    watch = client.watch(waiting)
    assert next(watch).type == "job.accepted"
    assert asked.wait(60)
    try:
        client.wait(waiting, timeout=0.2)
        raise AssertionError("the wait did not time out")
    except TimedOutError:
        pass
    assert client.pause(waiting, "to see").state == "PAUSING"
    assert client.resume(waiting).state == "IN_PROGRESS"
    assert client.cancel(waiting, "seen").state == "CANCELLING"
    assert [e.to for e in watch if e.ends_job] == ["CANCELLED"]
    assert client.get(waiting).state == "CANCELLED"

    # 4
    asked.clear()
    again = client.rerun(waiting, from_="start", reason="once more")
    assert again.job_id != waiting
    assert asked.wait(60)
    client.cancel(again.job_id)
    assert client.wait(again.job_id, timeout=60).state == "CANCELLED"

    # 5
    listed = [job.job_id for job in client.list(tenant_id=TENANT, page_size=2)]
    assert listed == [again.job_id, waiting, good.job_id, first.job_id], listed
    for found in client.list(tenant_id=TENANT, doc_id=doc_id), client.list(tenant_id=TENANT, tags=tags):
        assert [(job.job_id, job.doc_id, job.tags) for job in found] == [(good.job_id, doc_id, tags)]
    assert not list(client.list(tenant_id=TENANT, doc_id=doc_id, tags={"env": "prod"}))

    # 6
    try:
        client.get(str(uuid.uuid4()))
        raise AssertionError("the job was found")
    except NotFoundError as error:
        assert (error.status, error.code) == (404, "job_not_found"), error

    # 7
    strict = Command(TENANT, "sdk.strict", {"wrods": 3}, {"uri": "conformance://in"}, {"uri": "conformance://out"})
    refused("misspelt", lambda: client.submit(strict))


def refused(what, call):
    """Print the refusal of a payload with a misspelt key."""
    try:
        call()
    except InvalidError as error:
        assert [v.pointer for v in error.violations] == ["/payload/words", "/payload/wrods"], error
        print(f"{what}:", error)
        return
    raise AssertionError(f"{what}: it was taken")


def descends(client, job_id, *jobs):
    """Compare the lineage of a job."""
    lineage = client.lineage(job_id)
    found = [(j.job_id, j.rerun_of, j.first_step, j.rerun_edits, j.state, j.error_code, j.reason) for j in lineage.jobs]
    assert (found, lineage.truncated) == (list(jobs), False), lineage


def plans(client, job_id, request, existing):
    """Compare the plan of the rerun of part 9."""
    plan = client.plan_rerun(job_id, **request)
    steps = [(s.step_id, s.step_type, s.service, s.outcome) for s in plan.steps]
    changes = [(c.pointer, c.before, c.after) for c in plan.changes]
    assert (plan.job_id, plan.live, plan.existing_job_id, plan.protocol_id) == (job_id, False, existing, "corrected_v1"), plan
    assert steps == [("scan", "CONFORM", "conformance", "resolved"), ("print", "CONFORM", "conformance", "")], plan
    assert changes == [("/payload/do", "fail", "succeed")], plan


def corrections(client):
    # 8
    submitted = client.submit(command("fail", request_type="sdk.corrected", tags={"env": "test"}, words=3))
    failed = client.wait(submitted.job_id, timeout=60).job_id
    refused("wrong patch", lambda: client.rerun(failed, payload_patch={"words": None, "wrods": 3}))
    first = (failed, "", "scan", [], "FAILED_FINAL", "CONFORMANCE_FINAL", "")
    descends(client, failed, first)

    # 9
    by_hand = {"uri": "conformance://by-hand"}
    request = {"payload_patch": {"do": "succeed"}, "resolve": [{"step_id": "scan", "output_ref": by_hand}],
               "tags": {"run": "second"}, "reason": "scanned by hand"}
    plans(client, failed, request, "")
    descends(client, failed, first)
    job = client.wait(client.rerun(failed, **request).job_id, timeout=60)
    assert (job.state, job.tags) == ("SUCCEEDED", {"env": "test", "run": "second"}), job
    scan, printed = job.steps
    assert (scan.outcome, scan.raw["output_ref"], printed.raw["input_ref"]) == ("resolved", by_hand, by_hand), job.steps
    again = client.rerun(failed, **request)
    assert again.replayed and again.job_id == job.job_id, again
    plans(client, failed, request, job.job_id)
    descends(client, failed, first, (job.job_id, failed, "print", ["/payload/do"], "SUCCEEDED", "", "scanned by hand"))


def dates(client):
    # 10
    def submit(**when):
        n = str(uuid.uuid4())
        accepted = client.submit(replace(command("succeed", n=n), **when))
        assert accepted.state == "QUEUED", accepted
        return client.get(accepted.job_id)

    def in_hours(n):
        return datetime.now(timezone.utc) + timedelta(hours=n)

    delayed = submit(delay=timedelta(seconds=2))
    ended = client.wait(delayed.job_id, timeout=60)
    begun = next(e.at for e in client.history(delayed.job_id) if e.type == "step.dispatching")
    assert ended.succeeded and begun >= delayed.not_before, (ended, begun, delayed)

    waits = submit(not_before=in_hours(1))
    assert waits.raw["waiting"]["reason"] == "scheduled", waits
    later = waits.job_id
    put_off = client.reschedule(later, not_before=in_hours(2), reason="not yet")
    assert put_off.state == "QUEUED" and put_off.not_before > in_hours(1), put_off
    assert client.prioritize(later, "bulk", "it can wait").priority == "bulk"
    client.reschedule(later, delay=timedelta(0))
    assert client.wait(later, timeout=60).succeeded

    doomed = submit(not_before=in_hours(1), not_after=in_hours(2)).job_id
    assert client.pause(doomed).state == "PAUSED"
    for seconds in (1, 30):
        try:
            client.reschedule(doomed, delay=timedelta(0), not_after=datetime.now() + timedelta(seconds=seconds))
            break
        except InvalidError:  # The second was over before the server had the request.
            if seconds > 1:
                raise
    assert client.wait(doomed, timeout=60).error_code == "expired"


def order(client):
    # 11
    def ordered(do, key="customer-42", mode=None):
        return replace(command(do, n=str(uuid.uuid4())), order_key=key, order_mode=mode)

    def waits(job_id, reason, blocker):
        job = client.get(job_id)
        waiting = job.raw["waiting"]
        assert (job.state, waiting["reason"], waiting["blocked_by"]["id"]) == ("QUEUED", reason, blocker), job
        return job

    in_an_hour = datetime.now(timezone.utc) + timedelta(hours=1)
    first = client.submit(replace(ordered("succeed"), not_before=in_an_hour)).job_id
    second = waits(client.submit(ordered("succeed")).job_id, "behind", first)
    assert (second.order_key, second.order_mode) == ("customer-42", "fifo"), second
    assert second.line_id and second.line_id == client.get(first).line_id, second
    try:
        client.submit(ordered("succeed", mode="reject"))
        raise AssertionError("the line was not busy")
    except ConflictError as error:
        assert error.code == "line_busy", error
    older, newer = [client.submit(ordered("succeed", mode="newest")).job_id for _ in range(2)]
    assert client.wait(older, timeout=60).error_code == "superseded"
    assert client.cancel(second.job_id, "no longer wanted").state == "CANCELLED"
    client.reschedule(first, delay=timedelta(0))
    assert client.wait(newer, timeout=60).succeeded

    failed, after = [accepted.job_id for accepted in client.submit_batch(
        [ordered("fail", "customer-43"), ordered("succeed", "customer-43")])]
    assert client.wait(failed, timeout=60).state == "FAILED_FINAL"
    waits(after, "line_blocked", failed)
    rerun = client.wait(client.rerun(failed, payload_patch={"do": "succeed"}).job_id, timeout=60)
    assert rerun.succeeded and client.wait(after, timeout=60).succeeded, rerun
    begun = next(e.at for e in client.history(after) if e.type == "step.dispatching")
    assert begun >= rerun.completed_at, (begun, rerun)


def lines(client):
    # 12
    def ordered(do):
        return replace(command(do, n=str(uuid.uuid4())), order_key="customer-44")

    jobs = [accepted.job_id for accepted in client.submit_batch([ordered("fail"), ordered("succeed"), ordered("succeed")])]
    assert client.wait(jobs[0], timeout=60).state == "FAILED_FINAL"
    line, = client.lines(tenant_id=TENANT, order_key="customer-44")
    blocked = [found.line_id for found in client.lines(tenant_id=TENANT, state="blocked", page_size=1)]
    assert blocked == [line.line_id] == [client.get(jobs[0]).line_id], (blocked, line)
    assert (line.state, line.waiting, line.head_job_id, line.head_error_code) == (
        "blocked", 2, jobs[0], "CONFORMANCE_FINAL"), line
    assert [job.job_id for job in client.line_jobs(line.line_id)] == jobs

    client.cancel_line(line.line_id, "no longer wanted")
    assert [client.get(job_id).state for job_id in jobs[1:]] == ["CANCELLED"] * 2
    line = client.line(line.line_id)
    assert (line.state, line.waiting, line.head_job_id) == ("blocked", 0, jobs[0]), line
    last = client.submit(ordered("succeed")).job_id
    assert client.get(last).raw["waiting"]["reason"] == "line_blocked"
    assert client.release_line(line.line_id, jobs[0], "done by hand").state == "moving"
    assert client.wait(last, timeout=60).succeeded
    assert client.release_line(line.line_id, jobs[0]).head_job_id == ""
    try:
        client.release_line(line.line_id, last)
        raise AssertionError("a job that succeeded was released")
    except (ConflictError, NotFoundError) as error:
        assert error.code in ("not_blocking", "line_not_found"), error


def schedules(client):
    # 13
    name = (TENANT, "hourly")
    made = client.put_schedule(*name, every="1h", time_zone="Europe/Berlin", overlap="allow", command={
        "request_type": "sdk.conform", "schema_version": "1", "payload": {"do": "succeed", "n": "${scheduled_for}"},
        "input_ref": {"uri": "conformance://in"}, "output_ref": {"uri": "conformance://out"}})
    assert (made.state, len(made.next)) == ("active", 10), made
    first, second = client.preview_schedule(every="1h", time_zone="Europe/Berlin", count=2)
    assert second.at - first.at == timedelta(hours=1), (first, second)
    assert client.pause_schedule(*name, "to see").state == "paused"
    assert [one.schedule_id for one in client.schedules(TENANT, state="paused", page_size=1)] == [made.schedule_id]
    assert len(client.resume_schedule(*name).next) == 10

    run = client.run_schedule(*name, "by hand")
    assert run.outcome == "fired" and client.run_schedule(*name, "by hand").job_id == run.job_id, run
    assert client.wait(run.job_id, timeout=60).succeeded
    assert run.job_id in [fire.job_id for fire in client.schedule_fires(*name)]

    begun = client.backfill_schedule(*name, from_=datetime.now() - timedelta(hours=3), reason="they were missed")
    assert begun.total >= 3, begun
    for _ in range(600):
        backfill, = client.schedule_backfills(*name)
        if backfill.ended:
            break
        time.sleep(0.1)
    assert (backfill.backfill_id, backfill.state, backfill.fired) == (begun.backfill_id, "done", begun.total), backfill
    assert client.cancel_backfill(*name, begun.backfill_id, "too late").state == "done"

    client.delete_schedule(*name)
    try:
        client.schedule(*name)
        raise AssertionError("the deleted schedule was found")
    except NotFoundError as error:
        assert error.code == "schedule_not_found", error


if __name__ == "__main__":
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        with Client() as client:
            story(client)
            corrections(client)
            dates(client)
            order(client)
            lines(client)
            schedules(client)
    finally:
        worker.stop()
        working.join()
