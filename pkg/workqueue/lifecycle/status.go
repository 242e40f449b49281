package lifecycle

import "slices"

// Status is where a work item stands. The values are part of the wire
// contract.
//
// Source: Job lifecycle plan 02, Status meanings.
type Status string

// The statuses. Each comment ends with whose move it is.
const (
	// StatusNone is no item: what an item is before it was enqueued and after it
	// was removed. It is never stored. The producer's move.
	StatusNone Status = ""
	// StatusQueued may be claimed; it has neither owner nor lease. Any worker's
	// move.
	StatusQueued Status = "queued"
	// StatusClaimed is one worker's alone under a lease, but its work has not
	// been started. The owner's move; the system's once the owner is no longer
	// trusted.
	StatusClaimed Status = "claimed"
	// StatusRunning is being worked on by its owner, who extends the lease by
	// heartbeats. The owner's move; the system's once the owner is no longer
	// trusted.
	StatusRunning Status = "running"
	// StatusSucceeded ended with a result. Nobody's move: it is final.
	StatusSucceeded Status = "succeeded"
	// StatusFailed ended with an error. Nobody's move: it is final.
	StatusFailed Status = "failed"
	// StatusStalled was taken from an owner who is no longer trusted. It is not
	// an end. The system's move; a worker's in queues that allow direct reclaim.
	StatusStalled Status = "stalled"
)

var statuses = [...]Status{
	StatusQueued, StatusClaimed, StatusRunning, StatusSucceeded, StatusFailed, StatusStalled,
}

// Statuses returns all statuses that an item can have. The slice is the
// caller's.
func Statuses() []Status { return slices.Clone(statuses[:]) }

// Terminal reports whether an item in this status never changes again.
func (s Status) Terminal() bool { return s == StatusSucceeded || s == StatusFailed }

// Held reports whether an item in this status has an owner and a lease.
func (s Status) Held() bool { return s == StatusClaimed || s == StatusRunning }
