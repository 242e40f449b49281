// Package inbox accepts commands that applications write to their own database, in the
// transaction that causes them.
//
//	application: BEGIN … INSERT order … submit(command) … COMMIT
//	                                        │
//	               Source.Take ◄────────────┘ leases rows, each tenant in turn
//	                    │
//	                 Accept ── as POST /v1/commands, with the command's id as its key
//	                    │
//	   accepted, with its job · refused, with its problem · waiting, to be tried again
//
// If a process ends, its commands are due again when their lease expires. After a crash
// between the accept and storing its outcome, the accept is repeated, and finds the job by
// its idempotency key. So a committed command becomes exactly one job, unless it is refused
// or discarded, and one that was rolled back becomes none. A refused command stays until an
// operator retries or discards it.
//
// Commands of one tenant and order key are accepted one after another, in the order of their
// commits. One that waits holds back those after it, and one that was refused does not.
package inbox

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// Command is a submitted command.
type Command struct {
	// ID is the UUID that the application received.
	ID       string
	TenantID string
	// OrderKey is what the command has in common with those of its tenant before and after
	// which it is accepted, in the order of their commits. It is empty if the order is free.
	OrderKey string
	// Body is the command as JSON, with an idempotency key.
	Body []byte
	// SubmittedBy is the database role of the application.
	SubmittedBy string
	SubmittedAt time.Time
	// Tries counts the earlier attempts to accept the command, by any process.
	Tries int
	// Unsure says that an earlier attempt may have created its job.
	Unsure bool
	// Discard says that an operator has asked to discard the command unless it is a job.
	Discard bool
}

// Outcome is the outcome of an attempt to accept a command.
type Outcome struct {
	// JobID is the job of an accepted command, empty for any other.
	JobID string
	// Problem is why the command was refused or has to wait.
	Problem *apierror.Error
	// Wait is the time until the next attempt, 0 if the command was refused.
	Wait time.Duration
	// PutBack returns the command to its place among its tenant's commands, without
	// counting the attempt. It may be set with a problem, but not with Wait.
	PutBack bool
	// Unsure says that a waiting command may already be a job. Otherwise the command is
	// discarded if an operator has asked for that.
	Unsure bool
}

// State is the state of a command that is neither a job nor discarded.
type State string

// The states.
const (
	Waiting State = "waiting" // a replica will try to accept it
	Refused State = "refused" // it is not tried again unless an operator retries it
)

// Listed is a command as operators see it.
type Listed struct {
	Command
	State State
	// DueAt is when a replica tries a waiting command next or, if one has leased it, when
	// the lease expires.
	DueAt time.Time
	// RefusedAt is when it was refused, or zero.
	RefusedAt time.Time
	// Code, Detail and Errors say why it was refused, or why its last attempt failed.
	Code   apierror.Code
	Detail string
	Errors []apierror.Violation
	// DiscardReason is the reason with which an operator has asked to discard it, or empty.
	DiscardReason string
}

// HandledOutcome is what an operator's request did to a command.
type HandledOutcome string

// The outcomes of requests.
const (
	Retried    HandledOutcome = "retried"    // it waits for a replica again
	Discarded  HandledOutcome = "discarded"  // it will never be a job
	Discarding HandledOutcome = "discarding" // it may be a job: a replica finds out, and otherwise discards it
	Absent     HandledOutcome = "absent"     // it does not exist, or its state does not allow the request
)

// Handled is a command and what was done to it.
type Handled struct {
	ID      string
	Outcome HandledOutcome
}

// MaxHandled is the most commands that an operator lists or handles at once.
const MaxHandled = 100

// MaxSurveyed is the most commands of each state that a survey counts.
const MaxSurveyed = 10_000

// Survey counts the commands in the inbox, at most [MaxSurveyed] of each state.
type Survey struct {
	Waiting, Refused int
	// OldestWaiting and OldestRefused are when the oldest command of each state was
	// submitted; zero if there is none.
	OldestWaiting, OldestRefused time.Time
}

// Operator lets operators inspect and handle commands. Its errors are [*apierror.Error]s
// with the code store_unavailable, or invalid_envelope for a malformed id.
type Operator interface {
	// List returns at most limit commands of the state after a cursor, oldest first, and the
	// cursor to continue after, empty at the end.
	List(ctx context.Context, state State, limit int, after string) (page []Listed, next string, err error)
	// Survey counts the waiting and the refused commands.
	Survey(ctx context.Context) (Survey, error)
	// Retry makes refused commands wait again, so that a replica tries them. Without ids, it
	// takes the first [MaxHandled]; more says that there are others.
	Retry(ctx context.Context, ids []string) (handled []Handled, more bool, err error)
	// Discard discards the commands with the ids, in either state, or without ids the first
	// [MaxHandled] of the state. If a command is leased or may be a job, a replica checks for
	// the job first, and discards the command if there is none.
	Discard(ctx context.Context, ids []string, state State, reason string) (handled []Handled, more bool, err error)
}

// Source stores the commands.
type Source interface {
	Operator
	// Take leases at most limit due commands, fewer if they are large, calls accept with
	// them, and stores their outcomes. First come commands to discard, and then those of each
	// tenant in turn, in the order in which they are due, except for the tenants to skip. If
	// this process ends, the commands are due again after the lease. Take returns how many it
	// took.
	//
	// A command with an order key is only leased together with all waiting ones of its key
	// that were committed before it, which come before it in taken. So once one of them waits
	// again, accept must put back those after it. A command to discard is leased at any time.
	Take(ctx context.Context, limit int, skip []string, accept func(ctx context.Context, taken []Command) []Outcome) (int, error)
	// Forget deletes accepted commands whose job was purged, and discarded ones, if they were
	// decided longer ago than retention. It checks a bounded number after the cursor, and
	// returns the next cursor, empty at the end.
	Forget(ctx context.Context, after string, retention time.Duration) (next string, deleted int, err error)
}
