package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Problem turns an error of the ledger into what its caller's caller is told:
// a [*problem.Error], or for an unforeseen one the error itself, which is then
// answered as internal.
func Problem(err error) error {
	var known *problem.Error
	var unfit *NotRerunnableError
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, ErrJobNotFound):
		return &problem.Error{Code: problem.JobNotFound, Detail: "There is no such job.", Err: err}
	case errors.Is(err, ErrIdempotencyMismatch):
		return &problem.Error{
			Code: problem.IdempotencyMismatch, Err: err,
			Detail: "The idempotency key was used before, for a command with another content.",
		}
	case errors.As(err, &unfit):
		return &problem.Error{Code: problem.IllegalTransition, Detail: sentence(unfit.Reason), Err: err}
	case errors.Is(err, ErrTenantLimit):
		return &problem.Error{
			Code: problem.TenantLimit, Detail: "The tenant has as many jobs in flight as it may.",
			RetryAfter: time.Second, Err: err,
		}
	case errors.Is(err, tablestore.ErrTooLarge):
		return &problem.Error{Code: problem.TooLarge, Detail: "The request is larger than a row can hold.", Err: err}
	case errors.Is(err, tablestore.ErrUnavailable), errors.Is(err, tablestore.ErrUnknown):
		return &problem.Error{
			Code: problem.StoreUnavailable, RetryAfter: time.Second, Err: err,
			Detail: "The store did not confirm the change. Sending the request again is safe.",
		}
	}
	return fmt.Errorf("ledger: %w", err)
}

// sentence makes one of a reason.
func sentence(reason string) string {
	return strings.ToUpper(reason[:1]) + reason[1:] + "."
}

// Problem is the refusal as its caller is told, nil where there is none.
func (r *Result) Problem() error {
	if r.Outcome != statemachine.Refused {
		return nil
	}
	return &problem.Error{Code: problem.Code(r.Code), Detail: r.Reason}
}
