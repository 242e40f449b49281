// Package pginbox is the [inbox.Source] in PostgreSQL, the table lucius.inbox. The schema is
// that of package pgstore, and so are the functions by which applications submit.
//
//	UPDATE lease, tries, due_at ──► accept ──► UPDATE state, job_id or problem WHERE lease is ours
//
// Each is a transaction of one round trip, so that none is open during the accepts. The lease
// holds other processes off, and ends by due_at if its process does.
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
	// Timeout bounds each request. Optional. Defaults to 30 s.
	Timeout time.Duration
	// Lease is how long commands in hand are kept from other processes, and bounds their
	// accepts. Optional. Defaults to 30 s.
	Lease time.Duration
}

// Inbox is the commands that applications submitted. It is safe for concurrent use. It has
// connections of its own, so that a busy store does not delay operators.
type Inbox struct {
	pool           *pgxpool.Pool
	table          string
	timeout, lease time.Duration
}

var _ inbox.Source = (*Inbox)(nil)

// Channel is the channel of PostgreSQL on which commits of commands are notified.
const Channel = "lucius_inbox"

const (
	// maxConnections allows one connection for taking commands, and two for operators and
	// upkeep.
	maxConnections = 3
	// pingTimeout bounds the check of an idle connection; its server may have vanished
	// without closing it.
	pingTimeout = 5 * time.Second
	// maxTakenBytes bounds the text of the commands that are taken at once; the last one
	// may exceed it.
	maxTakenBytes = 4 << 20
)

// Open returns the inbox of a database. It does not connect.
func Open(ctx context.Context, options Options) (*Inbox, error) {
	config, err := pgxpool.ParseConfig(options.URL)
	if err != nil {
		return nil, errors.New("the URL of PostgreSQL is not valid") // The cause may quote a password.
	}
	config.MaxConns, config.PingTimeout = maxConnections, pingTimeout
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	config.ConnConfig.RuntimeParams["search_path"] = "pg_catalog, pg_temp" // No function of another role runs.
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "on"           // An operator's decision must survive a crash.
	config.ConnConfig.RuntimeParams["application_name"] = cmp.Or(config.ConnConfig.RuntimeParams["application_name"], "lucius") + " inbox"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return &Inbox{
		pool: pool, table: options.Table,
		timeout: cmp.Or(options.Timeout, 30*time.Second), lease: cmp.Or(options.Lease, 30*time.Second),
	}, nil
}

// Close closes the connections.
func (i *Inbox) Close() { i.pool.Close() }

// ErrUnusable is wrapped in the error for an inbox from which this process must not take.
var ErrUnusable = errors.New("the inbox cannot be used")

// Claim makes the inbox that of this ledger if it has no owner yet. Its errors are those of
// [Inbox.Check].
func (i *Inbox) Claim(ctx context.Context) error {
	if err := i.Check(ctx); err != nil {
		return err
	}
	claiming, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	if _, err := i.pool.Exec(claiming, "INSERT INTO lucius.inbox_owner (ledger) VALUES ($1) ON CONFLICT DO NOTHING", i.table); err != nil {
		return unavailable(err)
	}
	return i.Check(ctx) // Another ledger may have been first.
}

// Check returns an error that wraps [ErrUnusable] if the inbox belongs to another ledger, which
// would have no jobs of these commands. Package pgstore checks the rights of the role.
func (i *Inbox) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var owner string
	err := i.pool.QueryRow(ctx, "SELECT coalesce((SELECT ledger FROM lucius.inbox_owner), '')").Scan(&owner)
	if err != nil {
		return unavailable(err)
	}
	if owner != "" && owner != i.table {
		return fmt.Errorf("%w: it belongs to the ledger %s, and LUCIUS_LEDGER_TABLE is %s: give this one a database of its own, "+
			"or DELETE FROM lucius.inbox_owner if the other is never served again", ErrUnusable, owner, i.table)
	}
	return nil
}

// unavailable returns the problem of a request that PostgreSQL did not answer.
func unavailable(err error) error {
	return &problem.Error{Code: problem.StoreUnavailable, Detail: "The inbox cannot be read.", Err: fmt.Errorf("PostgreSQL: %w", err)}
}

// takeCommands leases commands. It chooses candidates without locks, from all tenants with
// waiting commands, which it finds one by one in the index: the first command of each
// tenant, then the second of each. It chooses more than it takes, since other processes may
// lock some. Commands to discard come first, even those of tenants to skip, since they need
// no room.
const takeCommands = `WITH RECURSIVE tenants (id) AS (
		(SELECT tenant_id FROM lucius.inbox WHERE state = 'waiting' ORDER BY tenant_id LIMIT 1)
		UNION ALL
		SELECT (SELECT tenant_id FROM lucius.inbox WHERE state = 'waiting' AND tenant_id > t.id ORDER BY tenant_id LIMIT 1)
			FROM tenants t WHERE t.id IS NOT NULL
	), candidates AS MATERIALIZED (
		(SELECT id, due_at, 0 AS turn FROM lucius.inbox
			WHERE state = 'waiting' AND discard IS NOT NULL AND due_at <= now() ORDER BY due_at LIMIT 4 * $1)
		UNION ALL
		(SELECT due.id, due.due_at, due.turn FROM tenants t CROSS JOIN LATERAL (
			SELECT id, due_at, row_number() OVER (ORDER BY due_at) AS turn FROM lucius.inbox
			WHERE state = 'waiting' AND discard IS NULL AND tenant_id = t.id AND due_at <= now() ORDER BY due_at LIMIT $1
		) due WHERE t.id <> ALL ($2::text[]) ORDER BY due.turn, due.due_at LIMIT 4 * $1)
	), locked AS MATERIALIZED (
		SELECT i.id, c.due_at, c.turn, i.lease, octet_length(i.command) AS size FROM candidates c JOIN lucius.inbox i ON i.id = c.id
		WHERE i.state = 'waiting' AND i.due_at = c.due_at ORDER BY c.turn, c.due_at LIMIT $1 FOR UPDATE OF i SKIP LOCKED
	), taken AS MATERIALIZED (
		SELECT id, due_at, turn, lease IS NOT NULL AS unsure, sum(size) OVER (ORDER BY turn, due_at, id) - size AS bytes_before FROM locked
	), leased AS (
		UPDATE lucius.inbox i SET lease = $3, tries = i.tries + 1, due_at = clock_timestamp() + make_interval(secs => $4)
		FROM taken t WHERE i.id = t.id AND t.bytes_before < $5
		RETURNING i.id, i.tenant_id, i.command, i.submitted_by, i.submitted_at, i.tries - 1 AS tries,
			t.unsure, i.discard IS NOT NULL AS discard, t.due_at, t.turn
	) SELECT id, tenant_id, command, submitted_by, submitted_at, tries, unsure, discard, due_at FROM leased ORDER BY turn, due_at, id`

// Take implements [inbox.Source].
func (i *Inbox) Take(ctx context.Context, limit int, skip []string, accept func(context.Context, []inbox.Command) []inbox.Outcome,
) (int, error) {
	lease := uuid.NewString()
	taken, places, err := i.take(ctx, lease, limit, skip)
	if err != nil {
		return 0, unavailable(err)
	}
	if len(taken) == 0 {
		return 0, nil
	}
	accepting, cancel := context.WithTimeout(ctx, i.lease)
	defer cancel()
	outcomes := accept(accepting, taken)
	// Decisions are stored during a shutdown too.
	if err := i.store(context.WithoutCancel(ctx), lease, taken, places, outcomes); err != nil {
		return 0, unavailable(err)
	}
	return len(taken), nil
}

// take leases commands, and returns them with their places, the times when they were due.
func (i *Inbox) take(ctx context.Context, lease string, limit int, skip []string) ([]inbox.Command, []time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	if skip == nil {
		skip = []string{}
	}
	rows, err := i.pool.Query(ctx, takeCommands, limit, skip, lease, i.lease.Seconds(), maxTakenBytes)
	if err != nil {
		return nil, nil, err
	}
	var places []time.Time
	taken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c inbox.Command, err error) {
		var place time.Time
		err = row.Scan(&c.ID, &c.TenantID, &c.Body, &c.SubmittedBy, &c.SubmittedAt, &c.Tries, &c.Unsure, &c.Discard, &place)
		places = append(places, place)
		return c, err
	})
	return taken, places, err
}

// storeOutcomes stores the decisions. A command that is known to be no job is discarded
// instead if an operator has asked for that. If a decision may have left a job, the lease
// stays. Rows are locked in the order of their ids, as in operators' statements.
const storeOutcomes = `WITH held AS MATERIALIZED (
		SELECT id FROM lucius.inbox WHERE id = ANY ($1::uuid[]) AND lease = $8 ORDER BY id FOR UPDATE
	) UPDATE lucius.inbox i SET job_id = o.job, lease = CASE WHEN o.unsure THEN i.lease END,
		state = CASE WHEN ` + endsNow + ` THEN 'discarded' ELSE o.state END,
		problem = CASE WHEN ` + endsNow + ` THEN ` + lastProblem + ` || jsonb_build_object('discarded', i.discard)
			WHEN o.state = 'waiting' THEN coalesce(o.problem::jsonb, i.problem) ELSE o.problem::jsonb END,
		command = CASE WHEN NOT ` + endsNow + ` AND o.state <> 'accepted' THEN i.command END,
		decided_at = CASE WHEN ` + endsNow + ` OR o.state <> 'waiting' THEN clock_timestamp() END,
		due_at = coalesce(o.place, clock_timestamp() + make_interval(secs => o.wait)),
		tries = CASE WHEN o.place IS NULL THEN i.tries ELSE i.tries - 1 END
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::float8[], $7::bool[])
		AS o(id, state, job, problem, place, wait, unsure), held
	WHERE i.id = o.id AND i.id = held.id`

const (
	endsNow = "(i.discard IS NOT NULL AND o.state <> 'accepted' AND NOT o.unsure)"
	// lastProblem returns the problem of a command, without a code if it was never tried.
	lastProblem = `coalesce(i.problem, '{"code": "", "detail": ""}')`
)

// store stores the outcomes of the commands that this lease still holds.
func (i *Inbox) store(ctx context.Context, lease string, taken []inbox.Command, places []time.Time, outcomes []inbox.Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var ids, states []string
	var jobs, problems []*string
	var due []*time.Time
	var waits []float64
	var unsure []bool
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
		var place *time.Time
		if outcome.PutBack {
			place = &places[at]
		}
		if outcome.Wait > 0 || outcome.PutBack {
			state, job = "waiting", nil
		}
		ids, states, jobs, problems = append(ids, taken[at].ID), append(states, state), append(jobs, job), append(problems, fault)
		due, waits = append(due, place), append(waits, outcome.Wait.Seconds())
		unsure = append(unsure, outcome.Unsure)
	}
	_, err := i.pool.Exec(ctx, storeOutcomes, ids, states, jobs, problems, due, waits, unsure, lease)
	return err
}

// fault is the stored form of a problem.
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
		(SELECT submitted_at FROM lucius.inbox WHERE state = 'waiting' ORDER BY submitted_at, id LIMIT 1),
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

// maxForget is how many commands one call of Forget checks.
const maxForget = 1000

// Forget implements [inbox.Source]. It passes over commands that another process deletes.
func (i *Inbox) Forget(ctx context.Context, after string, retention time.Duration) (next string, deleted int, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	from, id, err := parseCursor(after)
	if err != nil {
		return "", 0, err
	}
	var seen int
	var last *time.Time
	var lastID *string
	err = i.pool.QueryRow(ctx, `WITH seen AS MATERIALIZED (
			SELECT id, state, job_id, decided_at FROM lucius.inbox WHERE state IN ('accepted', 'discarded')
				AND (decided_at, id) > ($1, $2) AND decided_at < now() - make_interval(secs => $3)
			ORDER BY decided_at, id LIMIT $4 FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM lucius.inbox i USING seen s WHERE i.id = s.id AND (s.state = 'discarded' OR NOT EXISTS (
				SELECT FROM lucius.rows r WHERE r.tbl = $5 AND r.part = s.job_id AND r.row = 'JOB' AND r.props ? 'state'))
			RETURNING i.id
		), latest AS (SELECT decided_at, id FROM seen ORDER BY decided_at DESC, id DESC LIMIT 1)
		SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM seen), (SELECT decided_at FROM latest), (SELECT id FROM latest)`,
		from, id, retention.Seconds(), maxForget, i.table).Scan(&deleted, &seen, &last, &lastID)
	if err != nil {
		return after, 0, unavailable(err)
	}
	if seen == maxForget {
		next = cursorAfter(*last, *lastID)
	}
	return next, deleted, nil
}
