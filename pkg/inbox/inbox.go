// Package inbox accepts commands that applications wrote into their own database, in the
// transaction that made them necessary.
//
//	application: BEGIN … INSERT order … submit(command) … COMMIT
//	                                        │
//	               Source.Take ◄────────────┘ leases rows, each tenant in turn
//	                    │
//	                 Accept ── as POST /v1/commands, with the command's id as its key
//	                    │
//	   accepted, with its job · refused, with its problem · waits, and is tried again
//
// If a process ends, its commands are due again once their lease expires. After a crash
// between the accept and storing its outcome, the accept is repeated and finds the job by
// its idempotency key. So a committed command becomes exactly one job, and a rolled-back
// one becomes none. A refused command stays until an operator retries or discards it.
package inbox

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/problem"
)

// Command is a submitted command.
type Command struct {
	// ID is the UUID that the application got.
	ID       string
	TenantID string
	// Body is the command as JSON, with an idempotency key.
	Body []byte
	// SubmittedBy is the database role of the application.
	SubmittedBy string
	SubmittedAt time.Time
	// Tries is how often it was tried before, including by processes that have ended since.
	Tries int
	// Unsure says that an earlier try may have created its job.
	Unsure bool
	// Discard says that an operator discards it unless it is a job already.
	Discard bool
}

// Outcome is the outcome of a try to accept a command.
type Outcome struct {
	// JobID is the job of an accepted command, else empty.
	JobID string
	// Problem is why the command was refused or has to wait.
	Problem *problem.Error
	// Wait is when it is tried again; 0 if it was refused.
	Wait time.Duration
	// PutBack returns the command to its place among its tenant's commands, without
	// counting the try. It may be set with a problem, but not with Wait.
	PutBack bool
	// Unsure says that a waiting command may already be a job. If it is not set, the
	// command is discarded if an operator has requested that.
	Unsure bool
}

// State is whether a command that is neither a job nor discarded is tried again.
type State string

// The states.
const (
	Waiting State = "waiting" // a replica tries it, again or for the first time
	Refused State = "refused" // it is not tried again, unless an operator retries it
)

// Listed is a command as operators see it.
type Listed struct {
	Command
	State State
	// DueAt is when a waiting command is tried next; if a replica has leased it, by another
	// replica.
	DueAt time.Time
	// RefusedAt is when it was refused, or zero.
	RefusedAt time.Time
	// Code, Detail and Errors say why it was refused, or could not be accepted at its last try.
	Code   problem.Code
	Detail string
	Errors []problem.Violation
	// DiscardReason is why an operator discards it unless it is a job already, or empty.
	DiscardReason string
}

// HandledOutcome is what an operator's request did to a command.
type HandledOutcome string

// The outcomes of requests.
const (
	Retried    HandledOutcome = "retried"    // it waits for a replica again
	Discarded  HandledOutcome = "discarded"  // it will never be a job
	Discarding HandledOutcome = "discarding" // a replica tries it or ended with it: it is discarded unless it is a job
	Absent     HandledOutcome = "absent"     // it does not exist, or its state does not allow this
)

// Handled is a command with what was done to it.
type Handled struct {
	ID      string
	Outcome HandledOutcome
}

// MaxHandled is the maximum number of commands that an operator lists or handles at once.
const MaxHandled = 100

// MaxSurveyed is the maximum number of commands of each kind that a survey counts.
const MaxSurveyed = 10_000

// Survey is how many commands there are in the inbox, at most [MaxSurveyed] of each kind.
type Survey struct {
	Waiting, Refused int
	// OldestWaiting and OldestRefused are when these were submitted; zero if there are none.
	OldestWaiting, OldestRefused time.Time
}

// Operator lets operators inspect and handle commands. Its errors are [*problem.Error]s
// with the code store_unavailable, or invalid_envelope for a malformed id.
type Operator interface {
	// List returns at most that many commands of the state after a cursor, by age, and the
	// cursor to continue after, empty at the end.
	List(ctx context.Context, state State, limit int, after string) (page []Listed, next string, err error)
	// Survey counts the commands that wait and that are refused.
	Survey(ctx context.Context) (Survey, error)
	// Retry puts refused commands back, so that a replica tries them again. Without ids it
	// takes the first [MaxHandled]; more says that there are others.
	Retry(ctx context.Context, ids []string) (handled []Handled, more bool, err error)
	// Discard ends commands for the reason: those with the ids in either state, or without ids
	// the first [MaxHandled] of the state. A command that a replica has in hand is the replica's
	// to decide on; what the replica finds to be no job is discarded.
	Discard(ctx context.Context, ids []string, state State, reason string) (handled []Handled, more bool, err error)
}

// Source is where the commands are.
type Source interface {
	Operator
	// Take leases at most that many commands that are due, and fewer if they are large; it calls
	// accept with them, and stores the outcome of each. It takes those to discard first, then the
	// tenants in turn but for those to skip, and the commands of each in the order in which they
	// are due. If this process ends, they are due again after the lease. It returns how many it
	// took.
	Take(ctx context.Context, limit int, skip []string, accept func(ctx context.Context, taken []Command) []Outcome) (int, error)
	// Forget deletes accepted commands whose job was purged, and discarded ones, of those that
	// were decided on longer ago than retention. It looks at a bounded number after the cursor,
	// and returns the next one, empty at the end.
	Forget(ctx context.Context, after string, retention time.Duration) (next string, deleted int, err error)
}
