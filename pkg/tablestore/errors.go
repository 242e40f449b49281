package tablestore

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound is returned by Get when there is no such row.
	ErrNotFound = errors.New("row not found")

	// ErrUnknown is returned by a write whose outcome is not known: it may have
	// been applied, and a request that is still under way may yet be. Only a
	// read of a row that the write would have left can tell.
	ErrUnknown = errors.New("outcome of the write is unknown")

	// ErrUnavailable is returned when the store did not take the request in:
	// it is out of reach, overloaded, full or closed. Nothing was written.
	ErrUnavailable = errors.New("store is unavailable")

	// ErrInvalid is returned for a request that breaks the port's rules, such
	// as a batch over two partitions. It is a defect of the caller.
	ErrInvalid = errors.New("invalid store request")

	// ErrTooLarge is returned for a row or batch over the port's limits.
	ErrTooLarge = errors.New("row or batch is too large")

	// ErrCorrupt is returned when stored bytes are not what a driver wrote.
	ErrCorrupt = errors.New("stored row cannot be decoded")
)

// ConflictError is returned by a write when a precondition did not hold.
// Nothing of the batch was written.
type ConflictError struct {
	// Key is the first row in the order of the batch whose precondition did
	// not hold; the zero Key where the store does not say.
	Key Key
	// Verb is what was tried there.
	Verb Verb
}

// Error names the row.
func (e *ConflictError) Error() string {
	if e.Key == (Key{}) {
		return "conflict on a row of the batch"
	}
	return fmt.Sprintf("conflict: %s %s", e.Verb, e.Key)
}

// IsConflict reports whether err is a conflict, and on which row.
func IsConflict(err error) (Key, bool) {
	if conflict, ok := errors.AsType[*ConflictError](err); ok {
		return conflict.Key, true
	}
	return Key{}, false
}
