package statemachine

import (
	"encoding/json"
	"time"
)

// Mode says how the routing key of a job is made.
//
// Source: Option B spec, 7.1.
type Mode string

// The modes.
const (
	ModeDefault Mode = "DEFAULT"
	ModeBurst   Mode = "BURST"
)

// Aggregate is one job with all that changes together: its Job row, its Step
// rows by index, and the outbox row of the active attempt (nil where no
// attempt was ever made, or its row is not needed any more).
//
// Decide never changes the aggregate that it is given; slices and raw JSON are
// shared between the one before and the one after and must not be written to.
type Aggregate struct {
	Job    Job
	Steps  []Step
	Outbox *Outbox
}

// Job is the Job row.
//
// Source: Ledger and state model, Jobs table; Option B spec, 12.2.
type Job struct {
	ID              string
	TenantID        string
	TenantBucket    string // tenant and month of the acceptance
	RequestType     string
	SchemaVersion   string
	ProtocolID      string
	ProtocolVersion string
	Mode            Mode
	DocID           string
	State           JobState
	// Rev counts the changes of the job; the journal has one row for each.
	Rev int64
	// Started says that the first step that was dispatched was ACKed at least
	// once.
	Started          bool
	CurrentStepID    string
	CurrentStepIndex int
	// AttemptsTotal is the sum of attempt_no over the steps.
	AttemptsTotal  int
	IdempotencyKey string
	// IdempotencyHash is the SHA-256 of the command's canonical JSON, in hex.
	IdempotencyHash string
	InputRef        json.RawMessage
	OutputRef       json.RawMessage
	WorkspaceRef    json.RawMessage
	FinalOutput     json.RawMessage
	CallbackURLs    []string
	CorrelationID   string
	Traceparent     string
	RerunOf         string
	ErrorCode       string
	ErrorMessage    string
	CreatedAt       time.Time
	UpdatedAt       time.Time
	CompletedAt     time.Time
}

// InputSource says where a step's input_ref comes from.
type InputSource string

// The input sources.
const (
	// InputJob is the command's input_ref.
	InputJob InputSource = "job"
	// InputPrevious is the previous step's result_ref, else the command's
	// input_ref.
	InputPrevious InputSource = "previous"
)

// Step is a Step row.
//
// Source: Ledger and state model, Steps table; Option B spec, 12.3.
type Step struct {
	ID      string
	Index   int
	Type    string
	Service string
	Input   InputSource
	// PayloadPointer is the JSON pointer (RFC 6901) of the step's payload in
	// the command's; "" is all of it.
	PayloadPointer string
	Policy         Policy
	Routing        Routing
	State          StepState
	// AttemptNo and LeaseID are the pair that fences callbacks. AttemptNo is 0
	// before the first dispatch; LeaseID is empty while no attempt may report.
	AttemptNo int
	LeaseID   string
	// LeaseExpiresAt is the one deadline of the active attempt: of its ACK, then
	// of its lease. While DISPATCHING it is an estimate that nobody acts on;
	// while AWAITING_ACK the zero time says that the directive waits in the
	// pull queue for a worker.
	LeaseExpiresAt time.Time
	// TimeoutAt is the absolute end of the attempt's run, or the zero time.
	TimeoutAt time.Time
	// NextAttemptAt is when a step in FAILED_RETRY is dispatched again.
	NextAttemptAt time.Time
	// OutboxID is the outbox row of the latest attempt.
	OutboxID string
	Spent    Spent
	// Attempts is the step's memory of its attempts, oldest first.
	Attempts         []Attempt
	InputRef         json.RawMessage
	OutputRef        json.RawMessage
	ResultRef        json.RawMessage
	LastErrorCode    string
	LastErrorMessage string
	CreatedAt        time.Time
	UpdatedAt        time.Time
	CompletedAt      time.Time
}

// Routing is the decision by which a step's directives find their lane.
//
// Source: Orchestrator flow canvas, Partition + Routing.
type Routing struct {
	ResolvedMode   Mode
	Lane           int
	Topic          string
	RoutingKeyUsed string
	DecisionSource string
	DecisionReason string
}

// Attempt is what a step remembers of one attempt, so that the repeat of a
// callback answers as the first did, also after the step has moved on.
type Attempt struct {
	No int
	// LeaseDigest stands for the lease id, which is a capability.
	LeaseDigest string
	Acked       bool
	// Result is the status of the applied RESULT, or empty.
	Result ResultStatus
}

// Bus is the way by which a directive reaches its worker.
type Bus string

// The buses.
const (
	// BusQueue is the pull queue. It lies in the store, so the commit that marks a
	// row SENT is its publication.
	BusQueue Bus = "queue"
	// BusServiceBus is the topics of Azure Service Bus: a relay publishes a row,
	// and then marks it.
	BusServiceBus Bus = "servicebus"
)

// Outbox is an outbox row. Its directive's bytes are stored beside it.
//
// Source: Ledger and state model, Outbox table.
type Outbox struct {
	ID        string
	StepID    string
	StepIndex int
	AttemptNo int
	LeaseID   string
	State     OutboxState
	// Bus is what the row was made for: no process publishes another bus's row
	// before it has given it a new pair.
	Bus     Bus
	Routing Routing
	// DueAt is when the row is to be published (again). While a relay holds it
	// for publishing, it lies behind the end of that hold.
	DueAt time.Time
	// Rejected says that the last publish was refused for the message's own
	// sake, so that the next one must carry a new pair.
	Rejected  bool
	Failures  int
	LastError string
	CreatedAt time.Time
	SentAt    time.Time
	UpdatedAt time.Time
}

// step returns the index of the step of that id.
func (a *Aggregate) step(id string) (int, bool) {
	for i := range a.Steps {
		if a.Steps[i].ID == id {
			return i, true
		}
	}
	return 0, false
}

// Queued reports whether the job's active attempt waits in the pull queue for a
// worker, and of which step it is.
func (a *Aggregate) Queued() (int, bool) {
	i, ok := a.Active()
	if !ok || a.Outbox == nil || a.Outbox.Bus != BusQueue || a.Outbox.State != OutboxSent {
		return 0, false
	}
	step := &a.Steps[i]
	return i, step.State == StepAwaitingAck && step.LeaseExpiresAt.IsZero()
}

// Active returns the index of the active step, the lowest that is not
// terminal, and false where all are.
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
