// Package pginbox is the [inbox.Source] in PostgreSQL, the table lucius.inbox. The schema is
// that of package pgstore, and so are the functions by which applications submit.
//
//	BEGIN
//	  SELECT … FOR UPDATE SKIP LOCKED ──► accept ──► UPDATE state, job_id or problem
//	COMMIT
//
// The locks hold other processes off. They end with the session, so the commands of a process
// that was killed are due again at once.
package pginbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/problem"
)

// Options configures an inbox.
type Options struct {
	// URL is the database, such as postgres://user:password@host:5432/database. Required.
	URL string
	// Table is the ledger's table of jobs among lucius.rows. Required.
	Table string
	// Timeout bounds each request but the accepts of [Inbox.Take]. Optional. Defaults to 30 s.
	Timeout time.Duration
}

// Inbox is the commands that applications submitted. It is safe for concurrent use. It has
// connections of its own: a transaction that holds commands waits for accepts, which need
// the store's.
type Inbox struct {
	pool    *pgxpool.Pool
	table   string
	timeout time.Duration
}

var _ inbox.Source = (*Inbox)(nil)

// Channel is the channel of PostgreSQL on which commits of commands are notified.
const Channel = "lucius_inbox"

// maxConnections are one for commands in hand, and two for operators and upkeep.
const maxConnections = 3

// Open returns the inbox of a database. It does not connect.
func Open(ctx context.Context, options Options) (*Inbox, error) {
	config, err := pgxpool.ParseConfig(options.URL)
	if err != nil {
		return nil, errors.New("the URL of PostgreSQL is not valid") // The cause may quote a password.
	}
	config.MaxConns = maxConnections
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	config.ConnConfig.RuntimeParams["search_path"] = "pg_catalog, pg_temp" // No function of another role runs.
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "on"           // An operator's decision is kept.
	config.ConnConfig.RuntimeParams["application_name"] = cmp.Or(config.ConnConfig.RuntimeParams["application_name"], "lucius") + " inbox"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return &Inbox{pool: pool, table: options.Table, timeout: cmp.Or(options.Timeout, 30*time.Second)}, nil
}

// Close closes the connections.
func (i *Inbox) Close() { i.pool.Close() }

// unavailable is the problem of a request that PostgreSQL did not answer.
func unavailable(err error) error {
	return &problem.Error{Code: problem.StoreUnavailable, Detail: "The inbox cannot be read.", Err: fmt.Errorf("PostgreSQL: %w", err)}
}

// Take implements [inbox.Source].
func (i *Inbox) Take(ctx context.Context, limit int, accept func(context.Context, []inbox.Command) []inbox.Outcome) (int, error) {
	var taken []inbox.Command
	err := pgx.BeginFunc(ctx, i.pool, func(tx pgx.Tx) error {
		var err error
		if taken, err = i.lock(ctx, tx, limit); err != nil || len(taken) == 0 {
			return err
		}
		return i.store(ctx, tx, taken, accept(ctx, taken))
	})
	if err != nil {
		return 0, unavailable(err)
	}
	return len(taken), nil
}

// lock returns commands that are due, which are this transaction's until it ends.
func (i *Inbox) lock(ctx context.Context, tx pgx.Tx, limit int) ([]inbox.Command, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	rows, err := tx.Query(ctx, `SELECT id, tenant_id, command, submitted_by, submitted_at, tries FROM lucius.inbox
		WHERE state = 'waiting' AND due_at <= now() ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED`, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c inbox.Command, err error) {
		return c, row.Scan(&c.ID, &c.TenantID, &c.Body, &c.SubmittedBy, &c.SubmittedAt, &c.Tries)
	})
}

// store stores the outcomes of the commands.
func (i *Inbox) store(ctx context.Context, tx pgx.Tx, taken []inbox.Command, outcomes []inbox.Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var ids, states []string
	var jobs, problems []*string
	var waits []float64
	for at := range taken {
		outcome := &outcomes[at]
		state, job := "accepted", &outcome.JobID
		var fault *string
		if outcome.Problem != nil {
			text, err := encode(outcome.Problem)
			if err != nil {
				return err
			}
			state, job, fault = "refused", nil, &text
		}
		if outcome.Wait > 0 {
			state = "waiting"
		}
		ids, states, jobs, problems = append(ids, taken[at].ID), append(states, state), append(jobs, job), append(problems, fault)
		waits = append(waits, outcome.Wait.Seconds())
	}
	_, err := tx.Exec(ctx, `UPDATE lucius.inbox i SET state = o.state, job_id = o.job, problem = o.problem::jsonb,
			command = CASE WHEN o.state <> 'accepted' THEN i.command END,
			decided_at = CASE WHEN o.state <> 'waiting' THEN clock_timestamp() END,
			due_at = clock_timestamp() + make_interval(secs => o.wait), tries = i.tries + 1
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::float8[]) AS o(id, state, job, problem, wait)
		WHERE i.id = o.id`, ids, states, jobs, problems, waits)
	return err
}

// fault is a problem as it is stored.
type fault struct {
	Code   problem.Code        `json:"code"`
	Detail string              `json:"detail"`
	Errors []problem.Violation `json:"errors,omitempty"`
}

func encode(p *problem.Error) (string, error) {
	text, err := json.Marshal(fault{Code: p.Code, Detail: cmp.Or(p.Summary(), p.Code.Title()+"."), Errors: p.Errors})
	if err != nil {
		return "", fmt.Errorf("encode a problem: %w", err)
	}
	return strings.ReplaceAll(string(text), `\u0000`, `\ufffd`), nil // jsonb takes no zero byte.
}

// Survey implements [inbox.Source].
func (i *Inbox) Survey(ctx context.Context) (s inbox.Survey, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var waiting, refused *time.Time
	err = i.pool.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM (SELECT FROM lucius.inbox WHERE state = 'waiting' LIMIT $1) w),
		(SELECT count(*) FROM (SELECT FROM lucius.inbox WHERE state = 'refused' LIMIT $1) r),
		(SELECT min(submitted_at) FROM (SELECT submitted_at FROM lucius.inbox WHERE state = 'waiting' LIMIT $1) w),
		(SELECT submitted_at FROM lucius.inbox WHERE state = 'refused' ORDER BY submitted_at, id LIMIT 1)`,
		inbox.MaxSurveyed).Scan(&s.Waiting, &s.Refused, &waiting, &refused)
	if err != nil {
		return s, unavailable(err)
	}
	if waiting != nil {
		s.OldestWaiting = *waiting
	}
	if refused != nil {
		s.OldestRefused = *refused
	}
	return s, nil
}

// maxForget is how many commands one call of Forget looks at.
const maxForget = 1000

// Forget implements [inbox.Source].
func (i *Inbox) Forget(ctx context.Context, after string, retention time.Duration) (next string, deleted int, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var last *string
	err = i.pool.QueryRow(ctx, `WITH seen AS MATERIALIZED (
			SELECT id, state, job_id, decided_at FROM lucius.inbox WHERE id > $1 ORDER BY id LIMIT $2
		), gone AS (
			DELETE FROM lucius.inbox i USING seen s WHERE i.id = s.id AND i.state = s.state AND (
				s.state = 'discarded' AND $3::float8 > 0 AND s.decided_at < now() - make_interval(secs => $3)
				OR s.state = 'accepted' AND NOT EXISTS (
					SELECT FROM lucius.rows r WHERE r.tbl = $4 AND r.part = s.job_id AND r.row = 'JOB'))
			RETURNING i.id
		) SELECT (SELECT count(*) FROM gone), CASE WHEN count(*) = $2 THEN max(id::text) END FROM seen`,
		cmp.Or(after, uuid.Nil.String()), maxForget, retention.Seconds(), i.table).Scan(&deleted, &last)
	if err != nil {
		return after, 0, unavailable(err)
	}
	if last != nil {
		next = *last
	}
	return next, deleted, nil
}

// cursorTime is how a cursor has the time of its command, which is exact to the microsecond.
const cursorTime = time.RFC3339Nano

// List implements [inbox.Operator].
func (i *Inbox) List(ctx context.Context, limit int, after string) (page []inbox.Refused, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	from, id := time.Time{}, uuid.Nil.String()
	if after != "" {
		text, last, _ := strings.Cut(after, " ")
		if from, err = time.Parse(cursorTime, text); err != nil || !isUUID(last) {
			return nil, "", problem.Newf(problem.InvalidEnvelope, "The cursor is not one of this list.")
		}
		id = last
	}
	rows, err := i.pool.Query(ctx, `SELECT id, tenant_id, command, submitted_by, submitted_at, tries, decided_at, problem
		FROM lucius.inbox WHERE state = 'refused' AND (submitted_at, id) > ($1, $2) ORDER BY submitted_at, id LIMIT $3`,
		from, id, limit+1)
	if err != nil {
		return nil, "", unavailable(err)
	}
	page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r inbox.Refused, err error) {
		var why fault
		err = row.Scan(&r.ID, &r.TenantID, &r.Body, &r.SubmittedBy, &r.SubmittedAt, &r.Tries, &r.RefusedAt, &why)
		r.Code, r.Detail, r.Errors = why.Code, why.Detail, why.Errors
		return r, err
	})
	if err != nil {
		return nil, "", unavailable(err)
	}
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].SubmittedAt.Format(cursorTime) + " " + page[limit-1].ID
	}
	return page, next, nil
}

// Retry implements [inbox.Operator].
func (i *Inbox) Retry(ctx context.Context, ids []string) ([]inbox.Handled, bool, error) {
	return i.handle(ctx, ids, inbox.Retried,
		"state = 'waiting', problem = NULL, decided_at = NULL, tries = 0, due_at = clock_timestamp() WHERE $2 = ''", "")
}

// Discard implements [inbox.Operator].
func (i *Inbox) Discard(ctx context.Context, ids []string, reason string) ([]inbox.Handled, bool, error) {
	return i.handle(ctx, ids, inbox.Discarded,
		"state = 'discarded', command = NULL, problem = i.problem || jsonb_build_object('discarded', $2::text), "+
			"decided_at = clock_timestamp() WHERE true", strings.ReplaceAll(reason, "\x00", ""))
}

// handle changes refused commands, those named or the first [inbox.MaxHandled], by the
// assignments.
func (i *Inbox) handle(ctx context.Context, ids []string, outcome inbox.HandledOutcome, assignments, reason string,
) (handled []inbox.Handled, more bool, err error) {
	for _, id := range ids {
		if !isUUID(id) {
			return nil, false, problem.Newf(problem.InvalidEnvelope, "%q is not the id of a command.", id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, i.pool, func(tx pgx.Tx) error {
		if len(ids) == 0 {
			if ids, err = first(ctx, tx, inbox.MaxHandled+1); err != nil {
				return err
			}
			more = len(ids) > inbox.MaxHandled
			ids = ids[:min(len(ids), inbox.MaxHandled)]
		}
		rows, err := tx.Query(ctx, "UPDATE lucius.inbox i SET "+assignments+
			" AND state = 'refused' AND id = ANY($1::uuid[]) RETURNING id::text, pg_notify('lucius_inbox', '')::text", ids, reason)
		if err != nil {
			return err
		}
		done := map[string]bool{}
		var id string
		if _, err := pgx.ForEachRow(rows, []any{&id, nil}, func() error { done[id] = true; return nil }); err != nil {
			return err
		}
		for _, id := range ids {
			one := inbox.Handled{ID: id, Outcome: inbox.Absent}
			if done[strings.ToLower(id)] {
				one.Outcome = outcome
			}
			handled = append(handled, one)
		}
		return nil
	})
	if err != nil {
		return nil, false, unavailable(err)
	}
	return handled, more, nil
}

// isUUID reports whether a text is a UUID as the database writes it, in either case.
func isUUID(text string) bool {
	return len(text) == len(uuid.Nil.String()) && uuid.Validate(text) == nil
}

// first returns the ids of the oldest refused commands.
func first(ctx context.Context, tx pgx.Tx, limit int) ([]string, error) {
	rows, err := tx.Query(ctx, "SELECT id::text FROM lucius.inbox WHERE state = 'refused' ORDER BY submitted_at, id LIMIT $1", limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
