package statemachine

import (
	"cmp"
	"encoding/json"
	"time"
)

// Mode says how the routing key of a job is derived.
//
// Source: Option B spec, 7.1.
type Mode string

// The modes.
const (
	ModeDefault Mode = "DEFAULT" // from the tenant id
	ModeBurst   Mode = "BURST"   // from the tenant id and the doc id
)

// Valid reports whether the mode is one of the modes.
func (m Mode) Valid() bool { return m == ModeDefault || m == ModeBurst }

// Aggregate is one job with everything that changes together: its Job row, its Step rows by
// index, and the outbox row of the active attempt (nil if there was no attempt, or its row
// is no longer needed).
//
// Decide never changes the aggregate that it is given; slices and raw JSON are
// shared between the one before and the one after and must not be written to.
type Aggregate struct {
	Job    Job
	Steps  []Step // invariant: Steps[i].Index = i
	Outbox *Outbox
}

// Job is the Job row.
//
// Source: Ledger and state model, Jobs table; Option B spec, 12.2.
type Job struct {
	ID              string   `column:"job_id"`
	TenantID        string   `column:"tenant_id"`
	TenantBucket    string   `column:"tenant_bucket"` // tenant and month of the acceptance
	RequestType     string   `column:"request_type"`
	SchemaVersion   string   `column:"schema_version"`
	ProtocolID      string   `column:"protocol_id"`
	ProtocolVersion string   `column:"protocol_version"`
	Mode            Mode     `column:"mode"`
	DocID           string   `column:"doc_id"`
	Tags            Tags     `column:"tags"`
	Class           Class    `column:"class"`
	State           JobState `column:"state"`
	// Rev counts the changes of the job; the journal has one row for each.
	Rev int64 `column:"rev"`
	// Started says that the first dispatched step was ACKed at least once.
	Started bool `column:"started"`
	// NotBefore is when the job may begin: dispatch its first step. At NotAfter it ends as expired
	// unless it was Started. The zero time sets no date.
	NotBefore time.Time `column:"not_before"`
	NotAfter  time.Time `column:"not_after"`
	// Parked says that the job waits for NotBefore.
	//
	//	invariant: Parked ⇒ State = QUEUED ∧ AttemptsTotal = 0
	//	invariant: State = QUEUED ⇒ Parked ∨ Place.Line ≠ ""
	Parked bool `column:"parked"`
	Order  Order
	// Occurrence is that of the schedule that submitted the command.
	Occurrence       Occurrence `column:"occurrence"`
	Place            Place      `column:"place"`
	CurrentStepID    string     `column:"current_step_id"`
	CurrentStepIndex int        `column:"current_step_index"`
	// AttemptsTotal is the sum of attempt_no over the steps.
	AttemptsTotal  int    `column:"attempts_total"`
	IdempotencyKey string `column:"idempotency_key"`
	// IdempotencyHash is the SHA-256 of the command's canonical JSON, in hex.
	IdempotencyHash string          `column:"idempotency_hash"`
	InputRef        json.RawMessage `column:"input_ref"`
	OutputRef       json.RawMessage `column:"output_ref"`
	WorkspaceRef    json.RawMessage `column:"workspace_ref"`
	FinalOutput     json.RawMessage `column:"final_output"`
	CallbackURLs    []string        `column:"callback_urls"`
	CorrelationID   string          `column:"correlation_id"`
	Traceparent     string          `column:"traceparent"`
	RerunOf         string          `column:"rerun_of"`
	RerunEdits      []string        `column:"rerun_edits"` // the JSON pointers of what differs from RerunOf, at most 1 KiB
	Supersedes      string          `column:"supersedes"`  // the last job in the chain of reruns that this one continues
	ErrorCode       string          `column:"error_code"`
	ErrorMessage    string          `column:"error_message"`
	CreatedAt       time.Time       `column:"created_at"`
	UpdatedAt       time.Time       `column:"updated_at"`
	// StageAt is when the job's stage last changed.
	StageAt     time.Time `column:"stage_at"`
	CompletedAt time.Time `column:"completed_at"`
}

// InputSource says where a step's input_ref comes from.
type InputSource string

// The input sources.
const (
	// InputJob is the command's input_ref.
	InputJob InputSource = "job"
	// InputPrevious is the output of the previous step, else the command's
	// input_ref.
	InputPrevious InputSource = "previous"
)

// Step is a Step row.
//
// Source: Ledger and state model, Steps table; Option B spec, 12.3.
type Step struct {
	ID      string      `column:"step_id"`
	Index   int         `column:"step_index"`
	Type    string      `column:"step_type"`
	Service string      `column:"service"`
	Input   InputSource `column:"input"`
	// PayloadPointer is the JSON pointer (RFC 6901) of the step's payload in
	// the command's; "" is all of it.
	PayloadPointer string `column:"payload_pointer"`
	Policy         Policy
	Routing        Routing
	State          StepState `column:"state"`
	// Outcome is set if a rerun did not execute the step.
	Outcome StepOutcome `column:"outcome"`
	// AttemptNo and LeaseID are the pair that fences callbacks. AttemptNo is 0
	// before the first dispatch; LeaseID is empty while no attempt may report.
	AttemptNo int    `column:"attempt_no"`
	LeaseID   string `column:"lease_id"`
	// LeaseExpiresAt is the one deadline of the active attempt: of its ACK, then
	// of its lease. While DISPATCHING it is an estimate that nothing acts on;
	// while AWAITING_ACK the zero time says that the directive waits in the
	// pull queue for a worker.
	LeaseExpiresAt time.Time `column:"lease_expires_at"`
	// ClaimLease is the lease that the worker asked for when it claimed the attempt in the
	// pull queue, or with its ACK, or 0. It replaces the policy's ACK timeout, and then its
	// lease unless that is shorter.
	ClaimLease time.Duration `column:"claim_lease_ms"`
	// StartedAt is when an attempt was last started: its ACK.
	StartedAt time.Time `column:"started_at"`
	// TimeoutAt is the absolute end of the attempt's run, or the zero time.
	TimeoutAt time.Time `column:"timeout_at"`
	// NextAttemptAt is when a step in FAILED_RETRY is dispatched again.
	NextAttemptAt time.Time `column:"next_attempt_at"`
	// OutboxID is the outbox row of the latest attempt.
	OutboxID string `column:"outbox_id"`
	Spent    Spent
	// Throttled says that the latest attempt ended because of a rate limit of the service.
	//
	//	invariant: Throttled ⇒ no newer attempt was dispatched
	Throttled bool `column:"throttled"`
	// RetryCause is the budget that the latest failed attempt spent, or [CauseStop]; empty if it was
	// throttled and spent none, or if an operator has taken an attempt from its worker since.
	RetryCause Cause `column:"retry_cause"`
	// Attempts is the step's memory of its attempts, oldest first.
	Attempts []Attempt `column:"attempts"`
	// LastReport is the report of the latest callback applied to the step.
	LastReport Report
	// WorkID is the latest attempt's item in the pull queue, and Owner the worker that
	// holds it, or that ended it; empty if there is none. The ledger sets both, and no
	// decision uses them.
	WorkID string `column:"work_id"`
	Owner  string `column:"owner"`
	// Progress is the latest progress that a heartbeat of the attempt reported, while it
	// runs.
	Progress *Progress       `column:"progress"`
	InputRef json.RawMessage `column:"input_ref"`
	// Product is that of the RESULT that ended the step. Until it gives them, OutputRef is the
	// command's; ResultRef is then the given output_ref.
	Product
	// GaveOutput and GaveResult say which references that RESULT had.
	GaveOutput       bool      `column:"gave_output"`
	GaveResult       bool      `column:"gave_result"`
	LastErrorCode    string    `column:"last_error_code"`
	LastErrorMessage string    `column:"last_error_message"`
	CreatedAt        time.Time `column:"created_at"`
	UpdatedAt        time.Time `column:"updated_at"`
	CompletedAt      time.Time `column:"completed_at"`
}

// Routing is the decision by which a step's directives find their lane.
//
// Source: Orchestrator flow canvas, Partition + Routing.
type Routing struct {
	ResolvedMode   Mode   `column:"resolved_mode"`
	Lane           int    `column:"lane"`
	Topic          string `column:"topic"`
	RoutingKeyUsed string `column:"routing_key_used"`
	DecisionSource string `column:"decision_source"`
	DecisionReason string `column:"decision_reason"`
}

// Policy is what a step was accepted with: its timeouts and budgets.
//
// Source: Ledger and state model, Timeouts and retries.
type Policy struct {
	// AckTimeout is the time from SENT (from the claim, in the pull queue) to ACK.
	AckTimeout time.Duration `column:"ack_timeout_ms"`
	// Lease is the time that an ACK or a heartbeat gives the worker.
	Lease time.Duration `column:"lease_ms"`
	// Timeout is the absolute limit of one attempt's run from its ACK; 0 is none.
	Timeout time.Duration `column:"timeout_ms"`
	// Dispatch, Ack and Execution are the delays before each retry of that
	// cause; a list of n allows n retries.
	Dispatch  []time.Duration `column:"retry_dispatch"`
	Ack       []time.Duration `column:"retry_ack"`
	Execution []time.Duration `column:"retry_execution"`
	// MaxAttempts caps the attempts that spend a budget, across all causes; 0 means no cap.
	MaxAttempts int `column:"max_attempts"`
}

// Or returns the policy with the settings of base where it has none: a value of 0 or a
// list that is nil. An empty list is a setting, which allows no retry of its cause.
func (p Policy) Or(base Policy) Policy {
	return Policy{
		AckTimeout:  cmp.Or(p.AckTimeout, base.AckTimeout),
		Lease:       cmp.Or(p.Lease, base.Lease),
		Timeout:     cmp.Or(p.Timeout, base.Timeout),
		Dispatch:    firstSet(p.Dispatch, base.Dispatch),
		Ack:         firstSet(p.Ack, base.Ack),
		Execution:   firstSet(p.Execution, base.Execution),
		MaxAttempts: cmp.Or(p.MaxAttempts, base.MaxAttempts),
	}
}

// firstSet returns the first list that is not nil.
func firstSet(over, base []time.Duration) []time.Duration {
	if over != nil {
		return over
	}
	return base
}

// Cause is a kind of failure. Each but [CauseStop] has its own budget: a list of delays.
type Cause string

// The causes.
const (
	CauseDispatch  Cause = "dispatch"  // the bus rejected the directive
	CauseAck       Cause = "ack"       // no worker acknowledged the directive in time
	CauseExecution Cause = "execution" // the worker failed, or did not report in time
	CauseStop      Cause = "stop"      // the worker stopped; spends nothing
)

// FreeAttempts is how many attempts of a step spend no budget because the service throttled them
// or their worker stopped. Each further one spends the execution budget: otherwise the rows of a
// job's attempts could grow without end.
const FreeAttempts = 100

// Spent counts a step's failures by cause, and its free attempts, which spend none.
type Spent struct {
	Dispatch  int `column:"spent_dispatch"`
	Ack       int `column:"spent_ack"`
	Execution int `column:"spent_execution"`
	Free      int `column:"spent_free"` // invariant: Free ≤ FreeAttempts
}

// repeats reports whether an attempt that a worker has begun may be followed by another.
func (s *Step) repeats() bool { return len(s.Policy.Execution) > 0 && s.Policy.MaxAttempts != 1 }

// total counts the attempts that spent a budget.
func (s *Spent) total() int { return s.Dispatch + s.Ack + s.Execution }

// budget returns the count of a cause's failures and the delays before its retries.
func (s *Step) budget(of Cause) (spent *int, delays []time.Duration) {
	switch of {
	case CauseDispatch:
		return &s.Spent.Dispatch, s.Policy.Dispatch
	case CauseAck:
		return &s.Spent.Ack, s.Policy.Ack
	default:
		return &s.Spent.Execution, s.Policy.Execution
	}
}

// Attempt is what a step remembers of one attempt, so that the repeat of a callback gets
// the same answer as the first, even after the step has moved on.
type Attempt struct {
	No int
	// LeaseDigest is the digest of the lease id, which is a capability.
	LeaseDigest string
	Acked       bool
	// Result is the status of the applied RESULT, or empty.
	Result ResultStatus
}

// Bus is what carries directives to workers.
type Bus string

// The buses.
const (
	// BusQueue is the pull queue. It is in the store, so the commit that marks a
	// row SENT publishes it.
	BusQueue Bus = "queue"
	// BusServiceBus is the topics of Azure Service Bus: a relay publishes a row,
	// and then marks it.
	BusServiceBus Bus = "servicebus"
)

// Outbox is an outbox row. Its directive's bytes are stored next to it.
//
// Source: Ledger and state model, Outbox table.
type Outbox struct {
	ID        string      `column:"outbox_id"`
	StepID    string      `column:"step_id"`
	StepIndex int         `column:"step_index"`
	AttemptNo int         `column:"attempt_no"`
	LeaseID   string      `column:"lease_id"`
	State     OutboxState `column:"state"`
	// Bus is the bus that the row was created for: a process of another bus gives the row a
	// new pair before it publishes it.
	Bus     Bus `column:"bus"`
	Routing Routing
	// DueAt is when the row is to be published (again). While a relay publishes the
	// row, it is after the end of that relay's hold.
	// invariant: State ≠ PENDING ⇒ DueAt is zero
	DueAt time.Time `column:"next_attempt_at"`
	// Rejected says that the bus refused the last publish because of the message
	// itself, so that the next one must carry a new pair.
	Rejected  bool      `column:"rejected"`
	Failures  int       `column:"failures"`
	LastError string    `column:"last_error"`
	CreatedAt time.Time `column:"created_at"`
	SentAt    time.Time `column:"sent_at"`
	UpdatedAt time.Time `column:"updated_at"`
}

// Queued reports whether the job's active attempt waits in the pull queue for a
// worker, and returns the index of its step.
func (a *Aggregate) Queued() (int, bool) {
	i, ok := a.Active()
	if !ok || a.Outbox == nil || a.Outbox.Bus != BusQueue || a.Outbox.State != OutboxSent {
		return 0, false
	}
	step := &a.Steps[i]
	return i, step.State == StepAwaitingAck && step.LeaseExpiresAt.IsZero()
}

// Active returns the index of the active step, the lowest that is not terminal, and
// false if all are.
//
// Source: Ledger and state model, Step states.
func (a *Aggregate) Active() (int, bool) {
	for i := range a.Steps {
		if !a.Steps[i].State.Terminal() {
			return i, true
		}
	}
	return 0, false
}

// held reports whether a worker may hold the step's current attempt: then only
// the worker's report or a deadline ends it.
func (s *Step) held() bool {
	return s.State == StepInProgress || s.State == StepAwaitingAck && !s.LeaseExpiresAt.IsZero()
}

// Holder returns the worker that holds the step's current attempt in the pull queue, empty if
// none does.
func (s *Step) Holder() string {
	if !s.held() {
		return ""
	}
	return s.Owner
}

// ackTimeout returns how long a claim, or a heartbeat before the ACK, lasts.
func (s *Step) ackTimeout() time.Duration { return cmp.Or(s.ClaimLease, s.Policy.AckTimeout) }

// lease returns how long an ACK or a heartbeat of the attempt lasts.
func (s *Step) lease() time.Duration {
	return min(cmp.Or(s.ClaimLease, s.Policy.Lease), s.Policy.Lease)
}

// attemptEnd returns the earlier of the lease's end and the absolute timeout.
func (s *Step) attemptEnd() time.Time {
	if !s.TimeoutAt.IsZero() && s.TimeoutAt.Before(s.LeaseExpiresAt) {
		return s.TimeoutAt
	}
	return s.LeaseExpiresAt
}

// attempt returns the remembered attempt of that number, nil if there is none.
func (s *Step) attempt(no int) *Attempt {
	for i := range s.Attempts {
		if s.Attempts[i].No == no {
			return &s.Attempts[i]
		}
	}
	return nil
}

// Result is the status of the RESULT that was applied to that attempt, empty if
// there was none or the attempt is forgotten.
func (s *Step) Result(attemptNo int) ResultStatus {
	if attempt := s.attempt(attemptNo); attempt != nil {
		return attempt.Result
	}
	return ""
}

// Output returns what the step's RESULT produced: its output_ref, else its result_ref,
// nil if it had neither.
//
// Source: Option B spec, 11.3 and 12.2.
func (s *Step) Output() json.RawMessage {
	if s.GaveOutput {
		return s.OutputRef
	}
	return s.ResultRef
}
