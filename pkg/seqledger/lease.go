package seqledger

import "time"

// Lease is the right to work on one attempt of one seq. It comes from Begin,
// belongs to the owner, and may be used from several goroutines.
//
// Source: Stage1 seq ledger spec, Lease Ownership.
type Lease struct {
	seq     Seq
	attempt int
	owner   string

	// The ledger's mutex guards the fields below.

	// lost says that the lease was taken away and not finished.
	lost       bool
	heartbeat  time.Time
	prev, next *Lease
}

// Seq returns the seq that the lease is for.
func (l *Lease) Seq() Seq { return l.seq }

// Attempt returns the number of the attempt, which starts at 1.
func (l *Lease) Attempt() int { return l.attempt }

// Owner returns the token of the owner.
func (l *Lease) Owner() string { return l.owner }

// leaseQueue holds the leases of all seqs in flight, oldest heartbeat first.
// It is a linked list through the leases themselves, so that every operation
// takes constant time and none allocates.
type leaseQueue struct {
	front, back *Lease
}

// push appends the lease, whose heartbeat must not be before any in the queue.
func (q *leaseQueue) push(l *Lease) {
	l.prev = q.back
	if q.back == nil {
		q.front = l
	} else {
		q.back.next = l
	}
	q.back = l
}

// remove takes the lease, which must be in the queue, out of it.
func (q *leaseQueue) remove(l *Lease) {
	if l.prev == nil {
		q.front = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		q.back = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
}
