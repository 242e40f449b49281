package tablestore

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound is returned by Get when there is no such row.
	ErrNotFound = errors.New("row not found")

	// ErrConflict is wrapped by the error of a write whose precondition did not
	// hold and which wrote nothing. [ConflictError] names the row.
	ErrConflict = errors.New("conflict")

	// ErrUnknown is returned by a write with unknown outcome: it may have been
	// applied, and a request that is still under way may yet be. Only reading a
	// row of the write can tell.
	ErrUnknown = errors.New("outcome of the write is unknown")

	// ErrUnavailable is returned when the store did not accept the request
	// because it is unreachable, overloaded, full or closed. Nothing was
	// written.
	ErrUnavailable = errors.New("store is unavailable")

	// ErrInvalid is returned for a request that breaks the port's rules, such
	// as a batch over two partitions. It is a defect of the caller.
	ErrInvalid = errors.New("invalid store request")

	// ErrTooLarge is returned for a row or batch over the port's limits.
	ErrTooLarge = errors.New("row or batch is too large")

	// ErrCorrupt is returned for stored bytes that the driver cannot have
	// written.
	ErrCorrupt = errors.New("stored row cannot be decoded")
)

// ConflictError is the drivers' [ErrConflict], with the row if the store names
// it.
type ConflictError struct {
	// Key is the first row in the order of the batch whose precondition did
	// not hold; the zero Key if the store does not say.
	Key Key
	// Verb is the op's verb.
	Verb Verb
}

// Error names the row.
func (e *ConflictError) Error() string {
	if e.Key == (Key{}) {
		return "conflict on a row of the batch"
	}
	return fmt.Sprintf("conflict: %s %s", e.Verb, e.Key)
}

// Unwrap makes every ConflictError an [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }
