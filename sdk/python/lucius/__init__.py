"""Workers and clients of Lucius.

    from lucius import Worker, Final
    worker = Worker(service="ocr", parallel=4)

    @worker.step("OCR")
    def ocr(task):
        if not task.payload.get("language"):
            raise Final("NO_LANGUAGE")
        return {"uri": read(task.input_ref["uri"], cancelled=task.cancelled)}

    worker.run()
"""

from .aio import AsyncClient
from .client import Client, Watch
from .errors import (
    Cancelled, Cause, ConflictError, Final, ForbiddenError, InvalidError, LuciusError, NoAnswerError, NotFoundError,
    ProblemError, Retry, RetryAfter, Throttled, TimedOutError, UnauthenticatedError, UnavailableError, Violation,
)
from .model import (
    Accepted, Command, CommandChange, Event, Job, JobState, Line, Lineage, LineageJob, LineState, OrderMode, PlannedStep, Priority,
    RerunPreview, RerunRequest, ResolvedStep, Step, StepState,
)
from .schedules import (
    BackfillState, CatchUp, FireOutcome, Schedule, ScheduleBackfill, ScheduleDefinition, ScheduleFire, ScheduleState, ScheduleTime,
    ScheduleTimes,
)
from .task import CANCELLED, LEASE_LOST, STOPPING, Cancellation, Task
from .transaction import Submission, submission_of, submit_tx
from .worker import ANY_STEP, Outcome, Worker

__all__ = [
    "ANY_STEP", "Accepted", "AsyncClient", "BackfillState", "CANCELLED", "Cancellation", "Cancelled", "CatchUp", "Cause", "Client", "Command",
    "CommandChange", "ConflictError", "Event", "Final", "FireOutcome", "ForbiddenError", "InvalidError", "Job", "JobState", "LEASE_LOST", "OrderMode",
    "Line", "LineState", "Lineage", "LineageJob", "LuciusError", "NoAnswerError", "NotFoundError", "Outcome", "PlannedStep", "Priority",
    "ProblemError", "RerunPreview", "RerunRequest", "ResolvedStep", "Retry", "RetryAfter", "STOPPING", "Schedule", "ScheduleBackfill",
    "ScheduleDefinition", "ScheduleFire", "ScheduleState", "ScheduleTime", "ScheduleTimes", "Step", "StepState", "Submission",
    "Task", "Throttled", "TimedOutError", "UnauthenticatedError", "UnavailableError", "Violation", "Watch", "Worker", "submission_of",
    "submit_tx",
]
