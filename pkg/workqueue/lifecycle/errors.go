package lifecycle

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrInvalidRequest is returned when a request lacks something or holds what
	// makes no sense. It comes as a [*RequestError], which names the field.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrNotOwner is returned when someone other than the owner asks for a move
	// that only the owner may make.
	ErrNotOwner = errors.New("not the owner")
	// ErrRevConflict is returned when the item is not at the expected rev.
	ErrRevConflict = errors.New("revision conflict")
	// ErrIllegalTransition is returned when the item's status does not allow the
	// move.
	ErrIllegalTransition = errors.New("illegal transition")
	// ErrInvalidItem is returned when an item, or its history, breaks a rule. It
	// comes as an [*ItemError], which names every violation.
	ErrInvalidItem = errors.New("invalid work item")
	// ErrNotFound is returned when a queue has no item with that id. This package
	// does not return it: it is here so that all queues say it alike.
	ErrNotFound = errors.New("no such work item")
)

// RequestError says which field of a request is wrong.
type RequestError struct {
	// Field is the field's name in the wire contract.
	Field string
	// Reason says what is wrong with it.
	Reason string
}

// Error names the field and what is wrong with it.
func (e *RequestError) Error() string {
	return fmt.Sprintf("%v: %s %s", ErrInvalidRequest, e.Field, e.Reason)
}

// Unwrap returns [ErrInvalidRequest].
func (*RequestError) Unwrap() error { return ErrInvalidRequest }

// Violation is one broken rule of an item or of its history.
type Violation struct {
	// Field is what breaks the rule.
	Field string
	// Rule is the rule.
	Rule string
}

// String returns both as a sentence.
func (v Violation) String() string { return v.Field + " " + v.Rule }

// ItemError lists what is wrong with an item.
type ItemError struct {
	WorkID     string
	Status     Status
	Violations []Violation
}

// Error names all violations.
func (e *ItemError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, violation := range e.Violations {
		parts[i] = violation.String()
	}
	return fmt.Sprintf("%v: %q, %s: %s", ErrInvalidItem, e.WorkID, e.Status, strings.Join(parts, "; "))
}

// Unwrap returns [ErrInvalidItem].
func (*ItemError) Unwrap() error { return ErrInvalidItem }
