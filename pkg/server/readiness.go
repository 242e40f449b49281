package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// answerAge is how long readyz, which needs no credential, reuses the store's answer.
	answerAge = time.Second
	// answeredLately is how long after an answer a store that times out is only slow.
	answeredLately = 30 * time.Second
	// answerTimeout is how long the store may take to answer.
	answerTimeout = 10 * time.Second
	// SpaceAhead times the store's reserve is the free space from which readyz warns.
	SpaceAhead = 4
	// overdue is how long a due outbox row may wait before readyz warns of it.
	overdue = time.Minute
)

// readiness answers readyz: a server is ready if its store answers and takes writes.
// Anything else that is wrong is a warning.
type readiness struct {
	ledger     *ledger.Ledger
	store      tablestore.Store
	bus        *bus
	gate       *admission.Gate
	reconciler *background.Reconciler
	clock      *clockCheck
	watchers   []*background.Watcher
	submitted  *inbox.Reader // nil without an inbox
	answer     cachedAnswer
}

// Ready returns what is degraded, or an error if the store is not available.
func (r *readiness) Ready(ctx context.Context) ([]string, error) {
	err := r.answer.get(ctx, func(ctx context.Context) error {
		_, _, err := r.ledger.Live(ctx, "", 0, 1, "")
		if why := writable(ctx, r.store); why != nil {
			return unwritable(why) // This error says more than a failed read.
		}
		return ledger.Problem(err)
	})
	if err := r.unlessSlow(err); err != nil {
		return nil, err
	}
	return r.warnings(time.Now()), nil
}

// unlessSlow returns the error, unless it is a timeout of a store that has answered other
// calls lately.
func (r *readiness) unlessSlow(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && time.Since(r.pace().Answered) < answeredLately {
		return nil
	}
	return err
}

// paceWarning warns of a slow store, else it is empty.
func (r *readiness) paceWarning() string {
	pace := r.pace()
	if pace.Slow.IsZero() {
		return ""
	}
	warning := "the store is slow: calls of it take too long since " + pace.Slow.UTC().Format(time.RFC3339)
	if pace.Limit > 0 { // A local store has none.
		warning += fmt.Sprintf("; at most %d are under way, and each may take %s", pace.Limit, pace.Deadline)
	}
	return warning
}

// pace returns how the store answers, the zero value if it does not tell.
func (r *readiness) pace() tablestore.Pace {
	if store, ok := tablestore.As[tablestore.Paced](r.store); ok {
		return store.Pace()
	}
	return tablestore.Pace{}
}

// writeChecker is a store that can tell why it takes no writes: before a write, or on Azure
// after one was denied.
type writeChecker interface {
	Writable(ctx context.Context) error
}

// writable returns why the store takes no writes now, if the store can tell.
func writable(ctx context.Context, store tablestore.Store) error {
	if checker, ok := tablestore.As[writeChecker](store); ok {
		return checker.Writable(ctx)
	}
	return nil
}

// unwritable returns the problem of a store that takes no writes.
func unwritable(err error) error {
	detail := "The store takes no writes."
	switch {
	case errors.Is(err, tablestore.ErrNoSpace):
		detail = "The store takes no writes: less disk space is free than its reserve."
	case errors.Is(err, tablestore.ErrDenied):
		detail = "The store takes no writes: it denies the server access until an operator acts; the log says why."
	case errors.Is(err, tablestore.ErrOtherVersion):
		detail = "The store takes no writes: its schema is one on which this version does not work; the log says which."
	}
	return &apierror.Error{Code: apierror.StoreUnavailable, Detail: detail, RetryAfter: time.Second, Err: err}
}

// warnings returns the degradations while requests are still served.
func (r *readiness) warnings(now time.Time) []string {
	warnings := r.spaceWarnings()
	if warning := r.paceWarning(); warning != "" {
		warnings = append(warnings, warning)
	}
	for _, circuit := range r.bus.circuits.Open(now) {
		name := circuit.Name
		if name == breaker.Bus {
			name = "the whole bus"
		}
		warnings = append(warnings, "the circuit of "+name+" is "+circuit.State.String()+": "+circuit.Reason)
	}
	for _, unread := range r.bus.down() {
		warnings = append(warnings, "replies cannot be read from "+unread.Topic+": "+cmp.Or(unread.Reason, "see the log"))
	}
	if letters := r.bus.DeadLetters; letters != nil && letters.Counted().Count > 0 {
		found := letters.Counted()
		warnings = append(warnings, fmt.Sprintf("%d replies are dead letters, the oldest since %s: see lucius azure dead-letters list",
			found.Count, found.Oldest.UTC().Format(time.RFC3339)))
	}
	if found := r.submitted.Survey(); found.Refused > 0 {
		warnings = append(warnings, fmt.Sprintf("commands of the inbox were refused: %d, the oldest submitted at %s: see /v1/admin/inbox",
			found.Refused, found.OldestRefused.UTC().Format(time.RFC3339)))
	}
	if warning := r.clock.warning(); warning != "" {
		warnings = append(warnings, warning)
	}
	if r.gate.Stale() {
		warnings = append(warnings, "the pauses and limits cannot be read, so nothing is dispatched or started: see the log")
	}
	for _, pause := range r.gate.Active() {
		warnings = append(warnings, "dispatch of "+pause.ID()+" is "+string(pause.State)+": "+pause.Reason)
	}
	for _, watcher := range r.watchers {
		if watcher.Err() != nil {
			warnings = append(warnings, "the "+watcher.Name()+" are refused, those before stay in use: see the log")
		}
	}
	if oldest := r.reconciler.Report().OldestPending; oldest > overdue && len(warnings) == 0 {
		warnings = append(warnings, fmt.Sprintf(
			"an outbox row has waited %s to be published: is a process with the role relay running?", oldest.Round(time.Second)))
	}
	if len(r.reconciler.Report().Stuck) > 0 {
		warnings = append(warnings, "jobs are stuck: see /v1/admin/stuck")
	}
	return warnings
}

// spaceWarnings warns of a disk that is about to be full.
func (r *readiness) spaceWarnings() []string {
	local, ok := tablestore.As[interface{ Space() (free, reserve uint64) }](r.store)
	if !ok {
		return nil
	}
	free, reserve := local.Space()
	if free >= SpaceAhead*reserve || free == reserve {
		return nil
	}
	return []string{fmt.Sprintf(
		"the disk of the data directory has %d MiB free: below %d MiB no writes are taken", free>>20, reserve>>20)}
}

// cachedAnswer shares one answer, good or bad, among all callers for a while. The zero
// value has none. It is safe for concurrent use.
type cachedAnswer struct {
	flight singleflight.Group // guards at and err: it runs one call at a time

	at  time.Time // when err was answered; zero before the first answer
	err error
}

// get returns the answer, and asks for a new one if it is too old. Other callers wait for
// the same call, so it continues if this caller leaves.
func (a *cachedAnswer) get(ctx context.Context, ask func(context.Context) error) error {
	_, err, _ := a.flight.Do("", func() (any, error) {
		if !a.at.IsZero() && time.Since(a.at) < answerAge {
			return nil, a.err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
		defer cancel()
		a.err = ask(ctx)
		a.at = time.Now()
		return nil, a.err
	})
	return err
}
