package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Scope names the directives that share a limit or a closure.
type Scope = statemachine.StartScope

// covering returns the scopes of a directive, the narrowest first.
func covering(service, stepType, tenantID string) [4]Scope {
	return [4]Scope{
		{Service: service, StepType: stepType, TenantID: tenantID},
		{Service: service, TenantID: tenantID},
		{Service: service, StepType: stepType},
		{Service: service},
	}
}

// Limit is how many starts a scope may have in any window of time, how many of its attempts may run at
// once, or both.
type Limit struct {
	Scope

	Count  int           `column:"count"` // 0 limits no starts, as does a Window of 0
	Window time.Duration `column:"window_ms"`
	// MaxRunning bounds the attempts that run at once; 0 does not. An attempt runs from its claim on.
	MaxRunning int `column:"max_running"`

	Actor  string `column:"actor"` // of the last change, as Reason
	Reason string `column:"reason"`
	// CreatedAt tells a limit from one of the same scope that was deleted.
	CreatedAt time.Time `column:"created_at"`
	// At is when tokens were last leased, by the clock of the process that leased them.
	// Buckets are the tokens that count, at most 42 entries with ends in order.
	At      time.Time `column:"at"`
	Buckets []Bucket  `column:"buckets"`
}

// SetLimit makes the limit, or changes its numbers, actor and reason: what was granted and what runs go
// on to count. So a greater window is kept from one such window after the change on.
func (s *Service) SetLimit(ctx context.Context, fresh Limit) (Limit, error) {
	fresh.Window = fresh.Window.Truncate(time.Millisecond)
	return update(ctx, s, s.key(kindLimit, fresh.Scope), limitCodec, func(old *Limit) (*Limit, error) {
		next := Limit{Scope: fresh.Scope, CreatedAt: tablestore.Now()}
		if old != nil {
			if old.Count == fresh.Count && old.Window == fresh.Window && old.MaxRunning == fresh.MaxRunning && old.Reason == fresh.Reason {
				return old, nil
			}
			next = *old
		}
		next.Count, next.Window, next.MaxRunning = fresh.Count, fresh.Window, fresh.MaxRunning
		next.Actor, next.Reason = fresh.Actor, fresh.Reason
		return &next, nil
	})
}

// DeleteLimit removes the limit. It returns a not_found [*apierror.Error] if there is none.
func (s *Service) DeleteLimit(ctx context.Context, scope Scope) error {
	return tablestore.Retry(ctx, s.random, func() error {
		row, err := s.store.Get(ctx, s.key(kindLimit, scope))
		if errors.Is(err, tablestore.ErrNotFound) {
			return &apierror.Error{Code: apierror.NotFound, Detail: "There is no such limit."}
		}
		if err == nil {
			_, err = s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: row.Key, ETag: row.ETag}})
		}
		if err != nil {
			return fmt.Errorf("delete limit %s: %w", scope.ID(), err)
		}
		return nil
	})
}

// get reads a limit.
func (s *Service) get(ctx context.Context, scope Scope) (limit Limit, etag tablestore.ETag, err error) {
	row, err := s.store.Get(ctx, s.key(kindLimit, scope))
	if err != nil {
		return Limit{}, "", fmt.Errorf("read limit %s: %w", scope.ID(), err)
	}
	return limit, row.ETag, limitCodec.Decode(&row, &limit)
}

// replace writes a limit under its version.
func (s *Service) replace(ctx context.Context, limit *Limit, etag tablestore.ETag) (tablestore.ETag, error) {
	key := s.key(kindLimit, limit.Scope)
	etags, err := s.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Replace, Key: key, ETag: etag, Properties: limitCodec.Encode(limit, nil),
	}})
	if err != nil {
		return "", fmt.Errorf("write limit %s: %w", limit.ID(), err)
	}
	return etags[0], nil
}
